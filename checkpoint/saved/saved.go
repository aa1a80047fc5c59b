// Package saved keeps LSNs from which events can be sent again: one each minute, by
// itself, and others by name. A name can hold its WAL too, by a copied slot, so that
// rows which are gone from the table can be read again.
//
// A saved LSN is the watermark of its time: everything committed before it was
// settled, so what comes after it is what a receiver may lack that was well then.
//
// The package starts no goroutine but that of Keeper.Run. A Store is safe for
// concurrent use.
package saved

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Database is where they are kept. A *pgxpool.Pool is one.
type Database interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Store is the checkpoints table.
type Store struct {
	db    Database
	table string // quoted
	slot  string // the relay's
}

// NewStore returns the store in the given schema, for the relay of a slot.
func NewStore(db Database, schema, slot string) *Store {
	return &Store{db: db, table: pgx.Identifier{schema, "checkpoints"}.Sanitize(), slot: slot}
}

// Checkpoint is a saved LSN.
type Checkpoint struct {
	ID        int64     `json:"id"`
	Name      string    `json:"name,omitempty"` // "" for those saved each minute
	LSN       string    `json:"lsn"`
	SavedAt   time.Time `json:"saved_at"`
	Label     string    `json:"label,omitempty"`
	HeldSlot  string    `json:"held_slot,omitempty"`
	HeldBytes int64     `json:"held_bytes,omitempty"` // WAL that the held slot keeps
	Lost      bool      `json:"lost,omitempty"`       // the held slot is gone or of no use
	InUse     bool      `json:"in_use,omitempty"`     // somebody reads from the held slot
}

// ErrNotFound says that there is no such checkpoint.
var ErrNotFound = errors.New("no such checkpoint")

// ErrExists says that the name is taken.
var ErrExists = errors.New("there is a checkpoint of this name already")

// ErrNoSlot says that the relay's slot, whose position would be saved, isn't there.
var ErrNoSlot = errors.New("the relay's slot does not exist")

// Auto saves the watermark without a name.
func (s *Store) Auto(ctx context.Context, watermark outbox.LSN) error {
	if _, err := s.db.Exec(ctx, `INSERT INTO `+s.table+` (lsn) VALUES ($1::text::pg_lsn)`, watermark.String()); err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	return nil
}

// Save saves the slot's confirmed position under a name. With hold the slot is
// copied, and the copy keeps the WAL from there on: until Drop, or until a limit.
func (s *Store) Save(ctx context.Context, name, label string, hold bool) (Checkpoint, error) {
	var id int64
	err := s.db.QueryRow(ctx, `INSERT INTO `+s.table+` (name, label, lsn) SELECT $1, nullif($2, ''), confirmed_flush_lsn
		FROM pg_replication_slots WHERE slot_name = $3 AND confirmed_flush_lsn IS NOT NULL RETURNING id`, name, label, s.slot).Scan(&id)
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Checkpoint{}, fmt.Errorf("save checkpoint %q: %w: %s", name, ErrNoSlot, s.slot)
	case errors.As(err, &pg) && pg.Code == "23505": // unique_violation
		return Checkpoint{}, fmt.Errorf("save checkpoint %q: %w", name, ErrExists)
	case err != nil:
		return Checkpoint{}, fmt.Errorf("save checkpoint %q: %w", name, err)
	}
	if hold {
		if err := s.hold(ctx, id); err != nil {
			_, undo := s.db.Exec(ctx, `DELETE FROM `+s.table+` WHERE id = $1`, id)
			return Checkpoint{}, errors.Join(fmt.Errorf("save checkpoint %q: %w", name, err), undo)
		}
	}
	return s.Get(ctx, name)
}

// hold copies the relay's slot. The copy begins at the slot's confirmed position of
// this moment, which may have moved on: the checkpoint moves with it.
//
// https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
func (s *Store) hold(ctx context.Context, id int64) error {
	const longest = 63 // of a slot's name
	suffix := fmt.Sprintf("_held_%d", id)
	held := s.slot[:min(len(s.slot), longest-len(suffix))] + suffix
	if _, err := s.db.Exec(ctx, `SELECT pg_copy_logical_replication_slot($1::text::name, $2::text::name)`, s.slot, held); err != nil {
		return fmt.Errorf("copy slot %s: %w", s.slot, err)
	}
	_, err := s.db.Exec(ctx, `UPDATE `+s.table+` SET held_slot = $2::text, lsn = (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $2::text)
		WHERE id = $1`, id, held)
	if err != nil {
		_, undo := s.db.Exec(ctx, `SELECT pg_drop_replication_slot($1::text::name)`, held)
		return errors.Join(fmt.Errorf("note held slot %s: %w", held, err), undo)
	}
	return nil
}

// Which says which checkpoints List gives.
type Which struct {
	Named bool // only those with a name
	Held  bool // only those that hold their WAL
	Limit int  // the latest; 0 for all
}

// List gives checkpoints, the latest first.
func (s *Store) List(ctx context.Context, which Which) ([]Checkpoint, error) {
	conditions := []string{"true"}
	if which.Named {
		conditions = append(conditions, "c.name IS NOT NULL")
	}
	if which.Held {
		conditions = append(conditions, "c.held_slot IS NOT NULL")
	}
	limit := ""
	if which.Limit > 0 {
		limit = fmt.Sprintf(" LIMIT %d", which.Limit)
	}
	return s.read(ctx, strings.Join(conditions, " AND ")+" ORDER BY c.id DESC"+limit)
}

// Get gives the checkpoint of a name.
func (s *Store) Get(ctx context.Context, name string) (Checkpoint, error) {
	found, err := s.read(ctx, "c.name = $1", name)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	if err != nil {
		return Checkpoint{}, err
	}
	return found[0], nil
}

func (s *Store) read(ctx context.Context, where string, args ...any) ([]Checkpoint, error) {
	rows, err := s.db.Query(ctx, `SELECT c.id, coalesce(c.name, ''), c.lsn::text, c.saved_at, coalesce(c.label, ''), coalesce(c.held_slot, ''),
		CASE WHEN r.restart_lsn IS NULL THEN 0 ELSE pg_wal_lsn_diff(
			CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END, r.restart_lsn)::bigint END,
		c.held_slot IS NOT NULL AND (r.slot_name IS NULL OR coalesce(r.wal_status = 'lost', false)), coalesce(r.active, false)
		FROM `+s.table+` c LEFT JOIN pg_replication_slots r ON r.slot_name = c.held_slot WHERE `+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read checkpoints: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Checkpoint, err error) {
		return c, row.Scan(&c.ID, &c.Name, &c.LSN, &c.SavedAt, &c.Label, &c.HeldSlot, &c.HeldBytes, &c.Lost, &c.InUse)
	})
	if err != nil {
		return nil, fmt.Errorf("read checkpoints: %w", err)
	}
	return found, nil
}

// Drop forgets a checkpoint, and lets go of the WAL that it holds.
func (s *Store) Drop(ctx context.Context, name string) error {
	c, err := s.Get(ctx, name)
	if err != nil {
		return err
	}
	if err := s.release(ctx, c.HeldSlot); err != nil {
		return fmt.Errorf("drop checkpoint %q: %w", name, err)
	}
	if _, err := s.db.Exec(ctx, `DELETE FROM `+s.table+` WHERE id = $1`, c.ID); err != nil {
		return fmt.Errorf("drop checkpoint %q: %w", name, err)
	}
	return nil
}

// LetGo drops a checkpoint's held slot, whoever reads from it, and keeps its LSN.
func (s *Store) LetGo(ctx context.Context, c Checkpoint) error {
	_, err := s.db.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, c.HeldSlot)
	if err == nil {
		err = s.release(ctx, c.HeldSlot)
	}
	if err == nil {
		_, err = s.db.Exec(ctx, `UPDATE `+s.table+` SET held_slot = NULL WHERE id = $1`, c.ID)
	}
	if err != nil {
		return fmt.Errorf("let go of the WAL that checkpoint %q holds: %w", c.Name, err)
	}
	return nil
}

// release drops a held slot; one that is gone already is none to drop.
func (s *Store) release(ctx context.Context, held string) error {
	if held == "" {
		return nil
	}
	_, err := s.db.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, held)
	if err != nil {
		return fmt.Errorf("drop slot %s: %w", held, err)
	}
	return nil
}

// Trim forgets the checkpoints without a name that are older than kept.
func (s *Store) Trim(ctx context.Context, kept time.Duration) error {
	_, err := s.db.Exec(ctx, `DELETE FROM `+s.table+` WHERE name IS NULL AND saved_at < now() - make_interval(secs => $1)`, kept.Seconds())
	if err != nil {
		return fmt.Errorf("trim checkpoints: %w", err)
	}
	return nil
}

// ParseLSN reads an LSN as people write it: two hexadecimal numbers of up to eight
// digits with a slash between.
func ParseLSN(text string) (outbox.LSN, error) {
	high, low, _ := strings.Cut(text, "/")
	h, err := strconv.ParseUint(high, 16, 32)
	l, lowErr := strconv.ParseUint(low, 16, 32)
	if err != nil || lowErr != nil {
		return 0, fmt.Errorf("%q is not an LSN, such as 16/B374D848", text)
	}
	return outbox.LSN(h<<32 | l), nil
}
