// Package backlog finds what a new slot's stream can't hold: the outbox rows that
// were there, unsettled, when the slot was made, on the first start and whenever a
// slot was lost. They are sent before the stream goes on, in an order that keeps
// each aggregate's as well as the rows tell it.
//
// Create makes the slot and the backlog from one snapshot: what the snapshot sees
// is in the backlog, and the stream has everything else. For a slot that somebody
// else has made, there is no such snapshot: then the backlog is taken when the slot
// is first streamed, and a row that is in both is known again by its id when the
// stream brings it.
//
// The ids are kept in a table, with their order. A crash goes on where it was:
// the events have positions, by which the delivery log knows what was settled.
//
// The package starts no goroutine. A Backlog may be used from several.
package backlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/outboxrow"
)

// Database is what the backlog is kept in. A *pgxpool.Pool is one.
type Database interface {
	catalog.Querier
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Options say which outbox and slot it is about.
type Options struct {
	Database Database
	Schema   string // of the relay's own tables
	Slot     string
	Outbox   catalog.Name
	Columns  outboxrow.Columns
	Marked   bool // processed_at tells settled rows from others
}

// Backlog is one slot's.
type Backlog struct {
	o     Options
	state string // quoted names of the tables
	table string

	mu    sync.Mutex
	base  outbox.LSN
	until outbox.LSN
	rows  int64
	next  int64 // seq of the next row to read
}

// New returns the backlog of a slot, not yet opened.
func New(o Options) *Backlog {
	return &Backlog{
		o: o, state: pgx.Identifier{o.Schema, "slot_state"}.Sanitize(), table: pgx.Identifier{o.Schema, "backlog"}.Sanitize(),
	}
}

// Open finds the backlog that was taken for this slot, or takes it, and reads it
// from its start. Nothing of it is left to read when it was finished.
func (b *Backlog) Open(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var base, until string
	var finished, making bool
	err := b.o.Database.QueryRow(ctx, `SELECT base_lsn::text, until_lsn::text, backlog_rows, finished_at IS NOT NULL, making FROM `+b.state+` WHERE slot_name = $1`, b.o.Slot).
		Scan(&base, &until, &b.rows, &finished, &making)
	if errors.Is(err, pgx.ErrNoRows) {
		if err := b.takeLate(ctx); err != nil {
			return fmt.Errorf("take the backlog of slot %q: %w", b.o.Slot, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up the state of slot %q: %w", b.o.Slot, err)
	}
	if making {
		return fmt.Errorf("slot %q: %w", b.o.Slot, ErrMaking)
	}
	if finished {
		b.rows = 0
	}
	return b.setBounds(base, until)
}

func (b *Backlog) setBounds(base, until string) (err error) {
	if b.base, err = pglogrepl.ParseLSN(base); err != nil {
		return err
	}
	b.until, err = pglogrepl.ParseLSN(until)
	b.next = 0
	return err
}

// ErrMaking says that the slot is being made at present, or that the making of it was
// broken off: there is no telling yet what its stream doesn't hold.
var ErrMaking = errors.New("the slot and its backlog are being made")

// makersLock is held while a slot is dropped, or made together with its backlog.
const makersLock = 0x63646330 // "cdc0"

// Lock waits until nobody else makes slots, for as long as the connection lives. A
// relay that begins meanwhile must neither stream what is half made nor drop it.
func Lock(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, `SELECT pg_advisory_lock($1)`, int64(makersLock)); err != nil {
		return fmt.Errorf("wait for who makes slots: %w", err)
	}
	return nil
}

// BeingMade tells whether somebody makes a slot at this moment.
func (b *Backlog) BeingMade(ctx context.Context) (yes bool, err error) {
	err = b.o.Database.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND classid = 0 AND objid = $1 AND objsubid = 1)`, int64(makersLock)).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("ask whether a slot is being made: %w", err)
	}
	return yes, nil
}

// Forget drops what was known of the slot, because a new one takes its name.
func (b *Backlog) Forget(ctx context.Context) error {
	tx, err := b.o.Database.Begin(ctx)
	if err != nil {
		return fmt.Errorf("forget slot %q: %w", b.o.Slot, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	if _, err := tx.Exec(ctx, `DELETE FROM `+b.state+` WHERE slot_name = $1`, b.o.Slot); err != nil {
		return fmt.Errorf("forget slot %q: %w", b.o.Slot, err)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM `+b.table); err != nil {
		return fmt.Errorf("forget slot %q: %w", b.o.Slot, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("forget slot %q: %w", b.o.Slot, err)
	}
	return nil
}

// Rows tells how many rows the backlog has; 0 when it is finished.
func (b *Backlog) Rows() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rows
}

// Until is the position up to which the stream can bring rows of the backlog.
func (b *Backlog) Until() outbox.LSN {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until
}

// Known is what this database's relay knows of its slot.
type Known struct {
	Had         bool // it has had the slot before
	Half        bool // the making of it was broken off
	Unpublished bool // its stream may lack rows, because the publication did not carry the outbox
}

// Known looks up the slot's state.
func (b *Backlog) Known(ctx context.Context) (Known, error) {
	known := Known{Had: true}
	err := b.o.Database.QueryRow(ctx, `SELECT making, unpublished_at IS NOT NULL FROM `+b.state+` WHERE slot_name = $1`, b.o.Slot).
		Scan(&known.Half, &known.Unpublished)
	if errors.Is(err, pgx.ErrNoRows) {
		return Known{}, nil
	}
	if err != nil {
		return Known{}, fmt.Errorf("look up the state of slot %q: %w", b.o.Slot, err)
	}
	return known, nil
}

// Unpublished notes that the slot's stream may lack rows from now on. It stands
// until the slot is made anew.
func (b *Backlog) Unpublished(ctx context.Context) error {
	_, err := b.o.Database.Exec(ctx, `UPDATE `+b.state+` SET unpublished_at = now() WHERE slot_name = $1 AND unpublished_at IS NULL`, b.o.Slot)
	if err != nil {
		return fmt.Errorf("note that slot %q may lack rows: %w", b.o.Slot, err)
	}
	return nil
}

// takeLate takes the backlog of a slot that somebody else has made.
func (b *Backlog) takeLate(ctx context.Context) error {
	tx, err := b.o.Database.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	var base, until string
	// One below the slot's position: every transaction of the stream comes after it.
	if err := tx.QueryRow(ctx, `SELECT (confirmed_flush_lsn - 1)::text FROM pg_replication_slots WHERE slot_name = $1`, b.o.Slot).Scan(&base); err != nil {
		return fmt.Errorf("read the slot's position: %w", err)
	}
	if err := b.makeRoom(ctx, tx, base); err != nil {
		return err
	}
	if err := b.fill(ctx, tx); err != nil {
		return err
	}
	// Read after the rows were: what the stream brings beyond this is none of them.
	if err := tx.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&until); err != nil {
		return fmt.Errorf("read the server's position: %w", err)
	}
	if err := b.note(ctx, tx, base, until); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return b.setBounds(base, until)
}

// fill lists the unsettled rows that the transaction sees.
func (b *Backlog) fill(ctx context.Context, tx pgx.Tx) error {
	b.rows = 0
	statement, err := b.takeStatement(ctx, tx)
	if err != nil || statement == "" {
		return err
	}
	tag, err := tx.Exec(ctx, statement)
	if err != nil {
		return fmt.Errorf("find unsettled rows: %w", err)
	}
	b.rows = tag.RowsAffected()
	return nil
}

// note keeps the slot's state, in the transaction that lists its backlog.
func (b *Backlog) note(ctx context.Context, tx pgx.Tx, base, until string) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+b.state+` AS s (slot_name, base_lsn, until_lsn, backlog_rows, finished_at)
		VALUES ($1, $2::text::pg_lsn, $3::text::pg_lsn, $4::bigint, CASE WHEN $4::bigint = 0 THEN now() END)
		ON CONFLICT (slot_name) DO UPDATE SET making = false, base_lsn = excluded.base_lsn, until_lsn = excluded.until_lsn,
			backlog_rows = excluded.backlog_rows, made_at = now(), finished_at = excluded.finished_at`, b.o.Slot, base, until, b.rows)
	if err != nil {
		return fmt.Errorf("note the slot's state: %w", err)
	}
	return nil
}

// makeRoom moves parked events before the slot's position, in their order, where
// a restored database has given them positions that are still to come.
func (b *Backlog) makeRoom(ctx context.Context, tx pgx.Tx, base string) error {
	letters := pgx.Identifier{b.o.Schema, "dead_letters"}.Sanitize()
	_, err := tx.Exec(ctx, `UPDATE `+letters+` d SET commit_lsn = '0/1'::pg_lsn + r.rank FROM (
			SELECT id, dense_rank() OVER (ORDER BY commit_lsn)::numeric AS rank FROM `+letters+` WHERE state IN ('SCHEDULED', 'DEAD')) r
		WHERE d.id = r.id AND EXISTS (SELECT FROM `+letters+` WHERE state IN ('SCHEDULED', 'DEAD') AND commit_lsn > $1::text::pg_lsn)`, base)
	if err != nil {
		return fmt.Errorf("move parked events before the slot's position: %w", err)
	}
	return nil
}

// takeStatement inserts the unsettled rows. Rows are in order of creation; those
// of one transaction usually share that time, and stand in the order of a numeric
// id, or else of their statements (cmin). For rows of one statement only their
// places in the table are left to go by, which is their order unless the table
// has taken up space of deleted rows.
func (b *Backlog) takeStatement(ctx context.Context, tx pgx.Tx) (string, error) {
	table, err := catalog.Read(ctx, tx, b.o.Outbox)
	if err != nil {
		return "", err
	}
	c := b.o.Columns
	id := "o." + pgx.Identifier{c.ID}.Sanitize()
	var order []string
	if c.CreatedAt != "" && table.Columns[c.CreatedAt] != "" {
		order = append(order, "o."+pgx.Identifier{c.CreatedAt}.Sanitize())
	}
	switch table.Columns[c.ID] {
	case "bigint", "integer", "smallint", "numeric":
		order = append(order, id)
	}
	order = append(order, "o.cmin::text::bigint", "o.tableoid", "o.ctid")
	where, err := b.unsettled(ctx, tx)
	if err != nil || where == "" {
		return "", err
	}
	deliveries := pgx.Identifier{b.o.Schema, "deliveries"}.Sanitize()
	letters := pgx.Identifier{b.o.Schema, "dead_letters"}.Sanitize()
	return fmt.Sprintf(`WITH unsent AS (
			SELECT %[1]s::text AS id, row_number() OVER (ORDER BY %[2]s) - 1 AS seq FROM %[3]s o WHERE %[4]s AND %[1]s IS NOT NULL),
		settled AS (SELECT id, array_agg(DISTINCT destination) AS destinations FROM (
			SELECT u.id, d.destination FROM unsent u JOIN %[5]s d ON d.outbox_id = u.id
			UNION ALL SELECT u.id, d.destination FROM unsent u JOIN %[6]s d ON d.outbox_id = u.id) s GROUP BY id)
		INSERT INTO %[7]s (seq, outbox_id, settled) SELECT u.seq, u.id, coalesce(s.destinations, '{}') FROM unsent u LEFT JOIN settled s USING (id)`,
		id, strings.Join(order, ", "), b.o.Outbox.Sanitize(), where, deliveries, letters, b.table), nil
}

// unsettled gives the condition by which rows count as not settled, "" when there
// is no telling: then nothing from before the slot is sent.
func (b *Backlog) unsettled(ctx context.Context, tx pgx.Tx) (string, error) {
	if b.o.Marked {
		return "o." + pgx.Identifier{b.o.Columns.ProcessedAt}.Sanitize() + " IS NULL", nil
	}
	// Without marks only the delivery log knows, as far back as it goes.
	var oldest *time.Time
	if err := tx.QueryRow(ctx, `SELECT min(delivered_at) FROM `+pgx.Identifier{b.o.Schema, "deliveries"}.Sanitize()).Scan(&oldest); err != nil {
		return "", fmt.Errorf("look up the delivery log's beginning: %w", err)
	}
	if oldest == nil || b.o.Columns.CreatedAt == "" {
		return "", nil
	}
	return fmt.Sprintf(`o.%s >= (SELECT min(delivered_at) FROM %s) AND NOT EXISTS (SELECT FROM %[2]s d WHERE d.outbox_id = o.%[3]s::text)
		AND NOT EXISTS (SELECT FROM %[4]s d WHERE d.outbox_id = o.%[3]s::text)`,
		pgx.Identifier{b.o.Columns.CreatedAt}.Sanitize(), pgx.Identifier{b.o.Schema, "deliveries"}.Sanitize(),
		pgx.Identifier{b.o.Columns.ID}.Sanitize(), pgx.Identifier{b.o.Schema, "dead_letters"}.Sanitize()), nil
}
