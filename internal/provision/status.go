package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// Status is what Postgres tells of a relay, whether or not one is running.
type Status struct {
	Slot         SlotStatus          `json:"slot"`
	Backlog      *BacklogStatus      `json:"backlog,omitempty"`            // rows from before the slot; absent when they are settled
	Unprocessed  *int64              `json:"unprocessed_events,omitempty"` // rows without processed_at; absent when it isn't marked
	OldestSecond *float64            `json:"oldest_unprocessed_seconds,omitempty"`
	Destinations []DestinationStatus `json:"destinations"`
}

// SlotStatus is what Postgres tells of the slot.
type SlotStatus struct {
	Name      string `json:"name"`
	Exists    bool   `json:"exists"`
	Active    bool   `json:"active"`
	Confirmed string `json:"confirmed_flush_lsn,omitempty"`
	Restart   string `json:"restart_lsn,omitempty"`
	Flushed   string `json:"server_flush_lsn"`
	LagBytes  int64  `json:"lag_bytes"` // from the confirmed position to the server's
	HeldBytes int64  `json:"wal_held_bytes"`
	WALStatus string `json:"wal_status,omitempty"`
}

// BacklogStatus tells how far the sending of the rows from before the slot is.
type BacklogStatus struct {
	Rows int64 `json:"rows"`
	Left int64 `json:"left"` // not yet recorded for any destination
}

// DestinationStatus is what the relay's tables tell of one destination.
type DestinationStatus struct {
	Name          string     `json:"name"`
	Delivered     int64      `json:"delivered"` // within the delivery log's retention
	LastDelivered *time.Time `json:"last_delivered_at,omitempty"`
	Scheduled     int64      `json:"scheduled"`
	Dead          int64      `json:"dead"`
	Paused        *Pause     `json:"paused,omitempty"`
}

// Pause says since when, and why, a person has a destination left alone.
type Pause struct {
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// ReadStatus asks Postgres. It counts the whole delivery log, and the rows of the outbox
// that have no processed_at.
func ReadStatus(ctx context.Context, q catalog.Querier, o Options) (Status, error) {
	s, err := ReadQuickStatus(ctx, q, o)
	if err != nil {
		return s, err
	}
	if err := countDelivered(ctx, q, o, &s); err != nil {
		return s, err
	}
	return s, readUnprocessed(ctx, q, o, &s)
}

// ReadQuickStatus is ReadStatus without what takes long where tables are large.
func ReadQuickStatus(ctx context.Context, q catalog.Querier, o Options) (Status, error) {
	var s Status
	if err := readSlot(ctx, q, o, &s.Slot); err != nil {
		return s, err
	}
	if err := countLetters(ctx, q, o, &s); err != nil {
		return s, err
	}
	return s, readBacklog(ctx, q, o, &s)
}

// serverPosition is as far as decoding can reach.
const serverPosition = `CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END`

func readSlot(ctx context.Context, q catalog.Querier, o Options, s *SlotStatus) error {
	s.Name = o.Slot
	err := q.QueryRow(ctx, `SELECT true, active, coalesce(confirmed_flush_lsn::text, ''), coalesce(restart_lsn::text, ''),
		coalesce(pg_wal_lsn_diff(flushed, confirmed_flush_lsn), 0)::bigint, coalesce(pg_wal_lsn_diff(flushed, restart_lsn), 0)::bigint,
		coalesce(wal_status, ''), flushed::text
		FROM pg_replication_slots, (SELECT `+serverPosition+` AS flushed) f WHERE slot_name = $1`, o.Slot).
		Scan(&s.Exists, &s.Active, &s.Confirmed, &s.Restart, &s.LagBytes, &s.HeldBytes, &s.WALStatus, &s.Flushed)
	if errors.Is(err, pgx.ErrNoRows) {
		err = q.QueryRow(ctx, `SELECT (`+serverPosition+`)::text`).Scan(&s.Flushed)
	}
	if err != nil {
		return fmt.Errorf("look up slot: %w", err)
	}
	return nil
}

func countLetters(ctx context.Context, q catalog.Querier, o Options, s *Status) error {
	rows, err := q.Query(ctx, `SELECT destination, count(*) FILTER (WHERE state = 'SCHEDULED'), count(*) FILTER (WHERE state = 'DEAD')
		FROM `+pgx.Identifier{o.Schema, "dead_letters"}.Sanitize()+` WHERE state IN ('SCHEDULED', 'DEAD') GROUP BY 1 ORDER BY 1`)
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	s.Destinations, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DestinationStatus, err error) {
		return d, row.Scan(&d.Name, &d.Scheduled, &d.Dead)
	})
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	return nil
}

func countDelivered(ctx context.Context, q catalog.Querier, o Options, s *Status) error {
	rows, err := q.Query(ctx, `SELECT destination, count(*), max(delivered_at) FROM `+pgx.Identifier{o.Schema, "deliveries"}.Sanitize()+` GROUP BY 1 ORDER BY 1`)
	if err != nil {
		return fmt.Errorf("count deliveries: %w", err)
	}
	var d DestinationStatus
	_, err = pgx.ForEachRow(rows, []any{&d.Name, &d.Delivered, &d.LastDelivered}, func() error {
		for i := range s.Destinations {
			if s.Destinations[i].Name == d.Name {
				s.Destinations[i].Delivered, s.Destinations[i].LastDelivered = d.Delivered, d.LastDelivered
				return nil
			}
		}
		s.Destinations = append(s.Destinations, d)
		return nil
	})
	if err != nil {
		return fmt.Errorf("count deliveries: %w", err)
	}
	return nil
}

// readBacklog counts by the events' positions: those of the backlog stand at one
// LSN, in the order of its rows.
func readBacklog(ctx context.Context, q catalog.Querier, o Options, s *Status) error {
	var b BacklogStatus
	err := q.QueryRow(ctx, fmt.Sprintf(`SELECT s.backlog_rows, (SELECT count(*) FROM %[2]s b
			WHERE NOT EXISTS (SELECT FROM %[3]s d WHERE d.commit_lsn = s.base_lsn AND d.tx_index = b.seq)
			AND NOT EXISTS (SELECT FROM %[4]s d WHERE d.outbox_id = b.outbox_id AND d.commit_lsn = s.base_lsn))
		FROM %[1]s s WHERE s.slot_name = $1 AND NOT s.making AND s.finished_at IS NULL`,
		pgx.Identifier{o.Schema, "slot_state"}.Sanitize(), pgx.Identifier{o.Schema, "backlog"}.Sanitize(),
		pgx.Identifier{o.Schema, "deliveries"}.Sanitize(), pgx.Identifier{o.Schema, "dead_letters"}.Sanitize()), o.Slot).Scan(&b.Rows, &b.Left)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("count the rows from before the slot: %w", err)
	}
	s.Backlog = &b
	return nil
}

func readUnprocessed(ctx context.Context, q catalog.Querier, o Options, s *Status) error {
	if !o.Mark {
		return nil
	}
	oldest := `NULL::float8`
	if o.Columns.CreatedAt != "" {
		oldest = fmt.Sprintf(`extract(epoch FROM now() - min(%s))::float8`, pgx.Identifier{o.Columns.CreatedAt}.Sanitize())
	}
	err := q.QueryRow(ctx, fmt.Sprintf(`SELECT count(*), %s FROM %s WHERE %s IS NULL`,
		oldest, o.Outbox.Sanitize(), pgx.Identifier{o.Columns.ProcessedAt}.Sanitize())).Scan(&s.Unprocessed, &s.OldestSecond)
	if err != nil {
		return fmt.Errorf("count unprocessed rows: %w", err)
	}
	return nil
}

// CountUnprocessed counts the outbox rows without processed_at; nil where it isn't marked.
func CountUnprocessed(ctx context.Context, q catalog.Querier, o Options) (*int64, error) {
	var s Status
	err := readUnprocessed(ctx, q, o, &s)
	return s.Unprocessed, err
}

// ReadSlot asks Postgres for the slot alone.
func ReadSlot(ctx context.Context, q catalog.Querier, o Options) (SlotStatus, error) {
	var s SlotStatus
	err := readSlot(ctx, q, o, &s)
	return s, err
}
