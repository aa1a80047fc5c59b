// Package dispatcher turns an Event into Outcomes: it routes the event to the
// destinations that want it, keeps each aggregate's order in lanes, sends, judges
// the answer, and says how each delivery ended.
//
//	Event ─► Router.Route ─► lanes.push ─► gate ─► Sender.Send ─► Judge ─► Outcome
//	dead letters ─► parking.claim ──┘
//
// It makes nothing durable itself. An Outcome counts only when the batch that
// holds it has been recorded, which is checkpoint's work; Settled tells the
// dispatcher of it.
//
// Run starts one goroutine for each delivery under way, at most as many as the
// destinations' concurrency allows, and one for the parked deliveries. It waits
// for all of them.
package dispatcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Options are what a Dispatcher is made of.
type Options struct {
	Destinations []Destination
	Outcomes     chan<- outbox.Outcome // closed by Run at its end
	// Resends are events to be sent once more. They stand in the lanes of their
	// aggregates, but take no more than half of a destination's concurrency, and none
	// of it that the stream's events have a use for.
	Resends <-chan outbox.Resend
	// DeadLetters holds parked deliveries; nil parks nothing: then every round is
	// made in place, and the event stays in flight meanwhile.
	DeadLetters *deadletter.Store
	// WindowEvents and WindowBytes are what may be in flight in all. A destination
	// that holds half of it while another has nothing to do is parked at once.
	WindowEvents int
	WindowBytes  int
	Now          func() time.Time
	// Tracer makes a span of each round, below the span that the row's headers name in
	// traceparent; nil makes none.
	Tracer trace.Tracer
	Log    zerolog.Logger
}

// Dispatcher owns the lanes of all destinations.
type Dispatcher struct {
	options Options
	parking *parking // nil when nothing is parked

	ctx context.Context // of Run, for the workers that it starts

	mu           sync.RWMutex
	destinations []*destination
}

// New compiles the destinations' matches.
func New(o Options) (*Dispatcher, error) {
	d := &Dispatcher{options: o}
	if o.DeadLetters != nil {
		d.parking = newParking(o.DeadLetters, d.all, o.Log)
	}
	for _, settings := range o.Destinations {
		destination, err := d.build(settings)
		if err != nil {
			return nil, err
		}
		d.destinations = append(d.destinations, destination)
	}
	return d, nil
}

func (d *Dispatcher) build(s Destination) (*destination, error) {
	built := &destination{
		name: s.Name, now: d.options.Now, tracer: d.options.Tracer, parking: d.parking != nil,
		log: d.options.Log.With().Str("destination", s.Name).Logger(),
	}
	// Work begins with the first push, which only Run makes, after it has set ctx.
	built.lanes = newLanes(s.Concurrency, func(delivery *delivery) step { return built.work(d.ctx, delivery) }, d.report)
	return built, built.apply(s)
}

// apply puts a destination's settings in force.
func (d *destination) apply(s Destination) error {
	router, err := NewRouter(s.Match)
	if err != nil {
		return fmt.Errorf("destination %s: match: %w", s.Name, err)
	}
	gate := newGate(s.Name, s.Breaker, s.RateLimit, d.now, func(from, to string) {
		d.log.Warn().Str("from", from).Str("to", to).Msg("circuit breaker changed")
	})
	if old := d.current.Load(); old != nil {
		gate.pause(old.gate.isPaused())
	}
	d.current.Store(&settings{Destination: s, router: router, gate: gate})
	d.lanes.resize(s.Concurrency)
	return nil
}

func (d *Dispatcher) all() []*destination {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.destinations
}

// Run dispatches events until the channel is closed, then lets the deliveries
// that are under way finish. What was queued and never attempted is dropped: it
// is unsettled, so the slot gives it again. When ctx ends, the attempts under
// way are broken off and have no outcome.
func (d *Dispatcher) Run(ctx context.Context, events <-chan *outbox.Event) error {
	defer close(d.options.Outcomes)
	d.ctx = ctx
	defer d.close()
	defer d.startParking(ctx)()
	for {
		select {
		case event, more := <-events:
			if !more {
				return nil
			}
			d.dispatch(event)
		case again := <-d.options.Resends:
			d.resend(again)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// startParking starts parking's goroutine and gives what ends it and waits for it.
func (d *Dispatcher) startParking(ctx context.Context) (stop func()) {
	if d.parking == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { d.parking.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (d *Dispatcher) close() {
	destinations := d.all()
	for _, destination := range destinations {
		destination.lanes.stop()
	}
	for _, destination := range destinations {
		destination.lanes.wait()
	}
}

func (d *Dispatcher) report(o outbox.Outcome) {
	select {
	case d.options.Outcomes <- o:
	case <-d.ctx.Done():
	}
}

// LoadParked marks the lanes that stand in the dead letters, so that their events
// wait. It must have succeeded before the first event of a stream is dispatched.
func (d *Dispatcher) LoadParked(ctx context.Context) error {
	if d.parking == nil {
		return nil
	}
	return d.parking.loadLanes(ctx)
}

// Settled takes note of outcomes that are recorded. It may be called from any
// goroutine and doesn't wait.
func (d *Dispatcher) Settled(batch []outbox.Outcome) {
	destinations := d.all()
	for _, o := range batch {
		key, ordered := o.Event.Lane()
		if o.Fate != outbox.Dead || o.Parked || !ordered || !o.Ordered {
			continue
		}
		for _, destination := range destinations {
			if destination.name == o.Destination {
				destination.lanes.release(key)
			}
		}
	}
	if d.parking != nil {
		d.parking.settled(batch)
	}
}

// dispatch hands the event to each destination that wants it. All are asked
// before the first is handed anything, because an outcome must say how many
// deliveries its event has.
func (d *Dispatcher) dispatch(event *outbox.Event) {
	if event.InBacklog {
		d.report(outbox.Outcome{Event: event, Fate: outbox.Superseded, DoneAt: d.options.Now()})
		return
	}
	var matching []*delivery
	for _, destination := range d.all() {
		if delivery := destination.accept(event); delivery != nil {
			matching = append(matching, delivery)
		}
	}
	if len(matching) == 0 {
		d.report(outbox.Outcome{Event: event, Fate: outbox.Unmatched, DoneAt: d.options.Now()})
		return
	}
	for _, delivery := range matching {
		delivery.siblings = len(matching)
		if settled, ok := event.SettledAt(delivery.destination.name); ok {
			if settled.Parked && delivery.ordered && d.parking != nil {
				// It can have been parked after the lanes were loaded: a relay that was killed
				// leaves a last transaction to the server, which may commit it only now.
				d.parking.park(delivery)
			}
			repeated := delivery.outcome()
			repeated.Fate = outbox.Repeated
			d.report(repeated)
			continue
		}
		if d.crowds(delivery.destination) {
			delivery.destination.lanes.shed(reasonBehind)
			delivery.destination.lanes.parkAtOnce(delivery, delivery.parkedFor(reasonBehind, time.Time{}))
			continue
		}
		delivery.destination.lanes.push(delivery)
	}
}

// resend hands an event to a destination whether or not it matches: it did when it
// was delivered first.
func (d *Dispatcher) resend(again outbox.Resend) {
	for _, destination := range d.all() {
		if set := destination.current.Load(); destination.name == again.Destination && !set.router.nothing {
			destination.lanes.push(destination.deliver(again.Event, set))
			return
		}
	}
	d.report(outbox.Outcome{
		Event: again.Event, Destination: again.Destination, Fate: outbox.Unmatched, ReplayID: again.Event.Replay, DoneAt: d.options.Now(),
	})
}

// Route names the destinations that want an event. It may be called from any
// goroutine.
func (d *Dispatcher) Route(event *outbox.Event) []string {
	var names []string
	for _, destination := range d.all() {
		if destination.accept(event) != nil {
			names = append(names, destination.name)
		}
	}
	return names
}

// reasonBehind stands with an event that was parked because its destination is too
// slow for the others.
const reasonBehind = "the destination is behind the others"

// crowds tells whether a destination that is too slow for its events holds so
// much of the window that others have nothing to do, or soon will not have: then
// what is for it goes to the dead letters' table at once, and the window is free
// for the others.
func (d *Dispatcher) crowds(crowding *destination) bool {
	if d.parking == nil || !crowding.slow() {
		return false
	}
	deliveries, bytes, _ := crowding.lanes.load()
	if 2*deliveries < d.options.WindowEvents && 2*bytes < d.options.WindowBytes {
		return false
	}
	destinations := d.all()
	most := 4*deliveries >= 3*d.options.WindowEvents || 4*bytes >= 3*d.options.WindowBytes
	return len(destinations) > 1 && (most || othersIdle(destinations, crowding))
}

func othersIdle(destinations []*destination, except *destination) bool {
	for _, other := range destinations {
		if other != except && other.idle() {
			return true
		}
	}
	return false
}

// Reload replaces the settings of the destinations. A destination that is new
// gets events from now on; one that is gone gets no more, but what it has in hand
// is delivered. When any of them can't be put in force, none is.
func (d *Dispatcher) Reload(settings []Destination) error {
	for _, s := range settings {
		if _, err := NewRouter(s.Match); err != nil {
			return fmt.Errorf("destination %s: match: %w", s.Name, err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	byName := make(map[string]*destination)
	for _, destination := range d.destinations {
		byName[destination.name] = destination
	}
	next := make([]*destination, 0, len(settings))
	for _, s := range settings {
		known := byName[s.Name]
		if known != nil {
			if err := known.apply(s); err != nil {
				return err
			}
			delete(byName, s.Name)
		} else {
			var err error
			if known, err = d.build(s); err != nil {
				return err
			}
		}
		next = append(next, known)
	}
	for _, gone := range byName {
		gone.retire()
		next = append(next, gone)
	}
	d.destinations = next
	return nil
}

// retire makes a destination want nothing more.
func (d *destination) retire() {
	set := *d.current.Load()
	set.router = &Router{nothing: true}
	d.current.Store(&set)
}
