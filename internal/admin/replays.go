package admin

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/internal/replay"
)

func isID(text string) bool {
	_, err := uuid.Parse(text)
	return err == nil
}

// replaysData are the jobs and the checkpoints.
type replaysData struct {
	Jobs         []replay.Job
	Checkpoints  []saved.Checkpoint
	Destinations []string
	From         string // the checkpoint that a replay is to begin at
}

func (p *pages) replays(w http.ResponseWriter, r *http.Request) error {
	jobs, err := p.desk.Replays(r.Context(), 20)
	if err != nil {
		return err
	}
	checkpoints, err := p.desk.Checkpoints(r.Context(), false)
	if err != nil {
		return err
	}
	data := replaysData{Jobs: jobs, Checkpoints: checkpoints, Destinations: p.desk.Configured(), From: field(r, "from")}
	return p.show(w, r, "replays", "Checkpoints and replays", "replays", data)
}

func (p *pages) replay(w http.ResponseWriter, r *http.Request) error {
	job, err := p.desk.Replay(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return p.show(w, r, "replay", "Replay", "replays", &job)
}

// replayFields are the fields of the form that asks for a replay.
var replayFields = []string{"from_lsn", "checkpoint", "since", "until_lsn", "until", "destination", "event_type", "aggregate_id", "rate"}

// planData is what a replay would send.
type planData struct {
	replay.Plan
	Fields url.Values
	Rate   float64
}

// wanted reads the form that asks for a replay.
func wanted(r *http.Request) (request replay.Request, rate float64, err error) {
	request = replay.Request{FromLSN: strings.ToUpper(field(r, "from_lsn")), Checkpoint: field(r, "checkpoint"), UntilLSN: strings.ToUpper(field(r, "until_lsn"))}
	since, until, err := timesOf(r)
	if err != nil {
		return request, 0, err
	}
	if !since.IsZero() {
		request.Since = &since
	}
	if !until.IsZero() {
		request.Until = &until
	}
	request.Destinations, request.EventTypes, request.AggregateID = list(r, "destination"), list(r, "event_type"), field(r, "aggregate_id")
	rate = usualRate
	if text := field(r, "rate"); text != "" {
		if rate, err = strconv.ParseFloat(text, 64); err != nil || !(rate >= 0) {
			return request, 0, wrong("the rate must be 0 or more events a second")
		}
	}
	if err := request.Check(); err != nil {
		return request, 0, wrong("%v", err)
	}
	return request, rate, nil
}

// planned looks at what the form asks for.
func (p *pages) planned(r *http.Request) (plan replay.Plan, rate float64, err error) {
	request, rate, err := wanted(r)
	if err == nil {
		plan, err = p.desk.PlanReplay(r.Context(), request)
	}
	return plan, rate, err
}

func (p *pages) planReplay(w http.ResponseWriter, r *http.Request) error {
	plan, rate, err := p.planned(r)
	if err != nil {
		return err
	}
	return p.show(w, r, "plan", "What would be sent again", "replays", planData{plan, kept(r, replayFields...), rate})
}

func (p *pages) startReplay(w http.ResponseWriter, r *http.Request) error {
	plan, rate, err := p.planned(r)
	if err != nil {
		return err
	}
	job, err := p.desk.StartReplay(r.Context(), callerOf(r.Context()).actor(), plan, rate)
	if err != nil {
		return err
	}
	return p.done(w, r, "/replays/"+job.ID, "The replay is asked for. The relay that streams takes it up within a second.")
}

func (p *pages) cancelReplay(w http.ResponseWriter, r *http.Request) error {
	id := r.PostFormValue("id")
	job, err := p.desk.CancelReplay(r.Context(), callerOf(r.Context()).actor(), id)
	if err != nil {
		return err
	}
	return p.done(w, r, "/replays/"+job.ID, "The replay is %s: nothing more of it is sent.", strings.ToLower(string(job.State)))
}

func (p *pages) saveCheckpoint(w http.ResponseWriter, r *http.Request) error {
	name := field(r, "name")
	if name == "" {
		return wrong("the checkpoint needs a name")
	}
	c, err := p.desk.SaveCheckpoint(r.Context(), callerOf(r.Context()).actor(), name, field(r, "label"), r.PostFormValue("hold") != "")
	if err != nil {
		return err
	}
	return p.done(w, r, "/replays", "Checkpoint %s is saved at %s.", c.Name, c.LSN)
}

func (p *pages) dropCheckpoint(w http.ResponseWriter, r *http.Request) error {
	name := r.PostFormValue("name")
	if err := p.desk.DropCheckpoint(r.Context(), callerOf(r.Context()).actor(), name); err != nil {
		return err
	}
	return p.done(w, r, "/replays", "Checkpoint %s is dropped.", name)
}
