package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/replay"
	"github.com/cdc-relay/cdc-relay/internal/telemetry"
)

// heart tells of this process in the database, every few seconds, so that each admin
// page and `status` show it.
type heart struct {
	desk      *operations.Desk
	readiness func() (state, reason string)
	relay     *relay // nil where there is none
	log       zerolog.Logger
	self      operations.Instance

	sampled time.Time
	failing bool
}

func newHeart(s *service) *heart {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return &heart{
		desk: s.desk, relay: s.relay, log: s.log,
		readiness: func() (string, string) {
			ready := s.readiness()
			return ready.State, ready.Reason
		},
		self: operations.Instance{ID: uuid.NewString(), Host: host, Version: programVersion(), StartedAt: time.Now()},
	}
}

// run beats until ctx ends, then takes leave.
func (h *heart) run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	h.sampled = time.Now()
	h.beat(ctx, nil)
	for {
		select {
		case now := <-ticker.C:
			if now.Sub(h.sampled) >= operations.BeatEvery {
				h.beat(ctx, h.sample(now))
			} else if state, reason := h.readiness(); state != h.self.State || reason != h.self.Reason {
				h.beat(ctx, nil)
			}
		case <-ctx.Done():
			leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			_ = h.desk.Leave(leaving, h.self.ID) // or it is forgotten by itself soon
			return nil
		}
	}
}

func (h *heart) beat(ctx context.Context, sample *operations.Sample) {
	ctx, cancel := context.WithTimeout(ctx, operations.BeatEvery)
	defer cancel()
	h.self.State, h.self.Reason = h.readiness()
	if h.relay != nil {
		h.self.Live = h.relay.live()
	}
	err := h.desk.Beat(ctx, h.self, sample)
	if failing := err != nil && !errors.Is(err, context.Canceled); failing != h.failing {
		h.failing = failing
		h.log.Warn().Err(err).Bool("failing", failing).Msg("telling of this process to the admin pages fails, or goes on")
	}
}

// sample is what happened since the last one; nil where there is no relay.
func (h *heart) sample(now time.Time) *operations.Sample {
	took := now.Sub(h.sampled)
	h.sampled = now
	if h.relay == nil {
		return nil
	}
	figures, live := h.relay.metrics.Sample(), h.relay.live()
	if !h.relay.streaming() && len(figures.Destinations) == 0 {
		return nil // whoever streams has the figures
	}
	s := &operations.Sample{
		At: now, Seconds: took.Seconds(), LagBytes: live.LagBytes, LagSeconds: live.LagSeconds, InFlight: live.InFlightEvents,
		P50: inMilliseconds(figures.P50), P99: inMilliseconds(figures.P99),
	}
	for _, d := range figures.Destinations {
		s.Destinations = append(s.Destinations, operations.SampleDestination(d))
	}
	return s
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// live is what the relay knows of itself.
func (r *relay) live() operations.Live {
	s := r.stream.Status()
	live := operations.Live{
		InFlightEvents: s.InFlight, InFlightBytes: s.Bytes, WindowEvents: r.cfg.Window.Events, WindowBytes: r.cfg.Window.Bytes,
		WindowFull: s.Paused, LagBytes: lagBytes(s), LagSeconds: lagSeconds(s), Unprocessed: r.unprocessed.Load(), Forgotten: r.keeper.Forgotten(),
	}
	for _, d := range r.dispatcher.Status() {
		live.Destinations = append(live.Destinations, liveDestination(d))
	}
	return live
}

func liveDestination(d dispatcher.Status) operations.LiveDestination {
	live := operations.LiveDestination{Name: d.Name, Circuit: d.Circuit, Queued: d.Queued, Busy: d.Busy, Limit: d.Limit, RateLimit: d.RateLimit}
	if !d.HeldUntil.IsZero() {
		live.HeldUntil = &d.HeldUntil
	}
	return live
}

// watchEvery is how often what stands in Postgres is looked at for the metrics.
const watchEvery = 10 * time.Second

// watchDatabase keeps the figures of what stands in Postgres fresh.
func (r *relay) watchDatabase(ctx context.Context, desk *operations.Desk, gauges *telemetry.Database) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	failing := false
	for {
		found, err := r.look(ctx, desk)
		if err == nil {
			gauges.Set(found)
		}
		if now := err != nil && ctx.Err() == nil; now != failing {
			failing = now
			r.log.Warn().Err(err).Bool("failing", failing).Msg("looking at the database for the metrics fails, or goes on")
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *relay) look(ctx context.Context, desk *operations.Desk) (telemetry.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	overview, err := desk.Overview(ctx, false)
	if err != nil {
		return telemetry.Found{}, err
	}
	slot := overview.Slot
	f := telemetry.Found{
		Replays: make(map[string]int), SlotExists: slot.Exists, SlotActive: slot.Active, SlotLost: slot.WALStatus == "lost",
		SlotLag: slot.LagBytes, SlotHeld: slot.HeldBytes, Unprocessed: r.countUnprocessed(ctx),
	}
	for _, d := range overview.Destinations {
		f.Letters = append(f.Letters, telemetry.LetterCount{Destination: d.Name, Scheduled: d.Scheduled, Dead: d.Dead})
	}
	for _, c := range overview.Held {
		f.CheckpointMax = max(f.CheckpointMax, c.HeldBytes)
	}
	jobs, err := desk.Replays(ctx, 100)
	for _, j := range jobs {
		if time.Since(j.CreatedAt) < 24*time.Hour || !j.Over() {
			f.Replays[string(j.State)]++
		}
		if j.State == replay.Queued || j.State == replay.Running {
			f.Remaining += max(0, j.Total-j.Delivered-j.Parked-j.Dead-j.Skipped)
		}
	}
	return f, err
}

// countUnprocessed counts the rows that aren't delivered everywhere; -1 when they aren't
// marked, or when the table is too large to be counted in a second or two.
func (r *relay) countUnprocessed(ctx context.Context) int64 {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	n := int64(-1)
	if counted, err := provision.CountUnprocessed(ctx, r.watching, r.cfg.provisioning()); err == nil && counted != nil {
		n = *counted
	}
	r.unprocessed.Store(n)
	return n
}
