package telemetry

import "github.com/prometheus/client_golang/prometheus"

// DestinationReading is a destination at the time of a scrape.
type DestinationReading struct {
	Name         string
	Circuit      string // closed, half-open, open, off
	Paused       bool
	Held         bool
	Queued, Busy int
	Limit        int
}

// destinations collects the gauges of destinations, which come and go with reloads.
type destinations struct{ read func() []DestinationReading }

var (
	circuitGauge = describe("cdc_relay_circuit_open", "1 while the destination's circuit breaker is open, 0.5 while it probes, else 0.")
	pausedGauge  = describe("cdc_relay_destination_paused", "1 while a person has the destination paused.")
	heldGauge    = describe("cdc_relay_destination_held", "1 while the receiver has asked to be left alone (Retry-After).")
	queuedGauge  = describe("cdc_relay_destination_queued", "Deliveries in hand for the destination.")
	busyGauge    = describe("cdc_relay_destination_busy", "Deliveries to the destination under way.")
	limitGauge   = describe("cdc_relay_destination_concurrency", "The most deliveries to the destination under way at once.")
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"destination"}, nil)
}

// Describe implements prometheus.Collector.
func (d destinations) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{circuitGauge, pausedGauge, heldGauge, queuedGauge, busyGauge, limitGauge} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (d destinations) Collect(metrics chan<- prometheus.Metric) {
	for _, r := range d.read() {
		set := func(desc *prometheus.Desc, value float64) {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, r.Name)
		}
		set(circuitGauge, map[string]float64{"open": 1, "half-open": 0.5}[r.Circuit])
		set(pausedGauge, number(r.Paused))
		set(heldGauge, number(r.Held))
		set(queuedGauge, float64(r.Queued))
		set(busyGauge, float64(r.Busy))
		set(limitGauge, float64(r.Limit))
	}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
