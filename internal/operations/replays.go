package operations

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/replay"
)

// PlanReplay looks at what a replay would send, and what of it can't be.
func (d *Desk) PlanReplay(ctx context.Context, r replay.Request) (replay.Plan, error) {
	plan, err := d.o.Replays.Plan(ctx, r)
	if err == nil {
		plan.Impossible = append(plan.Impossible, d.unconfigured(plan)...)
	}
	return plan, err
}

// unconfigured tells of deliveries to destinations that the config has no more.
func (d *Desk) unconfigured(p replay.Plan) []replay.Exception {
	known := make(map[string]bool)
	for _, name := range d.o.Configured() {
		known[name] = true
	}
	gone := make(map[string]int64)
	var order []string
	for _, c := range p.Counts {
		if !known[c.Destination] {
			if gone[c.Destination] == 0 {
				order = append(order, c.Destination)
			}
			gone[c.Destination] += c.Deliveries
		}
	}
	var all []replay.Exception
	for _, name := range order {
		all = append(all, replay.Exception{Count: gone[name], Reason: fmt.Sprintf("destination %s is not in the config any more", name)})
	}
	return all
}

// StartReplay makes a job of a plan; rate is the most events a second, 0 for no limit.
// The relay that streams takes it up within a second.
func (d *Desk) StartReplay(ctx context.Context, actor string, p replay.Plan, rate float64) (replay.Job, error) {
	id := d.o.NewID()
	detail := map[string]any{"from_lsn": p.FromLSN, "until_lsn": p.UntilLSN, "source": p.Source, "total": p.Total, "rate": rate, "filter": p.Filter}
	err := d.audited(ctx, intent{actor, "replay.start", id, detail}, func() (string, error) {
		return fmt.Sprintf("%d to send", p.Total), d.o.Replays.Create(ctx, id, p, rate)
	})
	if err != nil {
		return replay.Job{}, err
	}
	return d.o.Replays.Get(ctx, id)
}

// Replays gives the latest jobs.
func (d *Desk) Replays(ctx context.Context, limit int) ([]replay.Job, error) {
	return d.o.Replays.List(ctx, limit)
}

// Replay gives one job.
func (d *Desk) Replay(ctx context.Context, id string) (replay.Job, error) {
	return d.o.Replays.Get(ctx, id)
}

// CancelReplay ends a job, and discards what of it is parked.
func (d *Desk) CancelReplay(ctx context.Context, actor, id string) (job replay.Job, err error) {
	if _, err := d.o.Replays.Get(ctx, id); err != nil {
		return job, err
	}
	err = d.audited(ctx, intent{actor, "replay.cancel", id, struct{}{}}, func() (string, error) {
		if job, err = d.o.Replays.Cancel(ctx, id); err != nil {
			return "", err
		}
		parked := deadletter.Filter{ReplayID: id, States: []deadletter.State{deadletter.Scheduled}}
		discarded, err := d.discardLetters(ctx, parked, "its replay was cancelled")
		return fmt.Sprintf("%s, %d parked discarded", job.State, discarded), err
	})
	return job, err
}

// recentCheckpoints is how many of those that are saved each minute are listed beside
// the named ones.
const recentCheckpoints = 10

// Checkpoints gives the named checkpoints, and the latest or all of those that are
// saved each minute.
func (d *Desk) Checkpoints(ctx context.Context, all bool) ([]saved.Checkpoint, error) {
	if all {
		return d.o.Checkpoints.List(ctx, saved.Which{})
	}
	found, err := d.o.Checkpoints.List(ctx, saved.Which{Named: true})
	if err != nil {
		return nil, err
	}
	recent, err := d.o.Checkpoints.List(ctx, saved.Which{Limit: recentCheckpoints})
	for _, c := range recent {
		if c.Name == "" {
			found = append(found, c)
		}
	}
	return found, err
}

// SaveCheckpoint saves the LSN up to which everything is settled; with hold its WAL is
// kept.
func (d *Desk) SaveCheckpoint(ctx context.Context, actor, name, label string, hold bool) (c saved.Checkpoint, err error) {
	detail := map[string]any{"label": label, "hold": hold}
	err = d.audited(ctx, intent{actor, "checkpoint.save", name, detail}, func() (string, error) {
		c, err = d.o.Checkpoints.Save(ctx, name, label, hold)
		return "saved at " + c.LSN, err
	})
	return c, err
}

// DropCheckpoint forgets a checkpoint, and lets go of the WAL that it holds.
func (d *Desk) DropCheckpoint(ctx context.Context, actor, name string) error {
	return d.audited(ctx, intent{actor, "checkpoint.drop", name, struct{}{}}, func() (string, error) {
		return "dropped", d.o.Checkpoints.Drop(ctx, name)
	})
}
