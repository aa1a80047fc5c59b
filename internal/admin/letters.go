package admin

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/operations"
)

const (
	pageRows     = 50
	shownPayload = 256 << 10 // of a payload, on its page
)

// letterFields are the fields of the filter.
var letterFields = []string{"state", "destination", "event_type", "aggregate_id", "outbox_id", "error", "replay_id", "since", "until"}

// lettersData is the list of dead letters.
type lettersData struct {
	Letters      page[deadletter.Entry]
	Filter       url.Values // as it was asked for
	States       []string   // that are shown
	Destinations []string
	Older        url.Values // of the following page; nil for none
}

func (p *pages) letters(w http.ResponseWriter, r *http.Request) error {
	f, err := letterFilter(r)
	if err != nil {
		return err
	}
	data := lettersData{Filter: kept(r, letterFields...)}
	f.States = orElse(f.States, deadletter.Dead, deadletter.Scheduled)
	for _, s := range f.States {
		data.States = append(data.States, string(s))
	}
	entries, err := p.desk.Letters(r.Context(), f, pageRows)
	if err != nil {
		return err
	}
	data.Letters = pageOf(entries, pageRows, func(e deadletter.Entry) int64 { return e.ID })
	data.Older = following(data.Filter, data.Letters.Next)
	data.Destinations = p.desk.Configured()
	return p.show(w, r, "letters", "Dead letters", "letters", data)
}

// following are the fields that ask for the next part of a list.
func following(filter url.Values, next int64) url.Values {
	if next == 0 {
		return nil
	}
	values := url.Values{"after": {strconv.FormatInt(next, 10)}}
	for name, v := range filter {
		values[name] = v
	}
	return values
}

// letterData is one dead letter.
type letterData struct {
	deadletter.Entry
	Payload operations.Readable
	Row     operations.Readable // the headers column
	Answers []string            // of the attempts, without what is to be redacted
}

func (p *pages) letter(w http.ResponseWriter, r *http.Request) error {
	entry, err := p.findLetter(r)
	if err != nil {
		return err
	}
	data := letterData{Entry: entry, Payload: p.redact.Read(entry.Payload, shownPayload)}
	if entry.Headers != "" {
		data.Row = p.redact.Read([]byte(entry.Headers), shownPayload)
	}
	for _, a := range entry.Attempts {
		data.Answers = append(data.Answers, p.redact.ReadAnswer(a.Answer))
	}
	return p.show(w, r, "letter", "Dead letter "+r.PathValue("id"), "letters", data)
}

func (p *pages) findLetter(r *http.Request) (deadletter.Entry, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return deadletter.Entry{}, deadletter.ErrNotFound
	}
	return p.desk.Letter(r.Context(), id)
}

// letterPayload gives a payload whole, as a text that no browser takes for a page.
func (p *pages) letterPayload(w http.ResponseWriter, r *http.Request) error {
	entry, err := p.findLetter(r)
	if err != nil {
		return err
	}
	writeText(w, "dead-letter-"+r.PathValue("id")+".txt", p.redact.Read(entry.Payload, 0).Text)
	return nil
}

func writeText(w http.ResponseWriter, name, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	_, _ = w.Write([]byte(text)) // the browser is gone if it fails
}

// confirmData asks whether something shall be done to all that fits.
type confirmData struct {
	Action string // replay or discard
	Filter url.Values
	Total  int
	To     string // where the form goes
	Back   string

	Letters []deadletter.Tally
	Inbound []inboundTally
}

func (p *pages) confirmLetters(w http.ResponseWriter, r *http.Request) error {
	f, err := letterFilter(r)
	if err != nil {
		return err
	}
	action := r.FormValue("action")
	f.States = statesFor(action, f.States)
	f.AfterID, f.Newest = 0, false
	tallies, err := p.desk.LetterTallies(r.Context(), f)
	if err != nil {
		return err
	}
	data := confirmData{
		Action: action, Filter: kept(r, append(letterFields, "id")...), Letters: tallies,
		To: "/dead-letters/act", Back: "/dead-letters?" + kept(r, letterFields...).Encode(),
	}
	data.Filter.Del("state")
	for _, s := range f.States {
		data.Filter.Add("state", string(s))
	}
	for _, t := range tallies {
		data.Total += t.Count
	}
	return p.show(w, r, "confirm", "Are you sure?", "letters", data)
}

// statesFor are the states in which an action has something to do, out of those that
// were asked for.
func statesFor(action string, asked []deadletter.State) []deadletter.State {
	possible := []deadletter.State{deadletter.Dead, deadletter.Scheduled}
	usual := possible
	if action == "replay" {
		possible, usual = []deadletter.State{deadletter.Dead, deadletter.Discarded}, possible[:1]
	}
	var states []deadletter.State
	for _, s := range asked {
		for _, can := range possible {
			if s == can {
				states = append(states, s)
			}
		}
	}
	return orElse(states, usual...)
}

// actOnLetters replays or discards: those that are ticked, or all that fit.
func (p *pages) actOnLetters(w http.ResponseWriter, r *http.Request) error {
	f, err := letterFilter(r)
	if err != nil {
		return err
	}
	f.AfterID, f.Newest = 0, false
	action, back := r.PostFormValue("action"), ownPath(r.PostFormValue("back"))
	if back == "/" {
		back = "/dead-letters"
	}
	switch {
	case len(f.IDs) == 0 && r.PostFormValue("all") == "":
		return p.done(w, r, back, "Nothing was chosen, so nothing was done.")
	case action == "discard" && r.PostFormValue("confirmed") == "":
		http.Redirect(w, r, "/dead-letters/confirm?"+url.Values{"action": {action}, "id": list(r, "id")}.Encode(), http.StatusSeeOther)
		return nil
	}
	f.States = statesFor(action, f.States)
	actor := callerOf(r.Context()).actor()
	if action == "discard" {
		reason := field(r, "reason")
		if reason == "" {
			reason = "discarded by hand"
		}
		n, err := p.desk.DiscardLetters(r.Context(), actor, f, reason)
		if err != nil {
			return err
		}
		return p.done(w, r, back, "%d discarded. The rows stay, marked DISCARDED.", n)
	}
	done, err := p.desk.ReplayLetters(r.Context(), actor, f, operations.Pace{})
	if err != nil {
		return err
	}
	return p.done(w, r, back, "%d to be sent again, as replay %s.", done.Handed, done.ID)
}

// deliveriesData is a search for events.
type deliveriesData struct {
	OutboxID, AggregateID string
	Searched              bool
	Journeys              []operations.Journey
}

func (p *pages) deliveries(w http.ResponseWriter, r *http.Request) error {
	data := deliveriesData{OutboxID: field(r, "outbox_id"), AggregateID: field(r, "aggregate_id")}
	data.Searched = data.OutboxID != "" || data.AggregateID != ""
	switch {
	case data.OutboxID != "":
		j, err := p.desk.Journey(r.Context(), data.OutboxID)
		if err != nil {
			return err
		}
		if j != nil {
			data.Journeys = []operations.Journey{*j}
		}
	case data.AggregateID != "":
		found, err := p.desk.Journeys(r.Context(), data.AggregateID, pageRows)
		if err != nil {
			return err
		}
		data.Journeys = found
	}
	return p.show(w, r, "deliveries", "Deliveries", "deliveries", data)
}
