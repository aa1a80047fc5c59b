package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/replay"
)

// replayFlags are the flags of `replay`.
type replayFlags struct {
	fromLSN, fromCheckpoint, since, until string
	destinations, eventTypes              []string
	aggregateID                           string
	rate                                  float64
	dryRun, detach                        bool
}

func newReplayCommand(g *globals) *cobra.Command {
	var f replayFlags
	command := &cobra.Command{
		Use:   "replay",
		Short: "Send delivered events again, from an LSN, a checkpoint or a time on",
		Long: `Send again what was delivered before, from an LSN, a checkpoint or a time on: with the
same ids, signed anew, in the order of the commits. It is a job of the running relay:
it goes on after a restart, and when this command ends. Live events go first.

What was never delivered stands in the dead letters: see cdc-relay dlq replay.`,
		Example: `  cdc-relay replay --since 14:05 --dry-run
  cdc-relay replay --from-checkpoint before-deploy --destination billing
  cdc-relay replay --from-lsn 16/B374D848 --until 16/C0000000 --rate 200`,
		RunE: func(command *cobra.Command, _ []string) error {
			request, err := f.request()
			if err != nil {
				return err
			}
			return g.withDesk(command.Context(), func(desk *operations.Desk, actor string) error {
				return g.replay(command, desk, actor, request, f)
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.fromLSN, "from-lsn", "", "events committed at or after this LSN")
	flags.StringVar(&f.fromCheckpoint, "from-checkpoint", "", "events that were not settled when this checkpoint was saved")
	flags.StringVar(&f.since, "since", "", "events committed at or after this time (RFC 3339, 14:05, \"2026-01-02 14:05\", or an age such as 2h)")
	flags.StringVar(&f.until, "until", "", "and before this time or LSN")
	flags.StringSliceVar(&f.destinations, "destination", nil, "only to these destinations")
	flags.StringSliceVar(&f.eventTypes, "event-type", nil, "only events of these types; * stands for any text")
	flags.StringVar(&f.aggregateID, "aggregate-id", "", "only events of this aggregate")
	flags.Float64Var(&f.rate, "rate", 1000, "the most events a second; 0 for as fast as the receivers take them")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only tell what would be sent")
	flags.BoolVar(&f.detach, "detach", false, "start it and don't wait for its end")
	command.AddCommand(newReplayListCommand(g), newReplayCancelCommand(g))
	return command
}

func (f *replayFlags) request() (replay.Request, error) {
	r := replay.Request{
		FromLSN: f.fromLSN, Checkpoint: f.fromCheckpoint,
		Filter: replay.Filter{Destinations: f.destinations, EventTypes: f.eventTypes, AggregateID: f.aggregateID},
	}
	given := 0
	for _, from := range []string{f.fromLSN, f.fromCheckpoint, f.since} {
		if from != "" {
			given++
		}
	}
	if given != 1 {
		return r, usageError{errors.New("say from where: one of --from-lsn, --from-checkpoint and --since")}
	}
	if f.rate < 0 {
		return r, usageError{errors.New("--rate can't be negative")}
	}
	if f.fromLSN != "" {
		if _, err := saved.ParseLSN(f.fromLSN); err != nil {
			return r, usageError{fmt.Errorf("--from-lsn %w", err)}
		}
	}
	if f.since != "" {
		since, err := parseTime("--since", f.since)
		if err != nil {
			return r, err
		}
		r.Since = &since
	}
	return r, f.setUntil(&r)
}

func (f *replayFlags) setUntil(r *replay.Request) error {
	if f.until == "" {
		return nil
	}
	if strings.Contains(f.until, "/") {
		if _, err := saved.ParseLSN(f.until); err != nil {
			return usageError{fmt.Errorf("--until %w", err)}
		}
		r.UntilLSN = f.until
		return nil
	}
	until, err := parseTime("--until", f.until)
	r.Until = &until
	return err
}

func (g *globals) replay(command *cobra.Command, desk *operations.Desk, actor string, request replay.Request, f replayFlags) error {
	ctx := command.Context()
	plan, err := desk.PlanReplay(ctx, request)
	if err != nil {
		return explainReplay(err)
	}
	if f.dryRun {
		return g.print(plan, func(w io.Writer) { printPlan(w, plan) })
	}
	job, err := desk.StartReplay(ctx, actor, plan, f.rate)
	if err != nil {
		return err
	}
	if f.detach {
		return g.print(map[string]string{"replay_id": job.ID}, func(w io.Writer) { fmt.Fprintf(w, "replay %s\n", job.ID) })
	}
	watch := &replayWatch{desk: desk, id: job.ID, out: command.ErrOrStderr()}
	return g.finishJob(watch, watch.run(ctx))
}

// explainReplay adds what puts an error of a plan right.
func explainReplay(err error) error {
	var outside *replay.RangeError
	switch {
	case errors.As(err, &outside):
		return mend.With(err, fmt.Sprintf("cdc-relay replay --from-lsn %s, or see cdc-relay checkpoint list", outside.Kept.FromLSN))
	case errors.Is(err, replay.ErrNoSource):
		return mend.With(err, "set delivery_log.enabled, or save checkpoints with --hold")
	case errors.Is(err, saved.ErrNotFound):
		return mend.With(err, "cdc-relay checkpoint list")
	}
	return err
}

func printPlan(w io.Writer, p replay.Plan) {
	for _, c := range p.Counts {
		fmt.Fprintf(w, "%-24s %-30s %d\n", c.Destination, c.EventType, c.Deliveries)
	}
	if p.First != nil && p.Last != nil {
		fmt.Fprintf(w, "first        %s at %s, committed %s\n", p.First.ID, p.First.LSN, p.First.CommittedAt.Format(time.RFC3339Nano))
		fmt.Fprintf(w, "last         %s at %s, committed %s\n", p.Last.ID, p.Last.LSN, p.Last.CommittedAt.Format(time.RFC3339Nano))
	}
	for _, e := range p.Impossible {
		fmt.Fprintf(w, "not sent     %d: %s\n", e.Count, e.Reason)
	}
	from := "the table"
	if p.Source == replay.FromWAL {
		from = "the WAL that slot " + p.HeldSlot + " holds"
	}
	fmt.Fprintf(w, "%d would be sent again, from LSN %s on, read from %s\n", p.Total, p.FromLSN, from)
}

func newReplayListCommand(g *globals) *cobra.Command {
	var limit int
	command := &cobra.Command{
		Use:   "list",
		Short: "List replays, the latest first",
		RunE: func(command *cobra.Command, _ []string) error {
			return g.withDesk(command.Context(), func(desk *operations.Desk, _ string) error {
				jobs, err := desk.Replays(command.Context(), limit)
				if err != nil {
					return err
				}
				return g.print(jobs, func(w io.Writer) {
					for _, j := range jobs {
						printJob(w, j)
					}
				})
			})
		},
	}
	command.Flags().IntVar(&limit, "limit", 20, "how many")
	return command
}

func newReplayCancelCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "End a replay: nothing more of it is sent, and what is parked of it is discarded",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return g.withDesk(command.Context(), func(desk *operations.Desk, actor string) error {
				job, err := desk.CancelReplay(command.Context(), actor, args[0])
				if errors.Is(err, replay.ErrNotFound) {
					return mend.With(err, "cdc-relay replay list")
				}
				if err != nil {
					return err
				}
				return g.print(job, func(w io.Writer) { printJob(w, job) })
			})
		},
	}
}

func printJob(w io.Writer, j replay.Job) {
	fmt.Fprintf(w, "%s  %-9s  %d of %d delivered, %d parked, %d dead, %d skipped  from %s  %s", j.ID, j.State, j.Delivered, j.Total, j.Parked, j.Dead, j.Skipped,
		j.FromLSN, j.CreatedAt.Format(time.RFC3339))
	if j.Reason != "" {
		fmt.Fprintf(w, "  %s", j.Reason)
	}
	fmt.Fprintln(w)
}

// replayWatch follows a job.
type replayWatch struct {
	desk *operations.Desk
	id   string
	out  io.Writer

	job replay.Job
}

func (r *replayWatch) run(ctx context.Context) (err error) {
	var show *progress
	told := false
	for {
		if r.job, err = r.desk.Replay(ctx, r.id); err != nil {
			return err
		}
		if show == nil {
			show = newProgress(r.out, int(r.job.Total))
		}
		show.set(int(r.job.Delivered + r.job.Dead + r.job.Skipped))
		if r.job.Over() {
			show.finish()
			return nil
		}
		if !told && !r.desk.Streamed(ctx) {
			told = true
			fmt.Fprintln(r.out, "no relay is running; the replay begins as soon as one does")
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// finishJob prints how far the job came, also when the watching was interrupted.
func (g *globals) finishJob(r *replayWatch, err error) error {
	interrupted := errors.Is(err, context.Canceled)
	if err != nil && !interrupted {
		return err
	}
	printed := g.print(r.job, func(w io.Writer) {
		printJob(w, r.job)
		if interrupted {
			fmt.Fprintf(w, "the relay goes on with it; cdc-relay replay cancel %s ends it\n", r.id)
		}
	})
	if printed != nil {
		return printed
	}
	if interrupted || r.job.State != replay.Done || r.job.Dead > 0 {
		return quietError{exitFailed}
	}
	return nil
}
