package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Inbox counts what the inbox does. It is safe for concurrent use.
type Inbox struct {
	answers    *prometheus.CounterVec
	answerTime *prometheus.HistogramVec
	attempts   *prometheus.CounterVec
	rows       *prometheus.GaugeVec
}

// NewInbox registers the inbox's metrics.
func NewInbox(registry prometheus.Registerer) *Inbox {
	m := &Inbox{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_inbox_answers_total", Help: "Answers to inbound webhooks by partner and status.",
		}, []string{"partner", "code"}),
		answerTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cdc_relay_inbox_answer_seconds", Help: "From an inbound webhook's first byte to its answer.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"partner"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_inbox_attempts_total", Help: "Attempts at stored events by partner and by what came of them.",
		}, []string{"partner", "outcome"}),
		rows: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cdc_relay_inbox_rows", Help: "Stored events that are not done with, by partner and status, as last counted.",
		}, []string{"partner", "status"}),
	}
	registry.MustRegister(m.answers, m.answerTime, m.attempts, m.rows)
	return m
}

// Answered counts an answer.
func (m *Inbox) Answered(partner string, code int, took time.Duration) {
	m.answers.WithLabelValues(partner, strconv.Itoa(code)).Inc()
	m.answerTime.WithLabelValues(partner).Observe(took.Seconds())
}

// Attempted counts an attempt at a stored event.
func (m *Inbox) Attempted(partner, outcome string) {
	m.attempts.WithLabelValues(partner, outcome).Inc()
}

// RowCount is how many stored events of a partner have a status.
type RowCount struct {
	Partner, Status string
	Count           int
}

// Rows takes over a fresh count of the stored events.
func (m *Inbox) Rows(counts []RowCount) {
	m.rows.Reset()
	for _, c := range counts {
		m.rows.WithLabelValues(c.Partner, c.Status).Set(float64(c.Count))
	}
}
