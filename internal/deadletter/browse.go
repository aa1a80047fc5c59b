package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Filter says which dead letters are meant. Its zero value means all.
type Filter struct {
	IDs         []int64   `json:"ids,omitempty"`
	OutboxID    string    `json:"outbox_id,omitempty"`
	OutboxIDs   []string  `json:"outbox_ids,omitempty"` // one of these
	Destination string    `json:"destination,omitempty"`
	EventType   string    `json:"event_type,omitempty"`
	AggregateID string    `json:"aggregate_id,omitempty"`
	States      []State   `json:"states,omitempty"`
	Since       time.Time `json:"since,omitzero"` // created at or after
	Until       time.Time `json:"until,omitzero"` // created before
	ReplayID    string    `json:"replay_id,omitempty"`
	ErrorText   string    `json:"error,omitempty"` // part of the reason, or of an attempt's error or answer
	AfterID     int64     `json:"after,omitempty"` // for paging: only rows with a higher id, or a lower one with Newest
	Newest      bool      `json:"-"`               // List gives the newest first
}

// Narrows tells whether the filter leaves anything out, its states aside.
func (f Filter) Narrows() bool {
	return len(f.IDs) > 0 || f.OutboxID != "" || len(f.OutboxIDs) > 0 || f.Destination != "" || f.EventType != "" || f.AggregateID != "" ||
		f.ReplayID != "" || f.ErrorText != "" || !f.Since.IsZero() || !f.Until.IsZero()
}

// where gives the condition and its parameters, numbered from $1.
func (f Filter) where() (string, []any) {
	after := "d.id > $1"
	if f.Newest {
		after = "($1 = 0 OR d.id < $1)"
	}
	conditions, args := []string{after}, []any{f.AfterID}
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(args))))
	}
	if len(f.IDs) > 0 {
		add("d.id = ANY (?)", f.IDs)
	}
	if f.OutboxID != "" {
		add("d.outbox_id = ?", f.OutboxID)
	}
	if len(f.OutboxIDs) > 0 {
		add("d.outbox_id = ANY (?)", f.OutboxIDs)
	}
	if f.Destination != "" {
		add("d.destination = ?", f.Destination)
	}
	if f.EventType != "" {
		add("d.event_type = ?", f.EventType)
	}
	if f.AggregateID != "" {
		add("d.aggregate_id = ?", f.AggregateID)
	}
	if f.ReplayID != "" {
		add("d.replay_id = ?", f.ReplayID)
	}
	if len(f.States) > 0 {
		states := make([]string, len(f.States))
		for i, s := range f.States {
			states[i] = string(s)
		}
		add("d.state = ANY (?)", states)
	}
	if !f.Since.IsZero() {
		add("d.created_at >= ?", f.Since)
	}
	if !f.Until.IsZero() {
		add("d.created_at < ?", f.Until)
	}
	if f.ErrorText != "" {
		// Collation C folds the case of ASCII letters alone, at a third of the cost.
		const part = `position(lower(? COLLATE "C") IN lower(%s COLLATE "C")) > 0`
		add("("+fmt.Sprintf(part, "d.reason")+" OR "+fmt.Sprintf(part, "d.attempts::text")+")", f.ErrorText)
	}
	return strings.Join(conditions, " AND "), args
}

// Entry is a dead letter for people to read.
type Entry struct {
	ID            int64            `json:"id"`
	OutboxID      string           `json:"outbox_id"`
	Destination   string           `json:"destination"`
	State         State            `json:"state"`
	Reason        string           `json:"reason"`
	CommitLSN     string           `json:"commit_lsn"`
	Index         int64            `json:"tx_index"`
	CommittedAt   time.Time        `json:"committed_at"`
	AggregateType string           `json:"aggregate_type,omitempty"`
	AggregateID   string           `json:"aggregate_id,omitempty"`
	EventType     string           `json:"event_type,omitempty"`
	AttemptCount  int              `json:"attempt_count"`
	NextAttemptAt *time.Time       `json:"next_attempt_at,omitempty"`
	ReplayID      string           `json:"replay_id,omitempty"`
	CreatedAt     time.Time        `json:"created_at"`
	UpdatedAt     time.Time        `json:"updated_at"`
	Attempts      []outbox.Attempt `json:"attempts,omitempty"` // by Get only
	Payload       []byte           `json:"-"`
	Headers       string           `json:"headers,omitempty"`
}

const entryColumns = `d.id, d.outbox_id, d.destination, d.state, d.reason, d.commit_lsn::text, d.tx_index, d.committed_at,
	coalesce(d.aggregate_type, ''), coalesce(d.aggregate_id, ''), coalesce(d.event_type, ''), d.attempt_count, d.next_attempt_at,
	coalesce(d.replay_id, ''), d.created_at, d.updated_at`

func (e *Entry) fields() []any {
	return []any{
		&e.ID, &e.OutboxID, &e.Destination, &e.State, &e.Reason, &e.CommitLSN, &e.Index, &e.CommittedAt,
		&e.AggregateType, &e.AggregateID, &e.EventType, &e.AttemptCount, &e.NextAttemptAt, &e.ReplayID, &e.CreatedAt, &e.UpdatedAt,
	}
}

// List gives the dead letters that fit, in the order of their ids, at most limit.
func (s *Store) List(ctx context.Context, f Filter, limit int) ([]Entry, error) {
	where, args := f.where()
	order := "d.id"
	if f.Newest {
		order += " DESC"
	}
	rows, err := s.db.Query(ctx, fmt.Sprintf(`SELECT %s FROM %s d WHERE %s ORDER BY %s LIMIT %d`, entryColumns, s.table, where, order, limit), args...)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) { return e, row.Scan(e.fields()...) })
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return entries, nil
}

// ErrNotFound says that no dead letter has the id.
var ErrNotFound = errors.New("no such dead letter")

// Get gives one dead letter whole.
func (s *Store) Get(ctx context.Context, id int64) (Entry, error) {
	var e Entry
	var attempts []byte
	rows, err := s.db.Query(ctx, `SELECT `+entryColumns+`, d.attempts, d.payload, coalesce(d.headers, '') FROM `+s.table+` d WHERE d.id = $1`, id)
	if err == nil {
		e, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (e Entry, err error) {
			return e, row.Scan(append(e.fields(), &attempts, &e.Payload, &e.Headers)...)
		})
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return e, fmt.Errorf("%w: %d", ErrNotFound, id)
	}
	if err != nil {
		return e, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	if err := json.Unmarshal(attempts, &e.Attempts); err != nil {
		return e, fmt.Errorf("read attempts of dead letter %d: %w", id, err)
	}
	return e, nil
}

// Tally counts dead letters of one destination, event type and state.
type Tally struct {
	Destination string `json:"destination"`
	EventType   string `json:"event_type"`
	State       State  `json:"state"`
	Count       int    `json:"count"`
}

// Tallies counts the dead letters that fit.
func (s *Store) Tallies(ctx context.Context, f Filter) ([]Tally, error) {
	where, args := f.where()
	rows, err := s.db.Query(ctx, `SELECT d.destination, coalesce(d.event_type, ''), d.state, count(*) FROM `+s.table+` d WHERE `+where+` GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`, args...)
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	tallies, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Tally, err error) {
		return t, row.Scan(&t.Destination, &t.EventType, &t.State, &t.Count)
	})
	if err != nil {
		return nil, fmt.Errorf("count dead letters: %w", err)
	}
	return tallies, nil
}
