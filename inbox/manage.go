package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Manager is what people do with stored events.
type Manager struct {
	db    Database
	table string // quoted
}

// NewManager returns the manager of an inbox.
func NewManager(db Database, t Tables) *Manager { return &Manager{db: db, table: t.Inbox.Sanitize()} }

// Filter says which stored events are meant. Its zero value means all.
type Filter struct {
	IDs       []string  `json:"ids,omitempty"`
	Partner   string    `json:"partner,omitempty"`
	EventID   string    `json:"partner_event_id,omitempty"` // the partner's
	EventType string    `json:"event_type,omitempty"`
	EntityKey string    `json:"entity_key,omitempty"`
	Statuses  []Status  `json:"statuses,omitempty"`
	Since     time.Time `json:"since,omitzero"`  // received at or after
	Until     time.Time `json:"until,omitzero"`  // received before
	AfterSeq  int64     `json:"after,omitempty"` // for paging: only rows with a higher number, or a lower one with Newest
	Newest    bool      `json:"-"`               // List gives the newest first
}

// Narrows tells whether the filter leaves anything out, its statuses aside.
func (f Filter) Narrows() bool {
	return len(f.IDs) > 0 || f.Partner != "" || f.EventID != "" || f.EventType != "" || f.EntityKey != "" || !f.Since.IsZero() || !f.Until.IsZero()
}

// Stored is a stored event for people to read.
type Stored struct {
	ID             string          `json:"id"`
	Seq            int64           `json:"seq"`
	Partner        string          `json:"partner"`
	EventID        string          `json:"partner_event_id"`
	EventType      string          `json:"event_type,omitempty"`
	EntityKey      string          `json:"entity_key,omitempty"`
	Status         Status          `json:"status"`
	Outcome        string          `json:"outcome,omitempty"`
	Verified       bool            `json:"signature_verified"`
	ReceivedAt     time.Time       `json:"received_at"`
	ProcessedAt    *time.Time      `json:"processed_at,omitempty"`
	AttemptCount   int             `json:"attempts"`
	DeferCount     int             `json:"defer_count,omitempty"`
	NextAttemptAt  *time.Time      `json:"next_attempt_at,omitempty"`
	LastError      string          `json:"last_error,omitempty"`
	DuplicateCount int             `json:"duplicate_count,omitempty"`
	Flagged        string          `json:"flagged,omitempty"`
	History        json.RawMessage `json:"history,omitempty"` // by Get only
	Payload        json.RawMessage `json:"payload,omitempty"` // by Get only
	Headers        json.RawMessage `json:"headers,omitempty"` // by Get only
}

// Attempt is what became of one attempt, or of a person's decision.
type Attempt struct {
	At      string `json:"at"`
	Attempt int    `json:"attempt"`
	What    string `json:"what"`
	Reason  string `json:"reason"`
}

// Attempts reads the history.
func (s Stored) Attempts() []Attempt {
	var attempts []Attempt
	if err := json.Unmarshal(s.History, &attempts); err != nil {
		return nil // somebody else has written it
	}
	return attempts
}

const storedColumns = `i.id::text, i.seq, coalesce(i.partner_name, ''), coalesce(i.partner_event_id, ''), coalesce(i.event_type, ''), coalesce(i.entity_key, ''),
	coalesce(i.status, ''), coalesce(i.outcome, ''), coalesce(i.signature_verified, false), coalesce(i.received_at, localtimestamp), i.processed_at,
	i.attempts, i.defer_count, i.next_attempt_at, coalesce(i.last_error, ''), i.duplicate_count, coalesce(i.flagged, '')`

func (s *Stored) fields() []any {
	return []any{
		&s.ID, &s.Seq, &s.Partner, &s.EventID, &s.EventType, &s.EntityKey, &s.Status, &s.Outcome, &s.Verified, &s.ReceivedAt, &s.ProcessedAt,
		&s.AttemptCount, &s.DeferCount, &s.NextAttemptAt, &s.LastError, &s.DuplicateCount, &s.Flagged,
	}
}

// where gives the condition and its parameters, numbered from $1.
func (f Filter) where() (string, []any) {
	after := "i.seq > $1"
	if f.Newest {
		after = "($1 = 0 OR i.seq < $1)"
	}
	conditions, args := []string{after}, []any{f.AfterSeq}
	add := func(condition string, arg any) {
		args = append(args, arg)
		conditions = append(conditions, fmt.Sprintf(condition, len(args)))
	}
	if len(f.IDs) > 0 {
		add("i.id = ANY ($%d::text[]::uuid[])", f.IDs)
	}
	for column, value := range map[string]string{"partner_name": f.Partner, "partner_event_id": f.EventID, "event_type": f.EventType, "entity_key": f.EntityKey} {
		if value != "" {
			add("i."+column+" = $%d", value)
		}
	}
	if len(f.Statuses) > 0 {
		statuses := make([]string, len(f.Statuses))
		for i, s := range f.Statuses {
			statuses[i] = string(s)
		}
		add("i.status = ANY ($%d)", statuses)
	}
	if !f.Since.IsZero() {
		add("i.received_at >= $%d::timestamptz", f.Since)
	}
	if !f.Until.IsZero() {
		add("i.received_at < $%d::timestamptz", f.Until)
	}
	return strings.Join(conditions, " AND "), args
}

// List gives the events that fit, in the order of their arrival, at most limit.
func (m *Manager) List(ctx context.Context, f Filter, limit int) ([]Stored, error) {
	where, args := f.where()
	order := "i.seq"
	if f.Newest {
		order += " DESC"
	}
	rows, err := m.db.Query(ctx, fmt.Sprintf(`SELECT %s FROM %s i WHERE %s ORDER BY %s LIMIT %d`, storedColumns, m.table, where, order, limit), args...)
	if err != nil {
		return nil, fmt.Errorf("list inbound events: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Stored, err error) { return s, row.Scan(s.fields()...) })
	if err != nil {
		return nil, fmt.Errorf("list inbound events: %w", err)
	}
	return list, nil
}

// ErrNotFound says that no stored event has the id.
var ErrNotFound = errors.New("no such inbound event")

// Get gives one event whole.
func (m *Manager) Get(ctx context.Context, id string) (Stored, error) {
	var s Stored
	err := m.db.QueryRow(ctx, `SELECT `+storedColumns+`, i.history, i.payload, coalesce(i.headers, '{}') FROM `+m.table+` i WHERE i.id = $1::text::uuid`, id).
		Scan(append(s.fields(), &s.History, &s.Payload, &s.Headers)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if err != nil {
		return s, fmt.Errorf("read inbound event %s: %w", id, err)
	}
	return s, nil
}

// Tally counts stored events of one partner, type and status.
type Tally struct {
	Partner   string `json:"partner"`
	EventType string `json:"event_type"`
	Status    Status `json:"status"`
	Count     int    `json:"count"`
}

// Tallies counts the events that fit.
func (m *Manager) Tallies(ctx context.Context, f Filter) ([]Tally, error) {
	where, args := f.where()
	rows, err := m.db.Query(ctx, `SELECT coalesce(i.partner_name, ''), coalesce(i.event_type, ''), coalesce(i.status, ''), count(*) FROM `+m.table+` i WHERE `+where+`
		GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`, args...)
	if err != nil {
		return nil, fmt.Errorf("count inbound events: %w", err)
	}
	tallies, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Tally, err error) {
		return t, row.Scan(&t.Partner, &t.EventType, &t.Status, &t.Count)
	})
	if err != nil {
		return nil, fmt.Errorf("count inbound events: %w", err)
	}
	return tallies, nil
}

// Change is what one call has changed.
type Change struct {
	Count   int
	LastSeq int64 // of the last of them; Filter.AfterSeq of the next call
}

// Replay has events processed again, at most limit of them, the oldest first: those
// that are quarantined, deferred, or ended without an effect. Their attempts begin
// anew, and their history stays. One whose effect stands is not taken.
func (m *Manager) Replay(ctx context.Context, f Filter, limit int) (Change, error) {
	return m.change(ctx, "replay inbound events", f, limit,
		`(i.status IN ('QUARANTINED', 'DEFERRED') OR i.status = 'PROCESSED' AND i.outcome IN ('REJECTED', 'STALE', 'DISCARDED'))`,
		`status = 'PENDING', outcome = NULL, attempts = 0, next_attempt_at = NULL, claimed_until = NULL, deferred_since = NULL, defer_count = 0,
			processed_at = NULL, replay_count = i.replay_count + 1, history = i.history || jsonb_build_object('at', now(), 'what', 'REPLAY', 'reason', '')`)
}

// Discard decides that events shall have no effect, at most limit of them. The rows
// stay, so that they are recognised when they come again.
func (m *Manager) Discard(ctx context.Context, f Filter, reason string, limit int) (Change, error) {
	return m.change(ctx, "discard inbound events", f, limit, `i.status IN ('QUARANTINED', 'DEFERRED', 'PENDING')`,
		`status = 'PROCESSED', outcome = 'DISCARDED', processed_at = localtimestamp, next_attempt_at = NULL, last_error = @reason,
			history = i.history || jsonb_build_object('at', now(), 'what', 'DISCARDED', 'reason', @reason::text)`, reason)
}

func (m *Manager) change(ctx context.Context, what string, f Filter, limit int, condition, set string, reason ...string) (done Change, err error) {
	where, args := f.where()
	for _, text := range reason {
		args = append(args, text)
		set = strings.ReplaceAll(set, "@reason", fmt.Sprintf("$%d", len(args)))
	}
	err = m.db.QueryRow(ctx, fmt.Sprintf(`WITH changed AS (UPDATE %[1]s i SET %[2]s
			FROM (SELECT i.id FROM %[1]s i WHERE %[3]s AND %[4]s ORDER BY i.seq LIMIT %[5]d FOR UPDATE) l WHERE i.id = l.id RETURNING i.seq)
		SELECT count(*), coalesce(max(seq), 0) FROM changed`, m.table, set, where, condition, limit), args...).Scan(&done.Count, &done.LastSeq)
	if err != nil {
		return done, fmt.Errorf("%s: %w", what, err)
	}
	return done, nil
}
