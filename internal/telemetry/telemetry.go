// Package telemetry holds the metrics of the relay and of the inbox, the figures that
// the charts of the admin page are drawn from, and the tracing.
// https://prometheus.io/docs/practices/naming/
package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// NewRegistry returns a registry that knows of the process itself.
func NewRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "cdc_relay_build_info", Help: "Always 1; the version of the program is its label.", ConstLabels: prometheus.Labels{"version": version},
		}, func() float64 { return 1 }),
	)
	return registry
}

// Readings are what is read of the relay at each scrape.
type Readings struct {
	InFlightEvents func() float64
	InFlightBytes  func() float64
	WindowEvents   float64
	WindowBytes    float64
	WindowFull     func() float64 // 1 while reading stops because of it
	LagBytes       func() float64 // from the confirmed position to the server's, as the server last told
	LagSeconds     func() float64 // age of the oldest event in flight; 0 for none
	Streaming      func() float64 // 1 while streaming
	Sessions       func() float64
	ParkedEvents   func() float64
	ParkedLimit    float64
	ForgottenRows  func() float64
	Destinations   func() []DestinationReading
}

// Relay counts what the relay does. It is safe for concurrent use.
type Relay struct {
	outcomes       *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	attemptTime    *prometheus.HistogramVec
	latency        *prometheus.HistogramVec
	replayed       *prometheus.CounterVec
	settleTime     prometheus.Histogram
	settleSize     prometheus.Histogram
	settleFailures prometheus.Counter

	sampler sampler
}

// NewRelay registers the relay's metrics.
func NewRelay(registry prometheus.Registerer, r Readings) *Relay {
	m := &Relay{
		outcomes:       counters("cdc_relay_outcomes_total", "Settled deliveries by destination and by how they ended.", "destination", "outcome"),
		attempts:       counters("cdc_relay_attempts_total", "Attempts of settled deliveries by destination and by the status that came: 2xx, 3xx, 4xx, 5xx, or none.", "destination", "status"),
		attemptTime:    histograms("cdc_relay_attempt_seconds", "How long an attempt took, from connecting to the answer's end.", "destination"),
		latency:        histograms("cdc_relay_delivery_seconds", "From a row's commit to the receiver's 2xx.", "destination"),
		replayed:       counters("cdc_relay_replayed_total", "Deliveries that somebody asked for again, by destination and by how they ended.", "destination", "outcome"),
		settleTime:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cdc_relay_settle_seconds", Help: "How long a settle transaction took.", Buckets: waits}),
		settleSize:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cdc_relay_settle_outcomes", Help: "How many outcomes a settle transaction recorded.", Buckets: prometheus.ExponentialBuckets(1, 2, 12)}),
		settleFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "cdc_relay_settle_failures_total", Help: "Settle transactions that failed, and are tried again."}),
		sampler:        newSampler(),
	}
	registry.MustRegister(
		m.outcomes, m.attempts, m.attemptTime, m.latency, m.replayed, m.settleTime, m.settleSize, m.settleFailures,
		gauge("cdc_relay_in_flight_events", "Events handed on and not settled.", r.InFlightEvents),
		gauge("cdc_relay_in_flight_bytes", "Bytes of the events in flight.", r.InFlightBytes),
		gauge("cdc_relay_window_events", "The most events that may be in flight.", constant(r.WindowEvents)),
		gauge("cdc_relay_window_bytes", "The most bytes of events that may be in flight.", constant(r.WindowBytes)),
		gauge("cdc_relay_window_full", "1 while reading stops because the window is full.", r.WindowFull),
		gauge("cdc_relay_lag_bytes", "WAL from the confirmed position to the server's, as last told.", r.LagBytes),
		gauge("cdc_relay_lag_seconds", "Age of the oldest event in flight, from its commit; 0 when there is none.", r.LagSeconds),
		gauge("cdc_relay_streaming", "1 while this relay streams the slot, 0 while it stands by or has no connection.", r.Streaming),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "cdc_relay_sessions_total", Help: "How often this relay began to stream: more than one says that connections were lost."}, r.Sessions),
		gauge("cdc_relay_parked_events", "Events that wait for a later attempt.", r.ParkedEvents),
		gauge("cdc_relay_parked_limit", "The number of parked events at which reading stops (parking.max_rows).", constant(r.ParkedLimit)),
		gauge("cdc_relay_forgotten_rows", "Unsettled outbox rows that the slot has passed by.", r.ForgottenRows),
		destinations{r.Destinations},
	)
	return m
}

// waits are the buckets of everything that is waited for, in seconds.
var waits = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func histograms(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: waits}, labels)
}

func gauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

func constant(value float64) func() float64 { return func() float64 { return value } }

// Expect makes the counters of destinations begin at zero, so that the first of
// anything is seen as a rise.
func (m *Relay) Expect(destinations []string) {
	for _, name := range destinations {
		for _, fate := range []outbox.Fate{outbox.Delivered, outbox.Scheduled, outbox.Dead} {
			m.outcomes.WithLabelValues(name, fate.String())
		}
		for _, status := range []string{"2xx", "3xx", "4xx", "5xx", "none"} {
			m.attempts.WithLabelValues(name, status)
		}
		m.attemptTime.WithLabelValues(name)
		m.latency.WithLabelValues(name)
	}
}

// Settled counts a settle batch.
func (m *Relay) Settled(batch []outbox.Outcome) {
	m.sampler.settled(batch)
	for i := range batch {
		o := &batch[i]
		fate := o.Fate.String()
		m.outcomes.WithLabelValues(o.Destination, fate).Inc()
		for _, a := range o.Attempts {
			m.attempts.WithLabelValues(o.Destination, statusClass(a.Status)).Inc()
			m.attemptTime.WithLabelValues(o.Destination).Observe(a.Duration.Seconds())
		}
		switch {
		case o.ReplayID != "":
			m.replayed.WithLabelValues(o.Destination, fate).Inc()
		case o.Fate == outbox.Delivered:
			m.latency.WithLabelValues(o.Destination).Observe(o.DoneAt.Sub(o.Event.CommitTime).Seconds())
		}
	}
}

func statusClass(status int) string {
	if status < 100 || status > 599 {
		return "none"
	}
	return strconv.Itoa(status/100) + "xx"
}

// Wrote counts a settle transaction.
func (m *Relay) Wrote(took time.Duration, outcomes int, err error) {
	if err != nil {
		m.settleFailures.Inc()
		return
	}
	m.settleTime.Observe(took.Seconds())
	m.settleSize.Observe(float64(outcomes))
}

// Sample takes the figures since the last sample.
func (m *Relay) Sample() Sample { return m.sampler.take() }
