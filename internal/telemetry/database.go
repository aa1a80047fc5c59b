package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Database are gauges of what stands in Postgres, as it was when last looked at. It is
// safe for concurrent use.
type Database struct {
	letters     *prometheus.GaugeVec
	replays     *prometheus.GaugeVec
	remaining   prometheus.Gauge
	unprocessed prometheus.Gauge
	slotExists  prometheus.Gauge
	slotActive  prometheus.Gauge
	slotLost    prometheus.Gauge
	slotLag     prometheus.Gauge
	held        prometheus.Gauge
	checkpoints prometheus.Gauge
}

// NewDatabase registers the gauges.
func NewDatabase(registry prometheus.Registerer) *Database {
	one := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	many := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	d := &Database{
		letters:     many("cdc_relay_dead_letters", "Rows of the dead letters' table that are open, by destination and state: SCHEDULED or DEAD.", "destination", "state"),
		replays:     many("cdc_relay_replays", "Replay jobs of the last day by state.", "state"),
		remaining:   one("cdc_relay_replay_remaining_events", "Events that open replay jobs have still to send."),
		unprocessed: one("cdc_relay_unprocessed_events", "Outbox rows without processed_at: what isn't delivered everywhere yet. -1 when they can't be counted in time."),
		slotExists:  one("cdc_relay_slot_exists", "1 when the slot is there."),
		slotActive:  one("cdc_relay_slot_active", "1 when some process streams the slot."),
		slotLost:    one("cdc_relay_slot_lost", "1 when the server has removed WAL that the slot needs."),
		slotLag:     one("cdc_relay_slot_lag_bytes", "WAL from the slot's confirmed position to the server's, as Postgres tells."),
		held:        one("cdc_relay_slot_wal_held_bytes", "WAL that the server keeps for the slot."),
		checkpoints: one("cdc_relay_checkpoints_wal_held_bytes", "The most WAL that a held checkpoint keeps."),
	}
	registry.MustRegister(d.letters, d.replays, d.remaining, d.unprocessed, d.slotExists, d.slotActive, d.slotLost, d.slotLag, d.held, d.checkpoints)
	return d
}

// Found is what stands in Postgres.
type Found struct {
	Letters                          []LetterCount
	Replays                          map[string]int // by state
	Remaining                        int64
	Unprocessed                      int64
	SlotExists, SlotActive, SlotLost bool
	SlotLag, SlotHeld, CheckpointMax int64
}

// LetterCount counts the open dead letters of a destination.
type LetterCount struct {
	Destination     string
	Scheduled, Dead int64
}

// Set takes over a fresh look.
func (d *Database) Set(f Found) {
	d.letters.Reset()
	for _, c := range f.Letters {
		d.letters.WithLabelValues(c.Destination, "SCHEDULED").Set(float64(c.Scheduled))
		d.letters.WithLabelValues(c.Destination, "DEAD").Set(float64(c.Dead))
	}
	d.replays.Reset()
	for state, n := range f.Replays {
		d.replays.WithLabelValues(state).Set(float64(n))
	}
	d.remaining.Set(float64(f.Remaining))
	d.unprocessed.Set(float64(f.Unprocessed))
	d.slotExists.Set(number(f.SlotExists))
	d.slotActive.Set(number(f.SlotActive))
	d.slotLost.Set(number(f.SlotLost))
	d.slotLag.Set(float64(f.SlotLag))
	d.held.Set(float64(f.SlotHeld))
	d.checkpoints.Set(float64(f.CheckpointMax))
}
