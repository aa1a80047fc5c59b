// Package deadletter keeps, in Postgres, the deliveries that failed: those given
// up, which wait for a person, and those parked for a later attempt.
//
// It starts no goroutine. A Store is safe for concurrent use.
package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// State is where a dead letter stands.
type State string

// The states of a dead letter.
const (
	Scheduled State = "SCHEDULED" // parked: a further attempt is due at next_attempt_at
	Dead      State = "DEAD"      // given up
	Delivered State = "DELIVERED" // a later attempt, or a replay, reached the receiver
	Discarded State = "DISCARDED" // somebody decided that it shall not be sent
)

// Store is the dead_letters table.
type Store struct {
	table string // quoted
}

// NewStore returns the store in the given schema.
func NewStore(schema string) *Store {
	return &Store{table: pgx.Identifier{schema, "dead_letters"}.Sanitize()}
}

// Record puts the outcomes that are dead or scheduled: a checkpoint.Recorder.
func (s *Store) Record(ctx context.Context, tx pgx.Tx, batch []outbox.Outcome) error {
	statements := &pgx.Batch{}
	for _, o := range batch {
		if o.Fate != outbox.Dead && o.Fate != outbox.Scheduled {
			continue
		}
		if err := s.queuePut(statements, o); err != nil {
			return err
		}
	}
	if statements.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, statements).Close(); err != nil {
		return fmt.Errorf("write dead letters: %w", err)
	}
	return nil
}

func (s *Store) queuePut(statements *pgx.Batch, o outbox.Outcome) error {
	attempts, err := json.Marshal(o.Attempts)
	if err != nil {
		return fmt.Errorf("encode attempts of event %s: %w", o.Event.ID, err)
	}
	if o.Attempts == nil {
		attempts = []byte("[]")
	}
	state, next := Dead, (*time.Time)(nil)
	if o.Fate == outbox.Scheduled {
		state, next = Scheduled, &o.NextAttempt
	}
	lane := (*string)(nil)
	if key, ordered := o.Event.Lane(); ordered && o.Ordered {
		lane = text(key)
	}
	e := o.Event
	statements.Queue(`INSERT INTO `+s.table+` (outbox_id, destination, state, reason, commit_lsn, tx_index, committed_at,
		lane, aggregate_type, aggregate_id, event_type, payload, payload_kind, headers, attempts, attempt_count, next_attempt_at)
		VALUES ($1, $2, $3, $4, $5::text::pg_lsn, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::jsonb, $16, $17)`,
		e.ID, o.Destination, string(state), o.Reason, e.Position.Commit.String(), int64(e.Position.Index), e.CommitTime,
		lane, text(e.AggregateType), nullable(e.AggregateID, e.HasAggregate), text(e.EventType),
		e.Payload, kindName(e.Kind), nullable(string(e.Headers), e.Headers != nil), string(attempts), o.Tries, next)
	return nil
}

func text(s string) *string { return nullable(s, s != "") }

func nullable(s string, present bool) *string {
	if !present {
		return nil
	}
	return &s
}

func kindName(k outbox.PayloadKind) string {
	switch k {
	case outbox.JSON:
		return "json"
	case outbox.Binary:
		return "binary"
	default:
		return "text"
	}
}
