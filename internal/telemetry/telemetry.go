// Package telemetry holds the metrics of the relay and of the inbox.
// https://prometheus.io/docs/practices/naming/
package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// NewRegistry returns a registry that knows of the process itself.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Readings are what is read of the relay at each scrape.
type Readings struct {
	InFlightEvents func() float64
	InFlightBytes  func() float64
	LagBytes       func() float64 // from the confirmed position to the server's, as the server last told
	Streaming      func() float64 // 1 while streaming
	ParkedEvents   func() float64
	ForgottenRows  func() float64
}

// Relay counts what the relay does. It is safe for concurrent use.
type Relay struct {
	outcomes *prometheus.CounterVec
	attempts *prometheus.CounterVec
	latency  *prometheus.HistogramVec
}

// NewRelay registers the relay's metrics.
func NewRelay(registry prometheus.Registerer, r Readings) *Relay {
	m := &Relay{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_outcomes_total", Help: "Settled deliveries by destination and by how they ended.",
		}, []string{"destination", "outcome"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_attempts_total", Help: "Attempts of settled deliveries by destination.",
		}, []string{"destination"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cdc_relay_delivery_seconds", Help: "From a row's commit to the receiver's 2xx.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900},
		}, []string{"destination"}),
	}
	registry.MustRegister(
		m.outcomes, m.attempts, m.latency,
		gauge("cdc_relay_in_flight_events", "Events handed on and not settled.", r.InFlightEvents),
		gauge("cdc_relay_in_flight_bytes", "Bytes of the events in flight.", r.InFlightBytes),
		gauge("cdc_relay_lag_bytes", "WAL from the confirmed position to the server's, as last told.", r.LagBytes),
		gauge("cdc_relay_streaming", "1 while this relay streams the slot, 0 while it stands by or has no connection.", r.Streaming),
		gauge("cdc_relay_parked_events", "Events that wait for a later attempt.", r.ParkedEvents),
		gauge("cdc_relay_forgotten_rows", "Unsettled outbox rows that the slot has passed by.", r.ForgottenRows),
	)
	return m
}

func gauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

// Settled counts a settle batch.
func (m *Relay) Settled(batch []outbox.Outcome) {
	for _, o := range batch {
		m.outcomes.WithLabelValues(o.Destination, o.Fate.String()).Inc()
		m.attempts.WithLabelValues(o.Destination).Add(float64(len(o.Attempts)))
		if o.Fate == outbox.Delivered && o.ReplayID == "" {
			m.latency.WithLabelValues(o.Destination).Observe(o.DoneAt.Sub(o.Event.CommitTime).Seconds())
		}
	}
}
