package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// Here query strings and form fields become filters, the same for pages and API.

// letterFilter reads which dead letters are meant: the newest first, and those that are
// open unless states are named.
func letterFilter(r *http.Request) (f deadletter.Filter, err error) {
	f = deadletter.Filter{
		OutboxID: field(r, "outbox_id"), Destination: field(r, "destination"), EventType: field(r, "event_type"),
		AggregateID: field(r, "aggregate_id"), ErrorText: field(r, "error"), ReplayID: field(r, "replay_id"), Newest: true,
	}
	for _, text := range list(r, "state") {
		state := deadletter.State(strings.ToUpper(text))
		if !slices.Contains(deadletter.States(), state) {
			return f, wrong("there is no state %q; there are SCHEDULED, DEAD, DELIVERED and DISCARDED", text)
		}
		f.States = append(f.States, state)
	}
	for _, text := range list(r, "id") {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return f, wrong("%q is not the id of a dead letter", text)
		}
		f.IDs = append(f.IDs, id)
	}
	if f.AfterID, err = numberOf(r, "after"); err != nil {
		return f, err
	}
	f.Since, f.Until, err = timesOf(r)
	return f, err
}

// inboundFilter reads which inbound events are meant, the newest first.
func inboundFilter(r *http.Request) (f inbox.Filter, err error) {
	f = inbox.Filter{
		Partner: field(r, "partner"), EventID: field(r, "partner_event_id"), EventType: field(r, "event_type"), EntityKey: field(r, "entity_key"), Newest: true,
	}
	for _, text := range list(r, "status") {
		status := inbox.Status(strings.ToUpper(text))
		if !slices.Contains(inbox.Statuses(), status) {
			return f, wrong("there is no status %q; there are PENDING, DEFERRED, PROCESSED and QUARANTINED", text)
		}
		f.Statuses = append(f.Statuses, status)
	}
	for _, text := range list(r, "id") {
		id, err := uuid.Parse(text)
		if err != nil {
			return f, wrong("%q is not the id of an inbound event", text)
		}
		f.IDs = append(f.IDs, id.String())
	}
	if f.AfterSeq, err = numberOf(r, "after"); err != nil {
		return f, err
	}
	f.Since, f.Until, err = timesOf(r)
	return f, err
}

// field is one value without what can't stand in a text of Postgres.
func field(r *http.Request, name string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(strings.TrimSpace(r.FormValue(name)), ""), "\x00", "")
}

// list is a value that may be given several times, or with commas.
func list(r *http.Request, name string) (values []string) {
	r.FormValue(name) // parses the form
	for _, value := range r.Form[name] {
		for _, part := range strings.Split(value, ",") {
			if part = strings.TrimSpace(part); part != "" {
				values = append(values, part)
			}
		}
	}
	return values
}

func numberOf(r *http.Request, name string) (int64, error) {
	text := field(r, name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, wrong("%s is not a number", name)
	}
	return n, nil
}

func timesOf(r *http.Request) (since, until time.Time, err error) {
	if since, err = timeOf(r, "since"); err != nil {
		return since, until, err
	}
	until, err = timeOf(r, "until")
	return since, until, err
}

// timeOf reads a time as RFC 3339 or, in UTC, as browsers' fields give it; the zero time
// for none.
func timeOf(r *http.Request, name string) (time.Time, error) {
	text := field(r, name)
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, wrong("%s: %q is not a time, such as 2026-01-02T15:04:05Z", name, text)
}

// kept are the fields of a request that make up its filter, for the links and forms of
// the page that shows what fits.
func kept(r *http.Request, names ...string) url.Values {
	values := url.Values{}
	r.FormValue("") // parses the form
	for _, name := range names {
		for _, value := range r.Form[name] {
			if value != "" {
				values.Add(name, value)
			}
		}
	}
	return values
}
