package dispatcher

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Destination is one place that events go to.
type Destination struct {
	Name        string
	Match       Match
	Sender      Sender
	Concurrency int  // deliveries under way at once
	Unordered   bool // aggregates' order is not kept
	Blocking    bool // a DEAD event keeps the later ones of its aggregate waiting
	RateLimit   float64
	Breaker     Breaker
	Attempts    int             // inline attempts of a delivery
	Schedule    []time.Duration // waits before the later attempts
	ShortWait   time.Duration   // a Retry-After up to this is waited for in place
	RoundTime   time.Duration   // the longest that a round can take
}

// lease is how long a parked delivery that was taken up is nobody else's.
func (d *Destination) lease() time.Duration { return max(30*time.Second, 4*d.RoundTime) }

// destination is a Destination at work.
type destination struct {
	name    string
	lanes   *lanes
	now     func() time.Time
	log     zerolog.Logger
	parking bool
	tracer  trace.Tracer // nil for none

	current atomic.Pointer[settings]
	claimed atomic.Int64 // parked deliveries in hand

	began  atomic.Int64 // when the last round began, in Unix nanoseconds
	waited atomic.Int64 // how long its delivery had been queued
}

// settings are what a reload replaces.
type settings struct {
	Destination
	router *Router
	gate   *gate
}

// delivery is one event on its way to one destination.
type delivery struct {
	event       *outbox.Event
	destination *destination
	lane        string
	ordered     bool
	siblings    int    // deliveries of the event, this one included
	defect      string // why it can't be sent
	queuedAt    time.Time
	rounds      int              // rounds that are over
	inline      int              // attempts of the first round, which is not over
	tries       int              // attempts in all
	attempts    []outbox.Attempt // of the rounds made here, when they are made in place

	letter *deadletter.Letter // when it came from the dead letters
	next   bool               // and the one behind it in its lane is in hand too
}

// outcome begins the outcome of a delivery.
func (d *delivery) outcome() outbox.Outcome {
	o := outbox.Outcome{
		Event: d.event, Destination: d.destination.name, Deliveries: d.siblings, Ordered: d.ordered,
		Attempts: d.attempts, Tries: d.tries, Rounds: d.rounds, DoneAt: d.destination.now(), ReplayID: d.event.Replay,
	}
	if d.letter != nil {
		o.LetterID, o.ReplayID = d.letter.ID, d.letter.ReplayID
	}
	return o
}

// again tells whether a replay asked for the delivery.
func (d *delivery) again() bool { return d.event.Replay != "" }

// behind is the outcome of a delivery that waits behind an earlier one.
func (d *delivery) behind() outbox.Outcome {
	return d.parkedFor("behind an earlier event of its aggregate", time.Time{})
}

func (d *delivery) parkedFor(reason string, next time.Time) outbox.Outcome {
	o := d.outcome()
	o.Fate, o.Reason, o.NextAttempt = outbox.Scheduled, reason, next
	return o
}

// dropped takes note that a parked delivery is not in hand any more.
func (d *delivery) dropped() { d.destination.claimed.Add(-1) }

// accept returns the delivery of an event that the destination wants, or nil.
func (d *destination) accept(event *outbox.Event) *delivery {
	set := d.current.Load()
	wanted, err := set.router.Route(event)
	if err == nil && !wanted {
		return nil
	}
	accepted := d.deliver(event, set)
	if err != nil {
		accepted.defect = err.Error()
	}
	return accepted
}

// deliver makes the delivery of an event.
func (d *destination) deliver(event *outbox.Event, set *settings) *delivery {
	made := &delivery{event: event, destination: d, defect: event.Defect, queuedAt: d.now()}
	if key, ordered := event.Lane(); ordered && !set.Unordered {
		made.lane, made.ordered = key, true
	}
	return made
}

// takeUp makes a delivery of a parked event.
func (d *destination) takeUp(letter *deadletter.Letter, next bool) *delivery {
	taken := &delivery{
		event: letter.Event, destination: d, defect: letter.Event.Defect,
		rounds: letter.Rounds, tries: letter.Tries, letter: letter, next: next,
	}
	if letter.Ordered {
		taken.lane, taken.ordered = first(letter.Event.Lane()), true
	}
	return taken
}

func first(key string, _ bool) string { return key }

// work makes one round of a delivery, if the gate lets it, and says what it came to.
func (d *destination) work(ctx context.Context, delivery *delivery) step {
	set := d.current.Load()
	outcome := delivery.outcome()
	switch {
	case delivery.defect != "":
		outcome.Fate, outcome.Reason = outbox.Dead, delivery.defect
		return d.conclude(delivery, outcome)
	case delivery.letter != nil && d.now().Add(set.RoundTime).After(delivery.letter.Lease):
		// It may be somebody else's before the round is over. Left where it stands, it
		// is taken up again when the lease has ended.
		delivery.dropped()
		return step{}
	}
	leave, wait, reason := set.gate.enter()
	if reason != "" {
		return d.putOff(delivery, wait, reason)
	}
	if err := set.gate.throttle(ctx); err != nil {
		leave(true)
		return step{}
	}
	return d.round(ctx, set, delivery, leave)
}

// putOff waits in place for as long as the gate stays closed, if that is short or
// nothing is ever parked, and else parks without having attempted anything.
func (d *destination) putOff(delivery *delivery, wait time.Duration, reason string) step {
	if !d.parking || wait <= d.current.Load().ShortWait && reason == reasonHeld {
		return step{postpone: wait}
	}
	return d.conclude(delivery, delivery.parkedFor(reason, d.now().Add(wait)))
}

// round sends, and judges what comes of it.
func (d *destination) round(ctx context.Context, set *settings, delivery *delivery, leave func(bool)) step {
	d.noteBegin(delivery)
	attempts := 1
	if delivery.rounds == 0 {
		attempts = set.Attempts - delivery.inline
	}
	replay := delivery.event.Replay
	if delivery.letter != nil {
		replay = delivery.letter.ReplayID
	}
	result, err := d.send(ctx, set.Sender, delivery, Round{Event: delivery.event, First: delivery.tries + 1, Attempts: attempts, ReplayID: replay})
	if err != nil {
		leave(true) // nobody can say
		return step{}
	}
	asked := result.Verdict.RetryAfter
	leave(result.Verdict.Delivered || result.Verdict.Permanent || asked > 0 || result.Defect != "")
	if asked > 0 {
		set.gate.hold(asked)
	}
	delivery.tries += len(result.Attempts)
	delivery.attempts = append(delivery.attempts, result.Attempts...)
	if delivery.rounds == 0 && asked > 0 && asked <= set.ShortWait && len(result.Attempts) < attempts {
		delivery.inline += len(result.Attempts)
		return step{postpone: asked}
	}
	delivery.rounds++
	outcome := delivery.outcome()
	if n := len(result.Attempts); n > 0 {
		outcome.Status = result.Attempts[n-1].Status
	}
	switch {
	case result.Verdict.Delivered:
		outcome.Fate = outbox.Delivered
	case result.Defect != "":
		outcome.Fate, outcome.Reason = outbox.Dead, result.Defect
	case result.Verdict.Permanent:
		outcome.Fate, outcome.Reason = outbox.Dead, "the receiver answered that it is gone for good (410)"
	case delivery.rounds > len(set.Schedule):
		outcome.Fate, outcome.Reason = outbox.Dead, "attempts are spent"
	default:
		return d.later(delivery, outcome, max(set.Schedule[delivery.rounds-1], asked))
	}
	return d.conclude(delivery, outcome)
}

// send makes the attempts of a round, within its span when there are traces.
func (d *destination) send(ctx context.Context, sender Sender, delivery *delivery, round Round) (Result, error) {
	if d.tracer == nil {
		return sender.Send(ctx, round)
	}
	ctx, span := d.traceRound(ctx, delivery)
	result, err := sender.Send(ctx, round)
	endRound(span, result, err, d.now())
	return result, err
}

// queueLimit is how long deliveries may wait in a destination's queue before it
// counts as too slow for its stream of events.
const queueLimit = 2 * time.Second

func (d *destination) noteBegin(delivery *delivery) {
	now := d.now()
	d.began.Store(now.UnixNano())
	if delivery.letter == nil && !delivery.again() {
		d.waited.Store(int64(now.Sub(delivery.queuedAt)))
	}
}

// slow tells whether deliveries wait too long, or nothing has begun for too long.
func (d *destination) slow() bool {
	return time.Duration(d.waited.Load()) > queueLimit || d.now().Sub(time.Unix(0, d.began.Load())) > queueLimit
}

// idle tells whether the destination could do more than it has to.
func (d *destination) idle() bool {
	set := d.current.Load()
	queued, _, _ := d.lanes.load()
	return queued < set.Concurrency && !set.router.nothing && set.gate.readiness() == open
}

// later schedules the next round: in the dead letters, or in place.
func (d *destination) later(delivery *delivery, outcome outbox.Outcome, wait time.Duration) step {
	if !d.parking {
		return step{postpone: wait}
	}
	outcome.Fate, outcome.Reason, outcome.NextAttempt = outbox.Scheduled, "waits for its next attempt", d.now().Add(wait)
	return d.conclude(delivery, outcome)
}

// conclude makes the step of a known outcome.
func (d *destination) conclude(delivery *delivery, o outbox.Outcome) step {
	o.DoneAt = d.now()
	if delivery.letter != nil && delivery.next && o.Fate != outbox.Scheduled {
		o.NextHeldUntil = delivery.letter.Lease
	}
	d.logOutcome(o)
	// What follows a dead event may go on only when its death is recorded: else a
	// crash now would bring it back to life behind its followers.
	dies := o.Fate == outbox.Dead && delivery.ordered
	blocks := dies && d.current.Load().Blocking
	return step{outcome: o, known: true, park: o.Fate == outbox.Scheduled || blocks, hold: dies && !blocks}
}

func (d *destination) logOutcome(o outbox.Outcome) {
	entry := d.log.Debug()
	if o.Fate == outbox.Dead {
		entry = d.log.Warn()
	}
	if !entry.Enabled() {
		return
	}
	entry.Str("event_id", o.Event.ID).Stringer("lsn", o.Event.Position).
		Int("attempts", o.Tries).Int("status", o.Status)
	if n := len(o.Attempts); n > 0 && o.Attempts[n-1].Error != "" {
		entry.Str("error", o.Attempts[n-1].Error)
	}
	if o.Reason != "" {
		entry.Str("reason", o.Reason)
	}
	entry.Msg(o.Fate.String())
}
