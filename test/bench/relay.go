package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// subject is a relay under measurement, with a database of its own.
type subject struct {
	bench *bench
	name  string
	url   string
	conn  *pgx.Conn
	cmd   *exec.Cmd
	log   *os.File
	used  time.Duration // of the processors, by the last that has ended
}

// start makes a database and starts a relay that streams it. rest is the config
// below the database.
func (b *bench) start(ctx context.Context, name, rest string) (*subject, error) {
	s, err := b.database(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := s.launch(rest); err != nil {
		return nil, err
	}
	return s, s.awaitSlot(ctx)
}

// database makes a subject's database.
func (b *bench) database(ctx context.Context, name string) (*subject, error) {
	admin, err := pgx.Connect(ctx, b.server.URL)
	if err != nil {
		return nil, err
	}
	defer admin.Close(ctx)
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	s := &subject{bench: b, name: name, url: strings.Replace(b.server.URL, "/postgres?", "/"+name+"?", 1)}
	s.conn, err = pgx.Connect(ctx, s.url)
	return s, err
}

// launch writes the config and starts the program.
func (s *subject) launch(rest string) (err error) {
	config := filepath.Join(s.bench.dir, s.name+".yaml")
	text := fmt.Sprintf("database: { url: %q }\nslot: { name: %[2]s, publication: %[2]s }\nlog: { level: warn }\n%[3]s", s.url, s.name, rest)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	if s.log, err = os.Create(filepath.Join(s.bench.dir, s.name+".log")); err != nil {
		return err
	}
	s.cmd = exec.Command(s.bench.program, "--config", config, "run")
	s.cmd.Stderr = s.log
	return s.cmd.Start()
}

func (s *subject) awaitSlot(ctx context.Context) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		// A slot is active while it is being made, too.
		var streams bool
		err := s.conn.QueryRow(ctx, `SELECT s.active AND NOT m.making FROM pg_replication_slots s JOIN cdc_relay.slot_state m USING (slot_name)
			WHERE slot_name = $1`, s.name).Scan(&streams)
		if err == nil && streams {
			return nil
		}
	}
	return fmt.Errorf("the relay doesn't stream: see %s", s.log.Name())
}

// replaceBy ends the relay and points a poller at its table.
func (s *subject) replaceBy(ctx context.Context, p *poller, destination string) error {
	err := s.end()
	p.url, p.destination = s.url, destination
	_, indexed := s.conn.Exec(ctx, `CREATE INDEX ON outbox_events (created_at) WHERE processed_at IS NULL`)
	return errors.Join(err, indexed)
}

// end ends the program.
func (s *subject) end() error {
	s.cmd.Process.Signal(syscall.SIGTERM)
	err := s.cmd.Wait()
	s.used = s.cmd.ProcessState.UserTime() + s.cmd.ProcessState.SystemTime()
	s.cmd = nil
	return errors.Join(err, s.log.Close())
}

// until waits until a query gives true.
func (s *subject) until(ctx context.Context, what, query string, args ...any) error {
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var done bool
		if err := s.conn.QueryRow(ctx, query, args...).Scan(&done); err != nil || done {
			return err
		}
	}
	return fmt.Errorf("waited five minutes in vain for %s: see %s", what, s.name)
}

// flushed is the server's position.
func (s *subject) flushed(ctx context.Context) (lsn string, err error) {
	err = s.conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&lsn)
	return lsn, err
}

// confirmed waits until everything up to a position is settled and confirmed.
func (s *subject) confirmed(ctx context.Context, lsn string) error {
	return s.until(ctx, "the confirmation", `SELECT confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, s.name, lsn)
}

// stop ends the program and drops its slot, if it has one.
func (s *subject) stop(ctx context.Context) error {
	var err error
	if s.cmd != nil {
		err = s.end()
	}
	_, dropped := s.conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, s.name)
	return errors.Join(err, dropped, s.conn.Close(ctx))
}

// peak is the most memory that the relay has used, in bytes.
func (s *subject) peak() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no VmHWM in /proc")
}

// held is how much WAL the slot's confirmed position holds back, in bytes.
func (s *subject) held(ctx context.Context) (bytes int64, err error) {
	err = s.conn.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), confirmed_flush_lsn)::bigint
		FROM pg_replication_slots WHERE slot_name = $1`, s.name).Scan(&bytes)
	return bytes, err
}
