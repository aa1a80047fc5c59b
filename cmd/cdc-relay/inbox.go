package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newInboxCommand(g *globals) *cobra.Command {
	command := &cobra.Command{Use: "inbox", Short: "Inbound events: list, show, replay, discard"}
	command.AddCommand(newInboxListCommand(g), newInboxShowCommand(g), newInboxReplayCommand(g), newInboxDiscardCommand(g))
	return command
}

// inboxFilter holds the flags that choose inbound events.
type inboxFilter struct {
	partner, eventID, eventType, entityKey string
	statuses                               []string
	times                                  timeRange
	all                                    bool
}

func (f *inboxFilter) register(command *cobra.Command, statuses ...string) {
	flags := command.Flags()
	flags.StringVar(&f.partner, "partner", "", "of this partner")
	flags.StringVar(&f.eventID, "partner-event-id", "", "with this id of the partner's")
	flags.StringVar(&f.eventType, "event-type", "", "of this event type")
	flags.StringVar(&f.entityKey, "entity", "", "of this entity")
	flags.StringSliceVar(&f.statuses, "status", statuses, "in these statuses: PENDING, DEFERRED, PROCESSED, QUARANTINED")
	f.times.register(command, "received")
}

// filter reads the flags; ids are the command's arguments.
func (f *inboxFilter) filter(ids []string) (inbox.Filter, error) {
	filter := inbox.Filter{Partner: f.partner, EventID: f.eventID, EventType: f.eventType, EntityKey: f.entityKey}
	for _, text := range ids {
		id, err := uuid.Parse(text)
		if err != nil {
			return filter, usageError{fmt.Errorf("%q is not the id of an inbound event; `cdc-relay inbox list` shows them", text)}
		}
		filter.IDs = append(filter.IDs, id.String())
	}
	for _, text := range f.statuses {
		status := inbox.Status(strings.ToUpper(text))
		if !slices.Contains(inbox.Statuses(), status) {
			return filter, usageError{fmt.Errorf("--status %s: there are PENDING, DEFERRED, PROCESSED and QUARANTINED", text)}
		}
		filter.Statuses = append(filter.Statuses, status)
	}
	var err error
	filter.Since, filter.Until, err = f.times.parse()
	return filter, err
}

// chosen is filter for a change, which must not mean everything unless it is asked for.
func (f *inboxFilter) chosen(ids []string) (inbox.Filter, error) {
	filter, err := f.filter(ids)
	if err != nil {
		return filter, err
	}
	if !filter.Narrows() && !f.all {
		return filter, usageError{errors.New("name inbound events by id or by a filter, or say --all")}
	}
	return filter, nil
}

// withInbox calls use with the desk of a database that has the configured inbox.
func (g *globals) withInbox(ctx context.Context, use func(desk *operations.Desk, actor string) error) error {
	return g.withTables(ctx, func(pool *pgxpool.Pool, cfg Config) error {
		complete, err := inbox.Complete(ctx, pool, cfg.inboxTables())
		if err != nil {
			return provision.ExplainConnect(err)
		}
		if !complete {
			return mend.With(fmt.Errorf("the inbox %s is not there, or lacks columns", cfg.Inbox.Table), "cdc-relay init")
		}
		return use(cfg.desk(pool), person())
	})
}

func newInboxListCommand(g *globals) *cobra.Command {
	var f inboxFilter
	var limit int
	var after int64
	command := &cobra.Command{
		Use:   "list",
		Short: "List inbound events",
		RunE: func(command *cobra.Command, _ []string) error {
			filter, err := f.filter(nil)
			if err != nil {
				return err
			}
			filter.AfterSeq = after
			return g.withInbox(command.Context(), func(desk *operations.Desk, _ string) error {
				list, err := desk.Inbound(command.Context(), filter, limit)
				if err != nil {
					return err
				}
				return g.print(list, func(w io.Writer) { printInbound(w, list, limit) })
			})
		},
	}
	f.register(command, "PENDING", "DEFERRED", "QUARANTINED")
	command.Flags().IntVar(&limit, "limit", 100, "the most to list")
	command.Flags().Int64Var(&after, "after", 0, "go on after this number of SEQ")
	return command
}

func printInbound(w io.Writer, list []inbox.Stored, limit int) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no inbound events")
		return
	}
	fmt.Fprintf(w, "%-8s %-36s %-11s %-16s %-36s %-24s %-20s %8s  %s\n", "SEQ", "ID", "STATUS", "PARTNER", "PARTNER'S ID", "TYPE", "ENTITY", "ATTEMPTS", "ERROR")
	for _, e := range list {
		fmt.Fprintf(w, "%-8d %-36s %-11s %-16s %-36s %-24s %-20s %8d  %s\n", e.Seq, e.ID, e.Status, e.Partner, e.EventID, e.EventType, e.EntityKey, e.AttemptCount, e.LastError)
	}
	if len(list) == limit {
		fmt.Fprintf(w, "there may be more: --after %d\n", list[len(list)-1].Seq)
	}
}

func newInboxShowCommand(g *globals) *cobra.Command {
	var payload bool
	command := &cobra.Command{
		Use:   "show ID",
		Short: "Show one inbound event with each of its attempts",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			filter, err := (&inboxFilter{}).filter(args)
			if err != nil {
				return err
			}
			return g.withInbox(command.Context(), func(desk *operations.Desk, _ string) error {
				event, err := desk.InboundEvent(command.Context(), filter.IDs[0])
				if err != nil {
					return err
				}
				if !payload {
					event.Payload, event.Headers = nil, nil
				}
				return g.print(event, func(w io.Writer) { printOneInbound(w, event) })
			})
		},
	}
	command.Flags().BoolVar(&payload, "payload", false, "show the payload and the headers too")
	return command
}

func printOneInbound(w io.Writer, e inbox.Stored) {
	line := func(name string, value any) {
		if fmt.Sprint(value) != "" {
			fmt.Fprintf(w, "%-14s %v\n", name, value)
		}
	}
	line("id", e.ID)
	line("partner", e.Partner)
	line("partner's id", e.EventID)
	line("event type", e.EventType)
	line("entity", e.EntityKey)
	line("status", strings.TrimSpace(string(e.Status)+" "+e.Outcome))
	line("verified", e.Verified)
	line("received", e.ReceivedAt.Format(time.RFC3339Nano))
	if e.ProcessedAt != nil {
		line("processed", e.ProcessedAt.Format(time.RFC3339Nano))
	}
	if e.NextAttemptAt != nil {
		line("next attempt", e.NextAttemptAt.Format(time.RFC3339))
	}
	line("duplicates", e.DuplicateCount)
	line("odd", e.Flagged)
	line("last error", e.LastError)
	for _, a := range e.Attempts() {
		fmt.Fprintf(w, "%-14s %s  %s  %s\n", fmt.Sprintf("attempt %d", a.Attempt), a.At, a.What, a.Reason)
	}
	line("headers", string(e.Headers))
	line("payload", string(e.Payload))
}

func newInboxReplayCommand(g *globals) *cobra.Command {
	var f inboxFilter
	var dryRun bool
	command := &cobra.Command{
		Use:   "replay [ID…]",
		Short: "Process inbound events again",
		Long: `Process inbound events again: those that are quarantined, or, by --status, deferred
or processed without an effect (rejected, stale, discarded). One whose effect stands
is never taken. Their attempts begin anew, and their history stays. The running
service takes them up at once, in the order of their arrival.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			filter, err := f.chosen(args)
			if err != nil {
				return err
			}
			return g.changeInbound(command.Context(), filter, dryRun, "replayed", func(desk *operations.Desk, actor string) (int, error) {
				return desk.ReplayInbound(command.Context(), actor, filter)
			})
		},
	}
	f.register(command, "QUARANTINED")
	command.Flags().BoolVar(&f.all, "all", false, "all that are QUARANTINED")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count them")
	return command
}

func newInboxDiscardCommand(g *globals) *cobra.Command {
	var f inboxFilter
	var dryRun bool
	var reason string
	command := &cobra.Command{
		Use:   "discard [ID…]",
		Short: "Decide that inbound events shall have no effect; the rows stay",
		Args:  cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			filter, err := f.chosen(args)
			if err != nil {
				return err
			}
			return g.changeInbound(command.Context(), filter, dryRun, "discarded", func(desk *operations.Desk, actor string) (int, error) {
				return desk.DiscardInbound(command.Context(), actor, filter, reason)
			})
		},
	}
	f.register(command, "QUARANTINED", "DEFERRED")
	command.Flags().BoolVar(&f.all, "all", false, "all that are QUARANTINED or DEFERRED")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only count them")
	command.Flags().StringVar(&reason, "reason", "discarded by hand", "kept with the row")
	return command
}

// changeInbound makes a change, or only tells what it would come to.
func (g *globals) changeInbound(ctx context.Context, filter inbox.Filter, dryRun bool, what string, change func(desk *operations.Desk, actor string) (int, error)) error {
	return g.withInbox(ctx, func(desk *operations.Desk, actor string) error {
		if dryRun {
			tallies, err := desk.InboundTallies(ctx, filter)
			if err != nil {
				return err
			}
			return g.print(tallies, func(w io.Writer) { printInboundTallies(w, tallies, "would be "+what) })
		}
		changed, err := change(desk, actor)
		if err != nil {
			return err
		}
		return g.print(map[string]int{what: changed}, func(w io.Writer) { fmt.Fprintf(w, "%d %s\n", changed, what) })
	})
}

func printInboundTallies(w io.Writer, tallies []inbox.Tally, what string) {
	total := 0
	for _, t := range tallies {
		fmt.Fprintf(w, "%-20s %-30s %-11s %d\n", t.Partner, t.EventType, t.Status, t.Count)
		total += t.Count
	}
	fmt.Fprintf(w, "%d %s\n", total, what)
}
