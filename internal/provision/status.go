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
}

// ReadStatus asks Postgres.
func ReadStatus(ctx context.Context, conn *pgx.Conn, o Options) (Status, error) {
	var s Status
	if err := readSlot(ctx, conn, o, &s.Slot); err != nil {
		return s, err
	}
	version, err := TablesVersion(ctx, conn, o.Schema)
	if err != nil || version == 0 {
		return s, err
	}
	if err := readDestinations(ctx, conn, o, &s); err != nil {
		return s, err
	}
	if err := readBacklog(ctx, conn, o, &s); err != nil {
		return s, err
	}
	return s, readUnprocessed(ctx, conn, o, &s)
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

func readDestinations(ctx context.Context, q catalog.Querier, o Options, s *Status) error {
	rows, err := q.Query(ctx, fmt.Sprintf(`SELECT destination, sum(delivered)::bigint, max(last), sum(scheduled)::bigint, sum(dead)::bigint FROM (
		SELECT destination, count(*) AS delivered, max(delivered_at) AS last, 0 AS scheduled, 0 AS dead FROM %s GROUP BY 1
		UNION ALL
		SELECT destination, 0, NULL, count(*) FILTER (WHERE state = 'SCHEDULED'), count(*) FILTER (WHERE state = 'DEAD') FROM %s GROUP BY 1
		) t GROUP BY 1 ORDER BY 1`,
		pgx.Identifier{o.Schema, "deliveries"}.Sanitize(), pgx.Identifier{o.Schema, "dead_letters"}.Sanitize()))
	if err != nil {
		return fmt.Errorf("count deliveries: %w", err)
	}
	s.Destinations, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d DestinationStatus, err error) {
		return d, row.Scan(&d.Name, &d.Delivered, &d.LastDelivered, &d.Scheduled, &d.Dead)
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

// ReadSlot asks Postgres for the slot alone.
func ReadSlot(ctx context.Context, conn *pgx.Conn, o Options) (SlotStatus, error) {
	var s SlotStatus
	err := readSlot(ctx, conn, o, &s)
	return s, err
}
