package admin

import (
	"net/http"
	"net/url"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/operations"
)

// inboundFields are the fields of the filter.
var inboundFields = []string{"status", "partner", "partner_event_id", "event_type", "entity_key", "since", "until"}

type inboundTally = inbox.Tally

// inboundData is the list of inbound events.
type inboundData struct {
	Events   page[inbox.Stored]
	Filter   url.Values
	Statuses []string
	Older    url.Values
}

func (p *pages) inbound(w http.ResponseWriter, r *http.Request) error {
	if !p.desk.HasInbox() {
		return errNoInbox
	}
	f, err := inboundFilter(r)
	if err != nil {
		return err
	}
	data := inboundData{Filter: kept(r, inboundFields...)}
	f.Statuses = orElse(f.Statuses, inbox.Deferred, inbox.Quarantined)
	for _, s := range f.Statuses {
		data.Statuses = append(data.Statuses, string(s))
	}
	events, err := p.desk.Inbound(r.Context(), f, pageRows)
	if err != nil {
		return err
	}
	data.Events = pageOf(events, pageRows, func(e inbox.Stored) int64 { return e.Seq })
	data.Older = following(data.Filter, data.Events.Next)
	return p.show(w, r, "inbound", "Inbox", "inbox", data)
}

// inboundEventData is one inbound event.
type inboundEventData struct {
	inbox.Stored
	Payload operations.Readable
	Headers operations.Readable
}

func (p *pages) inboundEvent(w http.ResponseWriter, r *http.Request) error {
	e, err := p.findInbound(r)
	if err != nil {
		return err
	}
	data := inboundEventData{Stored: e, Payload: p.redact.Read(e.Payload, shownPayload), Headers: p.redact.Read(e.Headers, shownPayload)}
	return p.show(w, r, "inbound_event", "Inbound event", "inbox", data)
}

func (p *pages) findInbound(r *http.Request) (inbox.Stored, error) {
	if !p.desk.HasInbox() {
		return inbox.Stored{}, errNoInbox
	}
	ids := []string{r.PathValue("id")}
	if !isID(ids[0]) {
		return inbox.Stored{}, inbox.ErrNotFound
	}
	return p.desk.InboundEvent(r.Context(), ids[0])
}

func (p *pages) inboundPayload(w http.ResponseWriter, r *http.Request) error {
	e, err := p.findInbound(r)
	if err != nil {
		return err
	}
	writeText(w, "inbound-"+e.ID+".txt", p.redact.Read(e.Payload, 0).Text)
	return nil
}

func (p *pages) confirmInbound(w http.ResponseWriter, r *http.Request) error {
	if !p.desk.HasInbox() {
		return errNoInbox
	}
	f, err := inboundFilter(r)
	if err != nil {
		return err
	}
	action := r.FormValue("action")
	f.Statuses = statusesFor(action, f.Statuses)
	f.AfterSeq, f.Newest = 0, false
	tallies, err := p.desk.InboundTallies(r.Context(), f)
	if err != nil {
		return err
	}
	data := confirmData{
		Action: action, Filter: kept(r, append(inboundFields, "id")...), Inbound: tallies,
		To: "/inbox/act", Back: "/inbox?" + kept(r, inboundFields...).Encode(),
	}
	data.Filter.Del("status")
	for _, s := range f.Statuses {
		data.Filter.Add("status", string(s))
	}
	for _, t := range tallies {
		data.Total += t.Count
	}
	return p.show(w, r, "confirm", "Are you sure?", "inbox", data)
}

// statusesFor are the statuses in which an action has something to do.
func statusesFor(action string, asked []inbox.Status) []inbox.Status {
	usual := []inbox.Status{inbox.Quarantined, inbox.Deferred}
	if action == "discard" {
		usual = append(usual, inbox.Pending)
	}
	var statuses []inbox.Status
	for _, s := range asked {
		for _, can := range usual {
			if s == can {
				statuses = append(statuses, s)
			}
		}
	}
	return orElse(statuses, usual[:2]...)
}

func (p *pages) actOnInbound(w http.ResponseWriter, r *http.Request) error {
	if !p.desk.HasInbox() {
		return errNoInbox
	}
	f, err := inboundFilter(r)
	if err != nil {
		return err
	}
	f.AfterSeq, f.Newest = 0, false
	action, back := r.PostFormValue("action"), ownPath(r.PostFormValue("back"))
	if back == "/" {
		back = "/inbox"
	}
	switch {
	case len(f.IDs) == 0 && r.PostFormValue("all") == "":
		return p.done(w, r, back, "Nothing was chosen, so nothing was done.")
	case action == "discard" && r.PostFormValue("confirmed") == "":
		http.Redirect(w, r, "/inbox/confirm?"+url.Values{"action": {action}, "id": list(r, "id")}.Encode(), http.StatusSeeOther)
		return nil
	}
	actor := callerOf(r.Context()).actor()
	f.Statuses = statusesFor(action, f.Statuses)
	if action == "discard" {
		reason := field(r, "reason")
		if reason == "" {
			reason = "discarded by hand"
		}
		n, err := p.desk.DiscardInbound(r.Context(), actor, f, reason)
		if err != nil {
			return err
		}
		return p.done(w, r, back, "%d discarded. The rows stay, so that they are recognised when they come again.", n)
	}
	n, err := p.desk.ReplayInbound(r.Context(), actor, f)
	if err != nil {
		return err
	}
	return p.done(w, r, back, "%d are processed again.", n)
}
