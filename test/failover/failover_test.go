//go:build failover

// Package failover promotes a standby under a running relay, on PostgreSQL 17 or
// newer, whose slots a standby keeps up with. It needs a directory with those
// server binaries in CDC_RELAY_TEST_PG17; `make failover` runs it.
package failover

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
)

// TestPromotedStandby: the relay follows by itself from the primary to the
// promoted standby, with its slot, and loses nothing that was committed there.
func TestPromotedStandby(t *testing.T) {
	bin := os.Getenv("CDC_RELAY_TEST_PG17")
	if bin == "" {
		t.Fatal("CDC_RELAY_TEST_PG17 must name a directory with the server binaries of PostgreSQL 17")
	}
	primary, err := throwaway.StartLocal(t.Context(), throwaway.Options{BinDir: bin, Settings: map[string]string{
		"fsync": "on", "hot_standby_feedback": "on", "sync_replication_slots": "on",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { primary.Stop() })
	standby, err := primary.Standby(t.Context(), "standby")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Stop() })

	seen := &counter{ids: make(map[string]int)}
	receiver := httptest.NewServer(seen)
	t.Cleanup(receiver.Close)
	program := startRelay(t, primary, standby, receiver.URL)

	conn := connect(t, primary)
	// Nothing may reach the receiver that the standby could still lose.
	exec1(t, conn, `ALTER SYSTEM SET synchronized_standby_slots = 'standby'`)
	exec1(t, conn, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
	exec1(t, conn, `SELECT pg_reload_conf()`)
	eventually(t, "the relay to stream", func() bool {
		return one[bool](conn, `SELECT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE slot_name = 'cdc_relay'`)
	})
	for range 20 {
		insert(t, conn, 50)
	}
	eventually(t, "all to arrive from the primary", func() bool { return seen.distinct() == 1000 })
	replica := connect(t, standby)
	eventually(t, "the slot to be on the standby", func() bool {
		return one[bool](replica, `SELECT coalesce(bool_or(synced AND NOT temporary AND invalidation_reason IS NULL), false) FROM pg_replication_slots WHERE slot_name = 'cdc_relay'`)
	})
	for range 10 {
		insert(t, conn, 50)
	}
	conn.Close(t.Context())
	if err := primary.Halt(t.Context(), "immediate"); err != nil {
		t.Fatal(err)
	}
	exec1(t, replica, `SELECT pg_promote()`)
	promoted := time.Now()
	exec1(t, replica, `ALTER SYSTEM SET synchronized_standby_slots = ''`)
	exec1(t, replica, `ALTER SYSTEM SET synchronous_standby_names = ''`)
	exec1(t, replica, `SELECT pg_reload_conf()`)
	insert(t, replica, 50)
	committed := one[int](replica, `SELECT count(*)::int FROM outbox_events`)
	eventually(t, "all to arrive from the promoted standby", func() bool { return seen.distinct() >= committed })
	t.Logf("%d events, %d repeats; the last arrived %s after the promotion", committed, seen.total()-seen.distinct(), time.Since(promoted).Round(10*time.Millisecond))
	eventually(t, "all to be marked", func() bool {
		return one[int](replica, `SELECT count(*)::int FROM outbox_events WHERE processed_at IS NULL`) == 0
	})
	program.Process.Signal(os.Interrupt)
	if err := program.Wait(); err != nil {
		t.Errorf("the relay: %v", err)
	}
}

func startRelay(t *testing.T, primary, standby *throwaway.Server, receiver string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "cdc-relay")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/cdc-relay").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v: %s", err, out)
	}
	config := filepath.Join(dir, "cdc-relay.yaml")
	text := fmt.Sprintf(`
database: { url: "postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&target_session_attrs=read-write&connect_timeout=2" }
destinations: [ { name: main, url: %q, secrets: [ secret ], allow_private_networks: true } ]
`, primary.Port(), standby.Port(), receiver)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--config", config, "run")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

func connect(t *testing.T, server *throwaway.Server) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func insert(t *testing.T, conn *pgx.Conn, rows int) {
	t.Helper()
	exec1(t, conn, fmt.Sprintf(`INSERT INTO outbox_events (id, payload) SELECT gen_random_uuid(), '{}' FROM generate_series(1, %d)`, rows))
}

func one[T any](conn *pgx.Conn, sql string) (v T) {
	conn.QueryRow(context.Background(), sql).Scan(&v)
	return v
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !condition(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// counter is a receiver that counts ids.
type counter struct {
	mu  sync.Mutex
	ids map[string]int
	n   int
}

func (c *counter) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids[r.Header.Get("Idempotency-Key")]++
	c.n++
}

func (c *counter) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ids)
}

func (c *counter) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}
