package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/test/database"
)

// TestInboxDuplicateWhileTakenUp: a duplicate that is counted at the very moment when a
// worker takes its event up costs the event neither an attempt nor the wait for the
// end of its claim.
func TestInboxDuplicateWhileTakenUp(t *testing.T) {
	t.Parallel()
	d := database.New(t)
	pool, err := pgxpool.New(t.Context(), d.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	tables := inbox.Tables{Inbox: pgx.Identifier{"public", "webhook_inbox"}, Schema: "cdc_relay"}
	if err := inbox.Migrate(t.Context(), pool, tables); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, `INSERT INTO webhook_inbox (id, partner_name, partner_event_id, payload, status) VALUES (gen_random_uuid(), 'shop', 'evt-1', '{}', 'PENDING')`)
	locked := &lockedRow{Pool: pool, t: t, taken: make(chan pgx.Tx, 1)}
	processor, err := inbox.NewProcessor(inbox.ProcessorOptions{Database: locked, Tables: tables, Workers: 1, Schedule: []time.Duration{time.Second}, Lease: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- processor.Run(ctx) }()
	defer func() {
		stop()
		<-done
	}()
	duplicate := <-locked.taken
	eventually(t, "the worker to wait for the row", func() bool {
		return database.One[int](t, d, `SELECT count(*)::int FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database()`) == 1
	})
	if err := duplicate.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the event to be processed", func() bool {
		return database.One[string](t, d, `SELECT status FROM webhook_inbox`) == "PROCESSED"
	})
	if attempts := database.One[int](t, d, `SELECT attempts FROM webhook_inbox`); attempts != 1 {
		t.Errorf("%d attempts, want 1", attempts)
	}
}

// lockedRow is a pool of which another transaction locks the event's row between its
// claim and the attempt.
type lockedRow struct {
	*pgxpool.Pool
	t     *testing.T
	taken chan pgx.Tx
	once  bool
}

func (l *lockedRow) Begin(ctx context.Context) (pgx.Tx, error) {
	if !l.once { // there is one worker
		l.once = true
		tx, err := l.Pool.Begin(ctx)
		if err != nil {
			l.t.Error(err)
		}
		if _, err := tx.Exec(ctx, `UPDATE webhook_inbox SET duplicate_count = duplicate_count + 1`); err != nil {
			l.t.Error(err)
		}
		l.taken <- tx
	}
	return l.Pool.Begin(ctx)
}
