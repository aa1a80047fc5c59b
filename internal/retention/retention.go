// Package retention deletes what has been kept long enough, in small batches: the
// delivery log, dead letters that have ended, and, where that is wanted, settled
// outbox rows. It also looks for forgotten rows: unsettled ones that are older
// than anything should be.
package retention

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// Database is what is trimmed. A *pgxpool.Pool is one.
type Database interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Options say what is kept, and for how long.
type Options struct {
	Database                         Database
	Schema                           string // of the relay's own tables
	Slot                             string
	Outbox                           catalog.Name
	IDColumn, CreatedAt, ProcessedAt string
	Marked                           bool          // processed_at tells settled rows from others
	DeliveryLog                      time.Duration // also for dead letters that have ended
	OutboxRows                       time.Duration // 0 keeps them for ever
	Every                            time.Duration // between two looks
	Forgotten                        time.Duration // age from which an unsettled row counts as forgotten
	Log                              zerolog.Logger
}

// Keeper does it. Run is its only goroutine.
type Keeper struct {
	o                           Options
	deliveries, letters, outbox string // quoted names
	trimmed                     string
	forgotten                   atomic.Int64
}

// New returns a Keeper.
func New(o Options) *Keeper {
	return &Keeper{
		o: o, outbox: o.Outbox.Sanitize(),
		deliveries: pgx.Identifier{o.Schema, "deliveries"}.Sanitize(),
		letters:    pgx.Identifier{o.Schema, "dead_letters"}.Sanitize(),
		trimmed:    pgx.Identifier{o.Schema, "trimmed"}.Sanitize(),
	}
}

// Run trims until ctx ends. What the database refuses is logged and tried again.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(k.o.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if err := k.Trim(ctx); err != nil && ctx.Err() == nil {
			k.o.Log.Error().Err(err).Msg("trimming failed; trying again later")
		}
		n, err := k.CountForgotten(ctx)
		if err == nil {
			k.forgotten.Store(n)
		}
		if n > 0 {
			k.o.Log.Error().Int64("rows", n).Dur("older_than", k.o.Forgotten).Msg("unsettled outbox rows are forgotten; see cdc-relay doctor")
		}
	}
}

// Forgotten tells how many rows were forgotten at the last look.
func (k *Keeper) Forgotten() int64 { return k.forgotten.Load() }

// batch is how many rows go in one transaction, so that none holds locks long.
const batch = 5000

// Trim deletes what is past its time. A delivery that the slot has not confirmed
// past stays whatever its age: a restart must know it.
func (k *Keeper) Trim(ctx context.Context) error {
	kept := k.o.DeliveryLog.Seconds()
	if err := k.trimDeliveries(ctx, kept); err != nil {
		return err
	}
	if err := k.delete(ctx, k.letters, `d.state IN ('DELIVERED', 'DISCARDED') AND d.updated_at < now() - make_interval(secs => $1)`, kept); err != nil {
		return err
	}
	if k.o.OutboxRows == 0 {
		return nil
	}
	processed := pgx.Identifier{k.o.ProcessedAt}.Sanitize()
	return k.delete(ctx, k.outbox, fmt.Sprintf(`d.%s < now() - make_interval(secs => $1)`, processed), k.o.OutboxRows.Seconds())
}

// trimDeliveries notes how far the log was trimmed: a replay from before it would
// lack events.
func (k *Keeper) trimDeliveries(ctx context.Context, kept float64) error {
	statement := fmt.Sprintf(`WITH gone AS (DELETE FROM %[1]s t WHERE (t.tableoid, t.ctid) IN (SELECT d.tableoid, d.ctid FROM %[1]s d
			WHERE d.delivered_at < now() - make_interval(secs => $1)
			AND d.commit_lsn < (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $2) LIMIT %[2]d) RETURNING t.commit_lsn, t.delivered_at, t.replay_id),
		noted AS (INSERT INTO %[3]s AS n (what, lsn, at) SELECT 'deliveries', max(commit_lsn) + 1, max(delivered_at) FROM gone WHERE replay_id IS NULL HAVING count(*) > 0
			ON CONFLICT (what) DO UPDATE SET lsn = greatest(n.lsn, excluded.lsn), at = greatest(n.at, excluded.at))
		SELECT count(*) FROM gone`, k.deliveries, batch, k.trimmed)
	for {
		var n int
		if err := k.o.Database.QueryRow(ctx, statement, kept, k.o.Slot).Scan(&n); err != nil {
			return fmt.Errorf("trim %s: %w", k.deliveries, err)
		}
		if n < batch {
			return nil
		}
	}
}

func (k *Keeper) delete(ctx context.Context, table, condition string, age float64) error {
	statement := fmt.Sprintf(`DELETE FROM %[1]s t WHERE (t.tableoid, t.ctid) IN (SELECT d.tableoid, d.ctid FROM %[1]s d WHERE %[2]s LIMIT %[3]d)`, table, condition, batch)
	for {
		tag, err := k.o.Database.Exec(ctx, statement, age)
		if err != nil {
			return fmt.Errorf("trim %s: %w", table, err)
		}
		if tag.RowsAffected() < batch {
			return nil
		}
	}
}

// CountForgotten counts rows that are unsettled, older than they should be, and
// neither in the dead letters nor still to come: the slot has passed them by.
func (k *Keeper) CountForgotten(ctx context.Context) (n int64, err error) {
	if !k.o.Marked || k.o.CreatedAt == "" || k.o.Forgotten <= 0 {
		return 0, nil
	}
	err = k.o.Database.QueryRow(ctx, fmt.Sprintf(`SELECT count(*) FROM %s o WHERE o.%s IS NULL AND o.%s < now() - make_interval(secs => $1)
		AND NOT EXISTS (SELECT FROM %s d WHERE d.outbox_id = o.%s::text)
		AND coalesce((SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), confirmed_flush_lsn) < 16 * 1024 * 1024 FROM pg_replication_slots WHERE slot_name = $2), true)`,
		k.outbox, pgx.Identifier{k.o.ProcessedAt}.Sanitize(), pgx.Identifier{k.o.CreatedAt}.Sanitize(), k.letters,
		pgx.Identifier{k.o.IDColumn}.Sanitize()), k.o.Forgotten.Seconds(), k.o.Slot).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count forgotten rows: %w", err)
	}
	return n, nil
}
