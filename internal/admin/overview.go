package admin

import (
	"fmt"
	"html/template"
	"net/http"
	"sort"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

// overviewData is what the first page shows.
type overviewData struct {
	operations.Overview
	Stream       *operations.Instance
	Destinations []shownDestination
	Dead         int64
	Scheduled    int64
	Charts       []shownChart
	PerSecond    float64 // delivered, over the last minute
}

type shownChart struct {
	Title  string
	Lines  []string // names, in the order of their colours
	Latest []string // their last values
	SVG    template.HTML
}

// shownDestination is what is recorded of a destination with what a process knows of it.
type shownDestination struct {
	provision.DestinationStatus
	Live      *operations.LiveDestination
	PerSecond float64 // delivered, over the last minute
	Hour      int64   // delivered in the last hour
}

func (p *pages) overview(w http.ResponseWriter, r *http.Request) error {
	o, err := p.desk.Overview(r.Context(), false)
	if err != nil {
		return err
	}
	now := p.now()
	samples, err := p.desk.Samples(r.Context(), now.Add(-time.Hour))
	if err != nil {
		return err
	}
	data := overviewData{Overview: o, Stream: o.Streamer()}
	for _, d := range o.Destinations {
		shown := shownDestination{DestinationStatus: d, Live: o.LiveOf(d.Name)}
		shown.PerSecond, shown.Hour = rates(samples, d.Name, now)
		data.Destinations = append(data.Destinations, shown)
		data.Dead += d.Dead
		data.Scheduled += d.Scheduled
		data.PerSecond += shown.PerSecond
	}
	if p.desk.Relays() {
		data.Charts = charts(samples, now)
	}
	return p.show(w, r, "overview", "Overview", "overview", data)
}

// rates gives the delivered of a destination a second over the last minute, and in all.
func rates(samples []operations.Sample, name string, now time.Time) (perSecond float64, all int64) {
	for _, s := range samples {
		for _, d := range s.Destinations {
			if d.Name != name {
				continue
			}
			all += d.Delivered
			if now.Sub(s.At) < time.Minute {
				perSecond += float64(d.Delivered) / 60
			}
		}
	}
	return perSecond, all
}

// charts draws throughput, latency and lag.
func charts(samples []operations.Sample, now time.Time) []shownChart {
	perDestination := make(map[string][]point)
	var p50, p99, lag []point
	for _, s := range samples {
		seconds := max(s.Seconds, 1)
		for _, d := range s.Destinations {
			perDestination[d.Name] = append(perDestination[d.Name], point{s.At, float64(d.Delivered) / seconds})
		}
		if s.P99 > 0 {
			p50, p99 = append(p50, point{s.At, s.P50}), append(p99, point{s.At, s.P99})
		}
		lag = append(lag, point{s.At, float64(s.LagBytes)})
	}
	drawn := func(title string, unit func(float64) string, lines ...line) shownChart {
		c := chart{Title: title, Unit: unit, From: now.Add(-time.Hour), To: now, Lines: lines}
		shown := shownChart{Title: title, SVG: c.SVG()}
		for _, l := range lines {
			shown.Lines = append(shown.Lines, l.Name)
			latest := "–"
			if n := len(l.Points); n > 0 && now.Sub(l.Points[n-1].At) < time.Minute {
				latest = unit(l.Points[n-1].Value)
			}
			shown.Latest = append(shown.Latest, latest)
		}
		return shown
	}
	return []shownChart{
		drawn("Delivered", func(v float64) string { return fmt.Sprintf("%.4g/s", v) }, busiest(perDestination)...),
		drawn("From commit to receipt", writeMillis, line{"p50", p50}, line{"p99", p99}),
		drawn("WAL not yet confirmed", func(v float64) string { return writeBytes(int64(v)) }, line{"lag", lag}),
	}
}

// busiest gives the lines of the destinations with the most deliveries.
func busiest(perDestination map[string][]point) []line {
	lines := make([]line, 0, len(perDestination))
	sums := make(map[string]float64)
	for name, points := range perDestination {
		lines = append(lines, line{name, points})
		for _, p := range points {
			sums[name] += p.Value
		}
	}
	sort.Slice(lines, func(i, j int) bool {
		a, b := lines[i].Name, lines[j].Name
		return sums[a] > sums[b] || sums[a] == sums[b] && a < b
	})
	return lines[:min(len(lines), maxLines)]
}

func (p *pages) actOnDestination(w http.ResponseWriter, r *http.Request) error {
	name, actor := r.PostFormValue("name"), callerOf(r.Context()).actor()
	if r.PostFormValue("action") == "resume" {
		if err := p.desk.Resume(r.Context(), actor, name); err != nil {
			return err
		}
		return p.done(w, r, "/", "%s is resumed: first what was parked is sent, then the rest.", name)
	}
	if err := p.desk.Pause(r.Context(), actor, name, field(r, "reason")); err != nil {
		return err
	}
	return p.done(w, r, "/", "%s is paused: its events are parked until it is resumed.", name)
}

func (p *pages) actions(w http.ResponseWriter, r *http.Request) error {
	before, err := numberOf(r, "after")
	if err != nil {
		return err
	}
	actions, err := p.desk.Actions(r.Context(), before, pageRows)
	if err != nil {
		return err
	}
	return p.show(w, r, "audit", "Audit log", "audit", pageOf(actions, pageRows, func(a operations.Action) int64 { return a.ID }))
}
