package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Instance is one process, as it last told of itself.
type Instance struct {
	ID        string    `json:"id"`
	Host      string    `json:"host"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	SeenAt    time.Time `json:"seen_at"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"`
	Live      Live      `json:"live"`
}

// Live is what only the process itself knows.
type Live struct {
	InFlightEvents int               `json:"in_flight_events"`
	InFlightBytes  int               `json:"in_flight_bytes"`
	WindowEvents   int               `json:"window_events"`
	WindowBytes    int               `json:"window_bytes"`
	WindowFull     bool              `json:"window_full"`
	LagBytes       int64             `json:"lag_bytes"`
	LagSeconds     float64           `json:"lag_seconds"` // age of the oldest event in flight
	Unprocessed    int64             `json:"unprocessed_events"`
	Forgotten      int64             `json:"forgotten_rows"`
	Destinations   []LiveDestination `json:"destinations,omitempty"`
}

// LiveDestination is a destination as one process sees it.
type LiveDestination struct {
	Name      string     `json:"name"`
	Circuit   string     `json:"circuit"` // closed, open, half-open; off where there is no breaker
	HeldUntil *time.Time `json:"held_until,omitempty"`
	Queued    int        `json:"queued"` // deliveries in hand
	Busy      int        `json:"busy"`   // of those, under way
	Limit     int        `json:"concurrency"`
	RateLimit float64    `json:"rate_limit,omitempty"`
}

// Sample are the figures of some seconds of one process.
type Sample struct {
	At           time.Time           `json:"at"`
	Seconds      float64             `json:"seconds"`
	LagBytes     int64               `json:"lag_bytes"`
	LagSeconds   float64             `json:"lag_seconds"`
	InFlight     int                 `json:"in_flight"`
	P50          float64             `json:"p50_ms"` // from commit to receipt
	P99          float64             `json:"p99_ms"`
	Destinations []SampleDestination `json:"destinations,omitempty"`
}

// SampleDestination counts what ended at one destination in a sample's seconds.
type SampleDestination struct {
	Name      string `json:"name"`
	Delivered int64  `json:"delivered"`
	Parked    int64  `json:"parked"`
	Dead      int64  `json:"dead"`
	Attempts  int64  `json:"attempts"`
}

const (
	// BeatEvery is how often a process tells of itself, and takes a sample.
	BeatEvery = 5 * time.Second

	goneAfter   = 4 * BeatEvery    // a process that has told nothing for so long isn't shown
	sampleAge   = 65 * time.Minute // samples are kept for
	instanceAge = 10 * time.Minute
)

// Beat writes what a process tells of itself, and forgets what is old.
func (d *Desk) Beat(ctx context.Context, i Instance, s *Sample) error {
	live, err := json.Marshal(i.Live)
	if err != nil {
		return fmt.Errorf("encode what the process tells of itself: %w", err)
	}
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO `+d.instances+` (id, host, version, started_at, seen_at, state, reason, live) VALUES ($1, $2, $3, $4, now(), $5, $6, $7::text::jsonb)
		ON CONFLICT (id) DO UPDATE SET seen_at = now(), state = excluded.state, reason = excluded.reason, live = excluded.live`,
		i.ID, i.Host, i.Version, i.StartedAt, i.State, i.Reason, string(live))
	if s != nil {
		figures, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode figures: %w", err)
		}
		b.Queue(`INSERT INTO `+d.samples+` (instance_id, at, figures) VALUES ($1, $2, $3::text::jsonb) ON CONFLICT DO NOTHING`, i.ID, s.At, string(figures))
	}
	b.Queue(`DELETE FROM `+d.samples+` WHERE at < now() - make_interval(secs => $1)`, sampleAge.Seconds())
	b.Queue(`DELETE FROM `+d.instances+` WHERE seen_at < now() - make_interval(secs => $1)`, instanceAge.Seconds())
	if err := d.o.Pool.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("tell of this process: %w", err)
	}
	return nil
}

// Leave takes a process that ends out of the instances.
func (d *Desk) Leave(ctx context.Context, id string) error {
	if _, err := d.o.Pool.Exec(ctx, `DELETE FROM `+d.instances+` WHERE id = $1`, id); err != nil {
		return fmt.Errorf("take leave: %w", err)
	}
	return nil
}

// Instances gives the processes that run, the oldest first.
func (d *Desk) Instances(ctx context.Context) ([]Instance, error) {
	rows, err := d.o.Pool.Query(ctx, `SELECT id, host, version, started_at, seen_at, state, reason, live FROM `+d.instances+`
		WHERE seen_at > now() - make_interval(secs => $1) ORDER BY started_at, id`, goneAfter.Seconds())
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	instances, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (i Instance, err error) {
		return i, row.Scan(&i.ID, &i.Host, &i.Version, &i.StartedAt, &i.SeenAt, &i.State, &i.Reason, &i.Live)
	})
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	return instances, nil
}

// Samples gives the samples of all processes since a time, the oldest first.
func (d *Desk) Samples(ctx context.Context, since time.Time) ([]Sample, error) {
	rows, err := d.o.Pool.Query(ctx, `SELECT figures FROM `+d.samples+` WHERE at >= $1 ORDER BY at`, since)
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	samples, err := pgx.CollectRows(rows, pgx.RowTo[Sample])
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	return samples, nil
}
