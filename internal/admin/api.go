package admin

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/replay"
)

//go:embed openapi.json
var openAPI []byte

// api is the JSON API, under /api/v1.
type api struct {
	access *access
	desk   *operations.Desk
	redact *operations.Redactor
	now    func() time.Time
}

// problem is what an error looks like.
type problem struct {
	Error string `json:"error"`
	Mend  string `json:"mend,omitempty"`
}

func newAPI(o Options, a *access) *api {
	return &api{access: a, desk: o.Desk, redact: o.Redactor, now: o.Now}
}

// endpoint answers a request with what is to be written as JSON.
type endpoint struct {
	pattern string // method and path below /api/v1
	least   role
	answer  func(r *http.Request) (any, error)
}

func (a *api) endpoints() []endpoint {
	return []endpoint{
		{"GET /overview", reader, a.overview},
		{"GET /samples", reader, a.samples},
		{"GET /dead-letters", reader, a.letters},
		{"GET /dead-letters/tallies", reader, a.letterTallies},
		{"GET /dead-letters/{id}", reader, a.letter},
		{"POST /dead-letters/replay", operator, a.replayLetters},
		{"POST /dead-letters/discard", operator, a.discardLetters},
		{"GET /events", reader, a.journeys},
		{"GET /events/{id}", reader, a.journey},
		{"POST /destinations/{name}/pause", operator, a.pause},
		{"POST /destinations/{name}/resume", operator, a.resume},
		{"GET /checkpoints", reader, a.checkpoints},
		{"POST /checkpoints", operator, a.saveCheckpoint},
		{"DELETE /checkpoints/{name}", operator, a.dropCheckpoint},
		{"GET /replays", reader, a.replays},
		{"GET /replays/{id}", reader, a.replay},
		{"POST /replays", operator, a.startReplay},
		{"POST /replays/{id}/cancel", operator, a.cancelReplay},
		{"GET /inbox", reader, a.inbound},
		{"GET /inbox/{id}", reader, a.inboundEvent},
		{"POST /inbox/replay", operator, a.replayInbound},
		{"POST /inbox/discard", operator, a.discardInbound},
		{"GET /audit", reader, a.actions},
	}
}

func (a *api) register(mux *http.ServeMux) {
	for _, e := range a.endpoints() {
		var method, path string
		fmt.Sscanf(e.pattern, "%s %s", &method, &path)
		mux.Handle(method+" /api/v1"+path, a.access.need(e.least, a.handler(e.answer)))
	}
	mux.Handle("GET /api/v1/openapi.json", a.access.need(reader, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openAPI) // the client is gone if it fails
	})))
	mux.Handle("/api/", a.access.need(reader, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusNotFound, problem{Error: "there is no such resource", Mend: "GET /api/v1/openapi.json describes what there is"})
	})))
}

func (a *api) handler(answer func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := answer(r)
		if err != nil {
			status, p := explain(err)
			writeJSON(w, status, p)
			return
		}
		writeJSON(w, http.StatusOK, v)
	})
}

// requestError is a mistake of the caller's.
type requestError struct{ problem string }

func (e requestError) Error() string { return e.problem }

func wrong(format string, args ...any) error { return requestError{fmt.Sprintf(format, args...)} }

// errNoInbox says that nothing of the kind is there to be looked at.
var errNoInbox = errors.New("this process takes in no webhooks: inbox.listen is empty")

// explain gives the status and the text of an error.
func explain(err error) (int, problem) {
	p := problem{Error: err.Error(), Mend: mend.Of(err)}
	var mistake requestError
	var outside *replay.RangeError
	switch {
	case errors.As(err, &mistake), errors.As(err, &outside), errors.Is(err, replay.ErrNoSource):
		return http.StatusBadRequest, p
	case errors.Is(err, deadletter.ErrNotFound), errors.Is(err, inbox.ErrNotFound), errors.Is(err, replay.ErrNotFound), errors.Is(err, saved.ErrNotFound),
		errors.Is(err, operations.ErrUnknownDestination), errors.Is(err, errNoInbox), errors.Is(err, errNoSuchEvent):
		return http.StatusNotFound, p
	case errors.Is(err, saved.ErrExists), errors.Is(err, saved.ErrNoSlot):
		return http.StatusConflict, p
	case errors.Is(err, operations.ErrTooSlow):
		p.Mend = "an index on the outbox's aggregate id makes this search fast"
		return http.StatusServiceUnavailable, p
	}
	return http.StatusServiceUnavailable, p
}

// page is a part of a list. Next is what to give as after for the following part; 0
// says that there is none.
type page[T any] struct {
	Items []T   `json:"items"`
	Next  int64 `json:"next,omitempty"`
}

func pageOf[T any](items []T, limit int, key func(T) int64) page[T] {
	p := page[T]{Items: items}
	if items == nil {
		p.Items = []T{}
	}
	if len(items) == limit {
		p.Next = key(items[len(items)-1])
	}
	return p
}

const (
	usualLimit = 100
	mostLimit  = 1000
)

func limitOf(r *http.Request) (int, error) {
	text := r.FormValue("limit")
	if text == "" {
		return usualLimit, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > mostLimit {
		return 0, wrong("limit must be between 1 and %d", mostLimit)
	}
	return limit, nil
}

// decode reads the body of a request into v.
func decode(r *http.Request, v any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return wrong("the body must be application/json")
	}
	decoder := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return wrong("the body: %v", err)
	}
	return nil
}

func (a *api) overview(r *http.Request) (any, error) { return a.desk.Overview(r.Context(), false) }

func (a *api) samples(r *http.Request) (any, error) {
	samples, err := a.desk.Samples(r.Context(), a.now().Add(-time.Hour))
	return pageOf(samples, -1, func(operations.Sample) int64 { return 0 }), err
}

func (a *api) letters(r *http.Request) (any, error) {
	f, err := letterFilter(r)
	if err != nil {
		return nil, err
	}
	limit, err := limitOf(r)
	if err != nil {
		return nil, err
	}
	entries, err := a.desk.Letters(r.Context(), f, limit)
	return pageOf(entries, limit, func(e deadletter.Entry) int64 { return e.ID }), err
}

func (a *api) letterTallies(r *http.Request) (any, error) {
	f, err := letterFilter(r)
	if err != nil {
		return nil, err
	}
	tallies, err := a.desk.LetterTallies(r.Context(), f)
	return pageOf(tallies, -1, func(deadletter.Tally) int64 { return 0 }), err
}

// shownLetter is a dead letter with its payload for people.
type shownLetter struct {
	deadletter.Entry
	Headers string `json:"headers,omitempty"`
	Payload string `json:"payload"` // indented where it is JSON, and without what is to be redacted
	Size    int    `json:"payload_bytes"`
}

func (a *api) letter(r *http.Request) (any, error) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", deadletter.ErrNotFound, r.PathValue("id"))
	}
	entry, err := a.desk.Letter(r.Context(), id)
	if err != nil {
		return nil, err
	}
	shown := shownLetter{Entry: entry, Payload: a.redact.Read(entry.Payload, 0).Text, Size: len(entry.Payload)}
	if entry.Headers != "" {
		shown.Headers = a.redact.Read([]byte(entry.Headers), 0).Text
	}
	return shown, nil
}

// choice is what an action is done to. Everything must be asked for by All.
type choice[F any] struct {
	Filter F      `json:"filter"`
	All    bool   `json:"all"`
	Reason string `json:"reason"`
}

func (c *choice[F]) read(r *http.Request, narrows func(F) bool) error {
	if err := decode(r, c); err != nil {
		return err
	}
	if !c.All && !narrows(c.Filter) {
		return wrong("the filter leaves nothing out; name what is meant, or set all to true")
	}
	if c.Reason == "" {
		c.Reason = "discarded by hand"
	}
	return nil
}

func (a *api) replayLetters(r *http.Request) (any, error) {
	var c choice[deadletter.Filter]
	if err := c.read(r, deadletter.Filter.Narrows); err != nil {
		return nil, err
	}
	c.Filter.States = orElse(c.Filter.States, deadletter.Dead)
	return a.desk.ReplayLetters(r.Context(), callerOf(r.Context()).actor(), c.Filter, operations.Pace{})
}

func (a *api) discardLetters(r *http.Request) (any, error) {
	var c choice[deadletter.Filter]
	if err := c.read(r, deadletter.Filter.Narrows); err != nil {
		return nil, err
	}
	c.Filter.States = orElse(c.Filter.States, deadletter.Dead, deadletter.Scheduled)
	n, err := a.desk.DiscardLetters(r.Context(), callerOf(r.Context()).actor(), c.Filter, c.Reason)
	return map[string]int{"discarded": n}, err
}

// orElse gives what is usual where nothing was named.
func orElse[T any](named []T, usual ...T) []T {
	if len(named) > 0 {
		return named
	}
	return usual
}

var errNoSuchEvent = errors.New("neither the outbox nor the delivery log nor the dead letters know such an event")

func (a *api) journey(r *http.Request) (any, error) {
	j, err := a.desk.Journey(r.Context(), r.PathValue("id"))
	if err == nil && j == nil {
		err = errNoSuchEvent
	}
	return j, err
}

func (a *api) journeys(r *http.Request) (any, error) {
	aggregate := r.FormValue("aggregate_id")
	if aggregate == "" {
		return nil, wrong("say which: aggregate_id")
	}
	found, err := a.desk.Journeys(r.Context(), aggregate, usualLimit)
	return pageOf(found, -1, func(operations.Journey) int64 { return 0 }), err
}

func (a *api) pause(r *http.Request) (any, error) {
	var body struct {
		Reason string `json:"reason"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	return a.destination(r, "paused", a.desk.Pause(r.Context(), callerOf(r.Context()).actor(), r.PathValue("name"), body.Reason))
}

func (a *api) resume(r *http.Request) (any, error) {
	return a.destination(r, "resumed", a.desk.Resume(r.Context(), callerOf(r.Context()).actor(), r.PathValue("name")))
}

func (a *api) destination(r *http.Request, state string, err error) (any, error) {
	return map[string]string{"destination": r.PathValue("name"), "state": state}, err
}

func (a *api) actions(r *http.Request) (any, error) {
	limit, err := limitOf(r)
	if err != nil {
		return nil, err
	}
	before, err := numberOf(r, "after")
	if err != nil {
		return nil, err
	}
	actions, err := a.desk.Actions(r.Context(), before, limit)
	return pageOf(actions, limit, func(x operations.Action) int64 { return x.ID }), err
}
