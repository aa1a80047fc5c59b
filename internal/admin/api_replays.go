package admin

import (
	"net/http"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/replay"
)

func (a *api) checkpoints(r *http.Request) (any, error) {
	return a.desk.Checkpoints(r.Context(), r.FormValue("all") == "true")
}

func (a *api) saveCheckpoint(r *http.Request) (any, error) {
	var body struct {
		Name  string `json:"name"`
		Label string `json:"label"`
		Hold  bool   `json:"hold"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if body.Name == "" {
		return nil, wrong("the name is empty")
	}
	return a.desk.SaveCheckpoint(r.Context(), callerOf(r.Context()).actor(), body.Name, body.Label, body.Hold)
}

func (a *api) dropCheckpoint(r *http.Request) (any, error) {
	name := r.PathValue("name")
	return map[string]string{"dropped": name}, a.desk.DropCheckpoint(r.Context(), callerOf(r.Context()).actor(), name)
}

func (a *api) replays(r *http.Request) (any, error) {
	limit, err := limitOf(r)
	if err != nil {
		return nil, err
	}
	return a.desk.Replays(r.Context(), limit)
}

func (a *api) replay(r *http.Request) (any, error) {
	return a.desk.Replay(r.Context(), r.PathValue("id"))
}

// wantedReplay is the body that asks for a replay.
type wantedReplay struct {
	replay.Request
	Rate   *float64 `json:"rate"` // events a second; 0 for no limit; usualRate when absent
	DryRun bool     `json:"dry_run"`
}

// usualRate is how many events a second a replay sends unless somebody says otherwise.
const usualRate = 1000

func (a *api) startReplay(r *http.Request) (any, error) {
	var wanted wantedReplay
	if err := decode(r, &wanted); err != nil {
		return nil, err
	}
	if err := wanted.Request.Check(); err != nil {
		return nil, wrong("%v", err)
	}
	rate := float64(usualRate)
	if wanted.Rate != nil {
		rate = *wanted.Rate
	}
	if rate < 0 {
		return nil, wrong("rate can't be negative")
	}
	plan, err := a.desk.PlanReplay(r.Context(), wanted.Request)
	if err != nil || wanted.DryRun {
		return plan, err
	}
	return a.desk.StartReplay(r.Context(), callerOf(r.Context()).actor(), plan, rate)
}

func (a *api) cancelReplay(r *http.Request) (any, error) {
	return a.desk.CancelReplay(r.Context(), callerOf(r.Context()).actor(), r.PathValue("id"))
}

func (a *api) inbound(r *http.Request) (any, error) {
	if !a.desk.HasInbox() {
		return nil, errNoInbox
	}
	f, err := inboundFilter(r)
	if err != nil {
		return nil, err
	}
	limit, err := limitOf(r)
	if err != nil {
		return nil, err
	}
	list, err := a.desk.Inbound(r.Context(), f, limit)
	return pageOf(list, limit, func(e inbox.Stored) int64 { return e.Seq }), err
}

// shownInbound is an inbound event with its payload for people.
type shownInbound struct {
	inbox.Stored
	Headers string `json:"headers,omitempty"`
	Payload string `json:"payload"`
}

func (a *api) inboundEvent(r *http.Request) (any, error) {
	if !a.desk.HasInbox() {
		return nil, errNoInbox
	}
	e, err := a.desk.InboundEvent(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return shownInbound{Stored: e, Headers: a.redact.Read(e.Headers, 0).Text, Payload: a.redact.Read(e.Payload, 0).Text}, nil
}

func (a *api) replayInbound(r *http.Request) (any, error) {
	c, err := a.chosenInbound(r, inbox.Quarantined)
	if err != nil {
		return nil, err
	}
	n, err := a.desk.ReplayInbound(r.Context(), callerOf(r.Context()).actor(), c.Filter)
	return map[string]int{"replayed": n}, err
}

func (a *api) discardInbound(r *http.Request) (any, error) {
	c, err := a.chosenInbound(r, inbox.Quarantined, inbox.Deferred)
	if err != nil {
		return nil, err
	}
	n, err := a.desk.DiscardInbound(r.Context(), callerOf(r.Context()).actor(), c.Filter, c.Reason)
	return map[string]int{"discarded": n}, err
}

// chosenInbound reads what an action is done to; statuses are those that are meant
// unless the body names some.
func (a *api) chosenInbound(r *http.Request, statuses ...inbox.Status) (c choice[inbox.Filter], err error) {
	if !a.desk.HasInbox() {
		return c, errNoInbox
	}
	if err := c.read(r, inbox.Filter.Narrows); err != nil {
		return c, err
	}
	c.Filter.Statuses = orElse(c.Filter.Statuses, statuses...)
	return c, nil
}
