package checkpoint

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// DeliveryLog records delivered events: a Recorder.
type DeliveryLog struct {
	insert string
}

// NewDeliveryLog returns the delivery log in the given schema.
func NewDeliveryLog(schema string) *DeliveryLog {
	table := pgx.Identifier{schema, "deliveries"}.Sanitize()
	return &DeliveryLog{insert: `INSERT INTO ` + table + `
		(outbox_id, destination, commit_lsn, tx_index, delivered_at, attempts, status_code, latency_ms, replay_id)
		SELECT id, destination, lsn::pg_lsn, tx_index, at, attempts, status, latency, nullif(replay, '')
		FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::timestamptz[], $6::integer[], $7::integer[], $8::double precision[], $9::text[])
		AS t (id, destination, lsn, tx_index, at, attempts, status, latency, replay)`}
}

// Record writes a row for each delivery that was made.
func (l *DeliveryLog) Record(ctx context.Context, tx pgx.Tx, batch []outbox.Outcome) error {
	var rows struct {
		ids, destinations, lsns, replays []string
		indexes                          []int64
		at                               []time.Time
		attempts, statuses               []int32
		latencies                        []float64
	}
	for _, o := range batch {
		if o.Fate != outbox.Delivered {
			continue
		}
		rows.ids = append(rows.ids, o.Event.ID)
		rows.destinations = append(rows.destinations, o.Destination)
		rows.lsns = append(rows.lsns, o.Event.Position.Commit.String())
		rows.indexes = append(rows.indexes, int64(o.Event.Position.Index))
		rows.at = append(rows.at, o.DoneAt)
		rows.attempts = append(rows.attempts, int32(o.Tries))
		rows.statuses = append(rows.statuses, int32(o.Status))
		rows.replays = append(rows.replays, o.ReplayID)
		latency := o.DoneAt.Sub(o.Event.CommitTime)
		rows.latencies = append(rows.latencies, float64(latency.Microseconds())/1000)
	}
	if len(rows.ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, l.insert, rows.ids, rows.destinations, rows.lsns, rows.indexes,
		rows.at, rows.attempts, rows.statuses, rows.latencies, rows.replays); err != nil {
		return fmt.Errorf("write delivery log: %w", err)
	}
	return nil
}
