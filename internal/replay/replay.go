// Package replay sends again what was delivered before: from an LSN, a checkpoint
// or a time on, with the same ids, in the order of the commits, through the lanes of
// the running relay.
//
//	Store.Plan ─► Store.Create ─► Runner ─► tableSource │ walSource ─► Resend ─► dispatcher
//	                                 ▲                                              │
//	                   Runner.Settled └──── Store.Record (counts, in the settle ◄───┘
//	                                        transaction)
//
// A replay is a job in a table. What is to be sent is read from the delivery log,
// joined to the outbox rows; where rows are gone, the events come from the WAL that
// a checkpoint's held slot keeps. The job's cursor moves behind what has an outcome,
// and an outcome is counted in the transaction that records it, so that a job goes
// on after a crash and its totals are right.
//
// A replay doesn't touch the relay's slot, nor processed_at. Runner.Run is its only
// goroutine, besides that of a WAL reader for as long as a job needs it.
package replay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/outboxrow"
)

// State is where a job stands.
type State string

// The states of a job.
const (
	Queued    State = "QUEUED"
	Running   State = "RUNNING"
	Done      State = "DONE" // everything has an outcome; what is parked may still follow
	Cancelled State = "CANCELLED"
	Failed    State = "FAILED"
)

// Database is where jobs are kept and events are read. A *pgxpool.Pool is one.
type Database interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Options say whose events are meant.
type Options struct {
	Database    Database
	Schema      string // of the relay's own tables
	Slot        string
	Outbox      catalog.Name
	Columns     outboxrow.Columns
	DeliveryLog bool // is kept
	Checkpoints *saved.Store
}

// Store is the replays table, and what jobs are made from.
type Store struct {
	o Options

	replays, deliveries, letters, trimmed string // quoted names
}

// NewStore returns the store of one relay.
func NewStore(o Options) *Store {
	name := func(table string) string { return pgx.Identifier{o.Schema, table}.Sanitize() }
	return &Store{o: o, replays: name("replays"), deliveries: name("deliveries"), letters: name("dead_letters"), trimmed: name("trimmed")}
}

// Filter narrows a replay. Its zero value means everything.
type Filter struct {
	Since        *time.Time `json:"since,omitempty"` // committed at or after
	Until        *time.Time `json:"until,omitempty"` // committed before
	Destinations []string   `json:"destinations,omitempty"`
	EventTypes   []string   `json:"event_types,omitempty"` // with * for any text
	AggregateID  string     `json:"aggregate_id,omitempty"`
}

// ofRows tells whether it takes the row to know what fits.
func (f *Filter) ofRows() bool { return len(f.EventTypes) > 0 || f.AggregateID != "" }

// Job is a replay.
type Job struct {
	ID        string     `json:"id"`
	State     State      `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Source    Source     `json:"source"`
	HeldSlot  string     `json:"held_slot,omitempty"`
	FromLSN   string     `json:"from_lsn"`
	UntilLSN  string     `json:"until_lsn"`
	Rate      float64    `json:"rate"` // events a second; 0 for no limit
	Total     int64      `json:"total"`
	Delivered int64      `json:"delivered"`
	Parked    int64      `json:"parked"`
	Dead      int64      `json:"dead"`
	Skipped   int64      `json:"skipped"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Filter

	cursor cursor
}

// Over tells whether nothing more will come of the job.
func (j *Job) Over() bool {
	return j.State == Cancelled || j.State == Failed || j.State == Done && j.Parked <= 0
}

// Source is where the events come from.
type Source string

// The sources of a replay.
const (
	FromTable Source = "table" // the delivery log and the outbox rows
	FromWAL   Source = "wal"   // a held slot
)

// cursor is the last delivery of which it and all before it have an outcome.
type cursor struct {
	lsn         string
	index       int64
	destination string
}

const jobColumns = `id, state, reason, source, coalesce(held_slot, ''), from_lsn::text, until_lsn::text, since, until, destinations, event_types,
	coalesce(aggregate_id, ''), rate, total, delivered, parked, dead, skipped, created_at, started_at, ended_at,
	cursor_lsn::text, cursor_index, cursor_destination`

func scanJob(row pgx.CollectableRow) (j Job, err error) {
	return j, row.Scan(&j.ID, &j.State, &j.Reason, &j.Source, &j.HeldSlot, &j.FromLSN, &j.UntilLSN, &j.Since, &j.Until, &j.Destinations, &j.EventTypes,
		&j.AggregateID, &j.Rate, &j.Total, &j.Delivered, &j.Parked, &j.Dead, &j.Skipped, &j.CreatedAt, &j.StartedAt, &j.EndedAt,
		&j.cursor.lsn, &j.cursor.index, &j.cursor.destination)
}

// ErrNotFound says that no job has the id.
var ErrNotFound = errors.New("no such replay")

// Get gives one job.
func (s *Store) Get(ctx context.Context, id string) (Job, error) {
	jobs, err := s.list(ctx, `WHERE id = $1`, id)
	if err == nil && len(jobs) == 0 {
		err = fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if err != nil {
		return Job{}, err
	}
	return jobs[0], nil
}

// List gives the latest jobs, the latest first.
func (s *Store) List(ctx context.Context, limit int) ([]Job, error) {
	return s.list(ctx, `ORDER BY created_at DESC LIMIT $1`, limit)
}

// next gives the job that is to be worked on, if there is one.
func (s *Store) next(ctx context.Context) (*Job, error) {
	jobs, err := s.list(ctx, `WHERE state IN ('QUEUED', 'RUNNING') ORDER BY created_at, id LIMIT 1`)
	if err != nil || len(jobs) == 0 {
		return nil, err
	}
	return &jobs[0], nil
}

func (s *Store) list(ctx context.Context, tail string, args ...any) ([]Job, error) {
	rows, err := s.o.Database.Query(ctx, `SELECT `+jobColumns+` FROM `+s.replays+` `+tail, args...)
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}
	jobs, err := pgx.CollectRows(rows, scanJob)
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}
	return jobs, nil
}

// Create makes a job of a plan. A running relay takes it up within a second.
func (s *Store) Create(ctx context.Context, id string, p Plan, rate float64) error {
	_, err := s.o.Database.Exec(ctx, `INSERT INTO `+s.replays+` (id, source, held_slot, from_lsn, until_lsn, since, until, destinations, event_types, aggregate_id, rate, total)
		VALUES ($1, $2, nullif($3, ''), $4::text::pg_lsn, $5::text::pg_lsn, $6, $7, $8, $9, nullif($10, ''), $11, $12)`,
		id, p.Source, p.HeldSlot, p.FromLSN, p.UntilLSN, p.Since, p.Until, nonNil(p.Destinations), nonNil(p.EventTypes), p.AggregateID, rate, p.Total)
	if err != nil {
		return fmt.Errorf("create replay: %w", err)
	}
	return nil
}

func nonNil(list []string) []string { return append([]string{}, list...) }

// Cancel ends a job: nothing more of it is taken up. What is with the dispatcher is
// still sent; what is parked is left to the caller.
func (s *Store) Cancel(ctx context.Context, id string) (Job, error) {
	_, err := s.o.Database.Exec(ctx, `UPDATE `+s.replays+` SET state = 'CANCELLED', ended_at = now() WHERE id = $1 AND (state IN ('QUEUED', 'RUNNING') OR parked > 0)`, id)
	if err != nil {
		return Job{}, fmt.Errorf("cancel replay %s: %w", id, err)
	}
	return s.Get(ctx, id)
}

// Record counts the outcomes of jobs: a checkpoint.Recorder.
func (s *Store) Record(ctx context.Context, tx pgx.Tx, batch []outbox.Outcome) error {
	counts := make(map[string]*[4]int64)
	for _, o := range batch {
		if o.ReplayID == "" {
			continue
		}
		count := counts[o.ReplayID]
		if count == nil {
			count = new([4]int64)
			counts[o.ReplayID] = count
		}
		parkedBefore := o.LetterID != 0
		if parkedBefore && o.Fate != outbox.Scheduled {
			count[1]--
		}
		switch {
		case o.Fate == outbox.Delivered:
			count[0]++
		case o.Fate == outbox.Scheduled && !parkedBefore:
			count[1]++
		case o.Fate == outbox.Dead:
			count[2]++
		case o.Fate == outbox.Unmatched:
			count[3]++
		}
	}
	for id, n := range counts {
		_, err := tx.Exec(ctx, `UPDATE `+s.replays+` SET delivered = delivered + $2, parked = parked + $3, dead = dead + $4, skipped = skipped + $5 WHERE id = $1`,
			id, n[0], n[1], n[2], n[3])
		if err != nil {
			return fmt.Errorf("count outcomes of replay %s: %w", id, err)
		}
	}
	return nil
}
