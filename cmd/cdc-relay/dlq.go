package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newDLQCommand(g *globals) *cobra.Command {
	command := &cobra.Command{Use: "dlq", Short: "Dead letters: list, show, replay, discard"}
	command.AddCommand(newDLQListCommand(g), newDLQShowCommand(g), newDLQReplayCommand(g), newDLQDiscardCommand(g))
	return command
}

// letterFilter holds the flags that choose dead letters.
type letterFilter struct {
	outboxID, destination, eventType, aggregateID, errorText string
	states                                                   []string
	times                                                    timeRange
	all                                                      bool
}

func (f *letterFilter) register(command *cobra.Command, states ...string) {
	flags := command.Flags()
	flags.StringVar(&f.outboxID, "outbox-id", "", "of the event with this outbox id")
	flags.StringVar(&f.destination, "destination", "", "at this destination")
	flags.StringVar(&f.eventType, "event-type", "", "of this event type")
	flags.StringVar(&f.aggregateID, "aggregate-id", "", "of this aggregate")
	flags.StringVar(&f.errorText, "error", "", "with this text in their reason, errors or answers")
	flags.StringSliceVar(&f.states, "state", states, "in these states: SCHEDULED, DEAD, DELIVERED, DISCARDED")
	f.times.register(command, "made")
}

// filter reads the flags; ids are the command's arguments.
func (f *letterFilter) filter(ids []string) (deadletter.Filter, error) {
	filter := deadletter.Filter{
		OutboxID: f.outboxID, Destination: f.destination, EventType: f.eventType, AggregateID: f.aggregateID, ErrorText: f.errorText,
	}
	for _, text := range ids {
		var id int64
		if _, err := fmt.Sscanf(text, "%d", &id); err != nil {
			return filter, usageError{fmt.Errorf("%q is not the id of a dead letter; `cdc-relay dlq list` shows them", text)}
		}
		filter.IDs = append(filter.IDs, id)
	}
	for _, text := range f.states {
		state := deadletter.State(strings.ToUpper(text))
		if !isState(state) {
			return filter, usageError{fmt.Errorf("--state %s: there are SCHEDULED, DEAD, DELIVERED and DISCARDED", text)}
		}
		filter.States = append(filter.States, state)
	}
	var err error
	filter.Since, filter.Until, err = f.times.parse()
	return filter, err
}

func isState(state deadletter.State) bool {
	for _, s := range deadletter.States() {
		if s == state {
			return true
		}
	}
	return false
}

// chosen refuses a change that names nothing: everything must be asked for.
func (f *letterFilter) chosen(filter deadletter.Filter) error {
	if !filter.Narrows() && !f.all {
		return usageError{errors.New("name dead letters by id or by a filter, or say --all")}
	}
	return nil
}

// withDesk calls use with the desk of a database that has the relay's tables, and the
// name of who works at it.
func (g *globals) withDesk(ctx context.Context, use func(desk *operations.Desk, actor string) error) error {
	return g.withTables(ctx, func(pool *pgxpool.Pool, cfg Config) error { return use(cfg.desk(pool), person()) })
}

// person is who calls the command, for the audit log.
func person() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return "cli " + name
}

// withTables calls use with connections to a database that has the relay's tables.
func (g *globals) withTables(ctx context.Context, use func(*pgxpool.Pool, Config) error) error {
	cfg, err := g.load()
	if err != nil {
		return err
	}
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	version, err := provision.TablesVersion(ctx, pool, cfg.Database.Schema)
	if err != nil {
		return provision.ExplainConnect(err)
	}
	if version == 0 {
		return mend.With(fmt.Errorf("the relay's tables are not there in schema %s", cfg.Database.Schema), "cdc-relay init")
	}
	latest, err := provision.LatestVersion(cfg.Database.Schema)
	if err != nil {
		return err
	}
	if version < latest {
		return mend.With(fmt.Errorf("the relay's tables in schema %s are at version %d, this program wants %d", cfg.Database.Schema, version, latest), "cdc-relay init")
	}
	return use(pool, cfg)
}

func newDLQListCommand(g *globals) *cobra.Command {
	var f letterFilter
	var limit int
	var after int64
	command := &cobra.Command{
		Use:   "list",
		Short: "List dead letters",
		RunE: func(command *cobra.Command, args []string) error {
			filter, err := f.filter(nil)
			if err != nil {
				return err
			}
			filter.AfterID = after
			return g.withDesk(command.Context(), func(desk *operations.Desk, _ string) error {
				entries, err := desk.Letters(command.Context(), filter, limit)
				if err != nil {
					return err
				}
				return g.print(entries, func(w io.Writer) { printEntries(w, entries, limit) })
			})
		},
	}
	f.register(command, "DEAD", "SCHEDULED")
	command.Flags().IntVar(&limit, "limit", 100, "the most to list")
	command.Flags().Int64Var(&after, "after", 0, "go on after this id")
	return command
}

func printEntries(w io.Writer, entries []deadletter.Entry, limit int) {
	if len(entries) == 0 {
		fmt.Fprintln(w, "no dead letters")
		return
	}
	fmt.Fprintf(w, "%-8s %-10s %-20s %-36s %-24s %8s  %s\n", "ID", "STATE", "DESTINATION", "EVENT", "TYPE", "ATTEMPTS", "REASON")
	for _, e := range entries {
		fmt.Fprintf(w, "%-8d %-10s %-20s %-36s %-24s %8d  %s\n", e.ID, e.State, e.Destination, e.OutboxID, e.EventType, e.AttemptCount, e.Reason)
	}
	if len(entries) == limit {
		fmt.Fprintf(w, "there may be more: --after %d\n", entries[len(entries)-1].ID)
	}
}

func newDLQShowCommand(g *globals) *cobra.Command {
	var payload bool
	command := &cobra.Command{
		Use:   "show ID",
		Short: "Show one dead letter with each of its attempts",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			filter, err := (&letterFilter{}).filter(args)
			if err != nil {
				return err
			}
			return g.withDesk(command.Context(), func(desk *operations.Desk, _ string) error {
				entry, err := desk.Letter(command.Context(), filter.IDs[0])
				if err != nil {
					return err
				}
				shown := struct {
					deadletter.Entry
					Payload *string `json:"payload,omitempty"`
				}{Entry: entry}
				if payload {
					text := string(entry.Payload)
					shown.Payload = &text
				}
				return g.print(shown, func(w io.Writer) { printEntry(w, entry, payload) })
			})
		},
	}
	command.Flags().BoolVar(&payload, "payload", false, "show the payload too")
	return command
}

func printEntry(w io.Writer, e deadletter.Entry, payload bool) {
	line := func(name string, value any) { fmt.Fprintf(w, "%-14s %v\n", name, value) }
	line("id", e.ID)
	line("event", e.OutboxID)
	line("destination", e.Destination)
	line("state", e.State)
	line("reason", e.Reason)
	line("event type", e.EventType)
	line("aggregate", e.AggregateType+" "+e.AggregateID)
	line("position", fmt.Sprintf("%s/%d, committed %s", e.CommitLSN, e.Index, e.CommittedAt.Format(time.RFC3339Nano)))
	if e.NextAttemptAt != nil {
		line("next attempt", e.NextAttemptAt.Format(time.RFC3339))
	}
	if e.ReplayID != "" {
		line("replay", e.ReplayID)
	}
	for i, a := range e.Attempts {
		fmt.Fprintf(w, "attempt %-6d %s  %s  status %d  %s\n", i+1, a.At.Format(time.RFC3339Nano), a.Duration.Round(time.Millisecond), a.Status, a.Error)
		if a.Answer != "" {
			fmt.Fprintf(w, "               answer: %q\n", a.Answer)
		}
	}
	if payload {
		line("payload", string(e.Payload))
	}
}

func newDLQReplayCommand(g *globals) *cobra.Command {
	var f letterFilter
	var dryRun, detach bool
	command := &cobra.Command{
		Use:   "replay [ID…]",
		Short: "Send dead letters again, with the same ids, signed anew",
		Long: `Send dead letters again: they go through the running relay's lanes with their own
idempotency keys, signed anew, in the order of their aggregates. The command
schedules them a thousand at a time and shows the progress. Ctrl-C ends the
scheduling; run it again to go on.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			filter, err := f.filter(args)
			if err == nil {
				err = f.chosen(filter)
			}
			if err != nil {
				return err
			}
			return g.withDesk(command.Context(), func(desk *operations.Desk, actor string) error {
				if dryRun {
					return g.printTallies(command.Context(), desk, filter, "would be sent again")
				}
				show := &replayShow{desk: desk, ctx: command.Context(), out: command.ErrOrStderr()}
				r, err := desk.ReplayLetters(command.Context(), actor, filter, operations.Pace{Wait: !detach, Tell: show.tell})
				return g.finishReplay(r, err)
			})
		},
	}
	f.register(command, "DEAD")
	command.Flags().BoolVar(&f.all, "all", false, "all that are DEAD")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count them")
	command.Flags().BoolVar(&detach, "detach", false, "schedule them and don't wait until they are sent")
	return command
}

func newDLQDiscardCommand(g *globals) *cobra.Command {
	var f letterFilter
	var dryRun bool
	var reason string
	command := &cobra.Command{
		Use:   "discard [ID…]",
		Short: "Decide that dead letters shall not be sent; the rows stay",
		Args:  cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			filter, err := f.filter(args)
			if err == nil {
				err = f.chosen(filter)
			}
			if err != nil {
				return err
			}
			return g.withDesk(command.Context(), func(desk *operations.Desk, actor string) error {
				if dryRun {
					return g.printTallies(command.Context(), desk, filter, "would be discarded")
				}
				discarded, err := desk.DiscardLetters(command.Context(), actor, filter, reason)
				if err != nil {
					return err
				}
				return g.print(map[string]int{"discarded": discarded}, func(w io.Writer) { fmt.Fprintf(w, "%d discarded\n", discarded) })
			})
		},
	}
	f.register(command, "DEAD", "SCHEDULED")
	command.Flags().BoolVar(&f.all, "all", false, "all that are DEAD or SCHEDULED")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count them")
	command.Flags().StringVar(&reason, "reason", "discarded by hand", "kept with the row")
	return command
}

func (g *globals) printTallies(ctx context.Context, desk *operations.Desk, filter deadletter.Filter, what string) error {
	tallies, err := desk.LetterTallies(ctx, filter)
	if err != nil {
		return err
	}
	return g.print(tallies, func(w io.Writer) {
		total := 0
		for _, t := range tallies {
			fmt.Fprintf(w, "%-20s %-30s %-10s %d\n", t.Destination, t.EventType, t.State, t.Count)
			total += t.Count
		}
		fmt.Fprintf(w, "%d %s\n", total, what)
	})
}
