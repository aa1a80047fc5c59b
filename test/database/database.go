// Package database gives each test a database, slot and publication of its own on
// a real Postgres: that of CDC_RELAY_TEST_DATABASE_URL when set, else one in a
// container when a Docker daemon answers (image from CDC_RELAY_TEST_IMAGE), else
// one from local server binaries. With none of them tests fail; none is skipped.
package database

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
)

// shared is the server that all tests of a process use, started by the first.
var shared struct {
	once   sync.Once
	server *throwaway.Server // nil for a server that somebody else runs
	url    string
	err    error
}

// Run runs a package's tests and stops the shared server: call it from TestMain.
func Run(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the throwaway Postgres:", err)
			return 1
		}
	}
	return code
}

func serverURL(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() {
		if shared.url = os.Getenv("CDC_RELAY_TEST_DATABASE_URL"); shared.url != "" {
			return
		}
		shared.server, shared.err = start(t.Context())
		if shared.err == nil {
			shared.url = shared.server.URL
			fmt.Fprintf(os.Stderr, "tests run on PostgreSQL %s from %s\n", shared.server.Version, shared.server.From)
		}
	})
	if shared.err != nil {
		t.Fatalf("no Postgres to test with: %v", shared.err)
	}
	return shared.url
}

// start prefers a container, so that where Docker is the tests run on the
// version that the image names.
func start(ctx context.Context) (*throwaway.Server, error) {
	ctx = context.WithoutCancel(ctx)
	options := throwaway.Options{Image: os.Getenv("CDC_RELAY_TEST_IMAGE"), BinDir: os.Getenv("CDC_RELAY_TEST_BIN_DIR")}
	if options.BinDir != "" {
		return throwaway.StartLocal(ctx, options)
	}
	server, err := throwaway.StartContainer(ctx, options)
	if !errors.Is(err, throwaway.ErrNoDocker) {
		return server, err
	}
	return throwaway.StartLocal(ctx, options)
}

// Database is one test's own.
type Database struct {
	URL  string
	Name string // of the database; also that of the slot
	Conn *pgx.Conn
}

// New creates a database, and drops it with its slots when the test ends.
func New(t testing.TB) *Database {
	t.Helper()
	return On(t, serverURL(t))
}

// On does so on another server than the shared one.
func On(t testing.TB, base string) *Database {
	t.Helper()
	name := fmt.Sprintf("t_%s_%x", clean(t.Name()), time.Now().UnixNano()&0xffffff)
	admin := connect(t, base)
	defer admin.Close(context.Background())
	if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create database: %v", err)
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("the test server's URL: %v", err)
	}
	u.Path = "/" + name
	d := &Database{URL: u.String(), Name: name}
	t.Cleanup(func() { d.drop(t, base) })
	d.Conn = connect(t, d.URL)
	return d
}

func clean(name string) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
	return name[:min(len(name), 40)]
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatalf("connect to Postgres: %v", err)
	}
	return conn
}

func (d *Database) drop(t testing.TB, base string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d.Conn.Close(ctx)
	admin, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Logf("drop database %s: %v", d.Name, err)
		return
	}
	defer admin.Close(ctx)
	// A walsender holds its slot until it has noticed that its client is gone.
	for ctx.Err() == nil {
		_, err = admin.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active`, d.Name)
		if err == nil {
			_, err = admin.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1`, d.Name)
		}
		if err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if _, err := admin.Exec(ctx, "DROP DATABASE IF EXISTS "+d.Name+" WITH (FORCE)"); err != nil {
		t.Logf("drop database %s: %v", d.Name, err)
	}
}

// Reconnect opens the test's own connection again, after its server was halted.
func (d *Database) Reconnect(t testing.TB) {
	t.Helper()
	d.Conn = connect(t, d.URL)
}

// Exec runs a statement and fails the test if it can't.
func (d *Database) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// One scans the one row that a query gives.
func One[T any](t testing.TB, d *Database, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := d.Conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Row scans the one row that a query gives into the fields of a struct, in their order.
func Row[T any](t testing.TB, d *Database, sql string, args ...any) T {
	t.Helper()
	rows, err := d.Conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// Connect opens a further connection, closed when the test ends.
func (d *Database) Connect(t testing.TB) *pgx.Conn {
	t.Helper()
	conn := connect(t, d.URL)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}
