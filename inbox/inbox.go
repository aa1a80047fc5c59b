// Package inbox takes in webhooks of partners: it verifies each over its raw bytes,
// stores it once, answers at once, and processes it later.
//
//	POST /webhooks/{partner} ─► Receiver: verify ─► INSERT … ON CONFLICT DO NOTHING ─► 200
//	                                                        │
//	Processor: claim ─► state machine ─► Handler ─► status ─┘   effect and status in one transaction
//
// What it guarantees: an acknowledged event is stored; of one event, however often
// and wherever it arrives, there is one row and, with an effect made in the
// transaction that Handler is given, one effect; events of one entity are processed
// one after the other, in the order of arrival, except that one which comes too early
// waits for its turn.
//
// NewHandler gives the http.Handler, NewProcessor what works on the stored events;
// Migrate creates their tables. Processor.Run starts the workers and waits for them.
package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/sql"
)

// Database is where the inbox is. A *pgxpool.Pool is one.
type Database interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Tables say where the inbox is kept.
type Tables struct {
	Inbox  pgx.Identifier // schema and table
	Schema string         // of the product's own tables, as cdc_relay
}

// States is the table of the entities' states.
func (t Tables) States() pgx.Identifier { return pgx.Identifier{t.Schema, "entity_states"} }

// SQL gives the statements that create what is missing of the tables.
func (t Tables) SQL() (string, error) {
	index := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, strings.ToLower(t.Inbox[len(t.Inbox)-1]))
	return sql.Inbox(t.Inbox.Sanitize(), index[:min(len(index), 50)], pgx.Identifier{t.Schema}.Sanitize())
}

// probe fails where something of the tables is missing.
func (t Tables) probe() string {
	return `SELECT i.id, i.partner_name, i.partner_event_id, i.payload, i.signature_verified, i.status, i.received_at, i.processed_at, i.seq, i.event_type,
			i.entity_key, i.body, i.body_sha256, i.headers, i.outcome, i.attempts, i.next_attempt_at, i.claimed_until, i.deferred_since, i.defer_count,
			i.replay_count, i.last_error, i.history, i.duplicate_count, i.last_seen_at, i.flagged, s.machine, s.entity_key, s.state, s.updated_at
		FROM ` + t.Inbox.Sanitize() + ` i, ` + t.States().Sanitize() + ` s LIMIT 0`
}

// Complete tells whether all of the tables is there, for the role to read.
func Complete(ctx context.Context, db Database, t Tables) (bool, error) {
	_, err := db.Exec(ctx, t.probe())
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "42703" || pg.Code == "3F000"): // no such table, column, schema
		return false, nil
	}
	return false, fmt.Errorf("look at the inbox: %w", err)
}

// Migrate creates what is missing of the tables. Where nothing is, it changes and
// locks nothing, and wants no more privileges than to read them.
func Migrate(ctx context.Context, db Database, t Tables) error {
	if complete, err := Complete(ctx, db, t); complete || err != nil {
		return err
	}
	statements, err := t.SQL()
	if err != nil {
		return err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("create the inbox: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	// Two that start at once would each find the table missing.
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(migrateLock)); err != nil {
		return fmt.Errorf("create the inbox: %w", err)
	}
	if _, err := tx.Exec(ctx, statements); err != nil {
		return fmt.Errorf("create the inbox: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("create the inbox: %w", err)
	}
	return nil
}

const migrateLock = 0x6364632f // "cdc/"

// Status is where a stored event stands.
type Status string

// The statuses of a stored event.
const (
	Pending     Status = "PENDING"
	Deferred    Status = "DEFERRED" // came too early; tried again when its entity moves, and now and then
	Processed   Status = "PROCESSED"
	Quarantined Status = "QUARANTINED" // given up; waits for a person
)

// Statuses lists them all.
func Statuses() []Status { return []Status{Pending, Deferred, Processed, Quarantined} }

// Event is a stored event on its way to a Handler.
type Event struct {
	ID         string // of the inbox's row; the idempotency key of its processing
	Partner    string
	EventID    string // the partner's
	Type       string
	EntityKey  string
	Payload    []byte // JSON, as Postgres writes it
	Body       []byte // as it came
	Verified   bool
	ReceivedAt time.Time
	Attempt    int // from 1
}

// Verdict is what becomes of an event.
type Verdict string

// The verdicts of a Handler.
const (
	Applied  Verdict = "APPLIED"
	Later    Verdict = "DEFERRED" // it came too early
	Rejected Verdict = "REJECTED" // it can never be applied
)

// Answer is a Handler's verdict, with its reason for people.
type Answer struct {
	Verdict Verdict
	Reason  string
}

// Handler makes an event's effect. What it does with tx is committed together with
// the event's status, or not at all. An error is a failed attempt, to be made again.
// It may be called from several goroutines, but never twice at once for one entity.
type Handler interface {
	Handle(ctx context.Context, tx pgx.Tx, e Event) (Answer, error)
}
