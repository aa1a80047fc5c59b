// Package dispatcher turns an Event into Outcomes: it routes the event to the
// destinations that want it, keeps each aggregate's order in lanes, sends, judges
// the answer, and says how each delivery ended.
//
//	Event ─► Router.Route ─► lanes.push ─► Sender.Send ─► Judge ─► Outcome
//
// It makes nothing durable itself. An Outcome counts only when the batch that
// holds it has been recorded, which is checkpoint's work.
//
// Run starts one goroutine for each delivery under way, at most as many as the
// destinations' concurrency allows, and waits for all of them.
package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Options are what a Dispatcher is made of.
type Options struct {
	Destinations []Destination
	Outcomes     chan<- outbox.Outcome // closed by Run at its end
	Now          func() time.Time
	Log          zerolog.Logger
}

// Destination is one place that events go to.
type Destination struct {
	Name        string
	Match       Match
	Sender      Sender
	Concurrency int  // deliveries under way at once
	Unordered   bool // aggregates' order is not kept
	Attempts    int  // inline attempts of a delivery
}

// Dispatcher owns the lanes of all destinations.
type Dispatcher struct {
	options      Options
	destinations []*destination
}

// New compiles the destinations' matches.
func New(o Options) (*Dispatcher, error) {
	d := &Dispatcher{options: o}
	for _, settings := range o.Destinations {
		router, err := NewRouter(settings.Match)
		if err != nil {
			return nil, fmt.Errorf("destination %s: match: %w", settings.Name, err)
		}
		d.destinations = append(d.destinations, &destination{
			settings: settings, router: router, now: o.Now,
			log: o.Log.With().Str("destination", settings.Name).Logger(),
		})
	}
	return d, nil
}

// Run dispatches events until the channel is closed, then lets the deliveries
// that are under way finish. What was queued and never attempted is dropped: it
// is unsettled, so the slot gives it again. When ctx ends, the attempts under
// way are broken off and have no outcome.
func (d *Dispatcher) Run(ctx context.Context, events <-chan *outbox.Event) error {
	defer close(d.options.Outcomes)
	report := func(o outbox.Outcome) {
		select {
		case d.options.Outcomes <- o:
		case <-ctx.Done():
		}
	}
	for _, destination := range d.destinations {
		destination.open(ctx, report)
	}
	defer d.close()
	for {
		select {
		case event, more := <-events:
			if !more {
				return nil
			}
			d.dispatch(event, report)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (d *Dispatcher) close() {
	for _, destination := range d.destinations {
		destination.lanes.stop()
	}
	for _, destination := range d.destinations {
		destination.lanes.wait()
	}
}

// dispatch hands the event to each destination that wants it. All are asked
// before the first is handed anything, because an outcome must say how many
// deliveries its event has.
func (d *Dispatcher) dispatch(event *outbox.Event, report func(outbox.Outcome)) {
	var matching []*delivery
	for _, destination := range d.destinations {
		if delivery := destination.accept(event); delivery != nil {
			matching = append(matching, delivery)
		}
	}
	if len(matching) == 0 {
		report(outbox.Outcome{Event: event, Fate: outbox.Unmatched, DoneAt: d.options.Now()})
		return
	}
	for _, delivery := range matching {
		delivery.siblings = len(matching)
		delivery.destination.lanes.push(delivery)
	}
}
