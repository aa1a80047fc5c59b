package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// destination is a Destination at work.
type destination struct {
	settings Destination
	router   *Router
	lanes    *lanes
	now      func() time.Time
	log      zerolog.Logger
}

// delivery is one event on its way to one destination.
type delivery struct {
	event       *outbox.Event
	destination *destination
	lane        string
	ordered     bool
	siblings    int    // deliveries of the event, this one included
	defect      string // why it can't be sent
}

func (d *destination) open(ctx context.Context, report func(outbox.Outcome)) {
	d.lanes = newLanes(d.settings.Concurrency, func(delivery *delivery) {
		if outcome, known := d.deliver(ctx, delivery); known {
			report(outcome)
		}
	})
}

// accept returns the delivery of an event that the destination wants, or nil.
func (d *destination) accept(event *outbox.Event) *delivery {
	wanted, err := d.router.Route(event)
	if err == nil && !wanted {
		return nil
	}
	accepted := &delivery{event: event, destination: d, defect: event.Defect}
	accepted.lane, accepted.ordered = event.Lane()
	if d.settings.Unordered {
		accepted.ordered = false
	}
	if err != nil {
		accepted.defect = err.Error()
	}
	return accepted
}

// deliver runs a delivery to its outcome. known is false when ctx ended first:
// then nobody can tell what the receiver got, and the event comes again.
func (d *destination) deliver(ctx context.Context, delivery *delivery) (outcome outbox.Outcome, known bool) {
	outcome = outbox.Outcome{
		Event: delivery.event, Destination: d.settings.Name,
		Deliveries: delivery.siblings, Ordered: delivery.ordered,
	}
	switch {
	case slices.Contains(delivery.event.Settled, d.settings.Name):
		outcome.Fate = outbox.Repeated
	case delivery.defect != "":
		outcome.Fate, outcome.Reason = outbox.Dead, delivery.defect
	default:
		result, err := d.settings.Sender.Send(ctx, Round{Event: delivery.event, First: 1, Attempts: d.settings.Attempts})
		if err != nil {
			return outbox.Outcome{}, false
		}
		conclude(&outcome, result)
	}
	outcome.DoneAt = d.now()
	d.logOutcome(outcome)
	return outcome, true
}

// conclude says what a round's result means for its delivery.
func conclude(o *outbox.Outcome, r Result) {
	o.Attempts, o.Tries = r.Attempts, len(r.Attempts)
	if n := len(r.Attempts); n > 0 {
		o.Status = r.Attempts[n-1].Status
	}
	switch {
	case r.Verdict.Delivered:
		o.Fate = outbox.Delivered
	case r.Defect != "":
		o.Fate, o.Reason = outbox.Dead, r.Defect
	case r.Verdict.Permanent:
		o.Fate, o.Reason = outbox.Dead, "the receiver answered that it is gone for good"
	default:
		o.Fate, o.Reason = outbox.Dead, "attempts are spent"
	}
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
