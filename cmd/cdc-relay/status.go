package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newStatusCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show lag, slot, destinations and dead letters",
		Long: `Show what Postgres, and the processes that run, tell of the relay and the inbox: the
slot and its lag, the destinations with their circuits, dead letters, and inbound
events that are not done with. The admin page shows the same.`,
		RunE: func(command *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			pool, err := cfg.pool(command.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			overview, err := readOverview(command.Context(), pool, cfg)
			if err != nil {
				return err
			}
			return g.print(overview, func(w io.Writer) {
				if !cfg.inboxAlone() {
					printStatus(w, overview)
				}
				printInboxStatus(w, cfg.Inbox.Table, overview.Inbox)
			})
		},
	}
}

// readOverview tells how everything stands, also where init hasn't been run, or not
// since the program is a newer one.
func readOverview(ctx context.Context, pool *pgxpool.Pool, cfg Config) (o operations.Overview, err error) {
	version, err := provision.TablesVersion(ctx, pool, cfg.Database.Schema)
	if err != nil {
		return o, provision.ExplainConnect(err)
	}
	latest, err := provision.LatestVersion(cfg.Database.Schema)
	if err != nil {
		return o, err
	}
	if version < latest {
		o.Slot, err = provision.ReadSlot(ctx, pool, cfg.provisioning())
		return o, err
	}
	if cfg.Inbox.Listen != "" {
		complete, err := inbox.Complete(ctx, pool, cfg.inboxTables())
		if err != nil {
			return o, err
		}
		if !complete {
			cfg.Inbox.Listen = "" // there is nothing to count yet
		}
	}
	return cfg.desk(pool).Overview(ctx, true)
}

func printInboxStatus(w io.Writer, table string, counts map[inbox.Status]int) {
	if counts != nil {
		fmt.Fprintf(w, "inbox        %s: %d pending, %d deferred, %d quarantined\n", table, counts[inbox.Pending], counts[inbox.Deferred], counts[inbox.Quarantined])
	}
}

func printStatus(w io.Writer, s operations.Overview) {
	switch {
	case !s.Slot.Exists:
		fmt.Fprintf(w, "slot         %s does not exist (cdc-relay init creates it)\n", s.Slot.Name)
	default:
		state := "idle: no relay streams it"
		if s.Slot.Active {
			state = "streaming"
		}
		fmt.Fprintf(w, "slot         %s, %s\n", s.Slot.Name, state)
		fmt.Fprintf(w, "confirmed    %s, the server is at %s: %s behind\n", s.Slot.Confirmed, s.Slot.Flushed, byteCount(s.Slot.LagBytes))
		fmt.Fprintf(w, "WAL held     %s (restart_lsn %s, wal_status %s)\n", byteCount(s.Slot.HeldBytes), s.Slot.Restart, s.Slot.WALStatus)
	}
	if s.Backlog != nil {
		fmt.Fprintf(w, "backlog      %d of %d rows from before the slot are settled\n", s.Backlog.Rows-s.Backlog.Left, s.Backlog.Rows)
	}
	if s.Unprocessed != nil {
		fmt.Fprintf(w, "unprocessed  %d events", *s.Unprocessed)
		if s.OldestSecond != nil && *s.Unprocessed > 0 {
			fmt.Fprintf(w, ", the oldest %s old", time.Duration(*s.OldestSecond*float64(time.Second)).Round(time.Second))
		}
		fmt.Fprintln(w)
	}
	for _, c := range s.Held {
		fmt.Fprint(w, "checkpoint   ")
		printCheckpoint(w, c)
	}
	for _, i := range s.Instances {
		fmt.Fprintf(w, "instance     %s on %s, %s", i.State, i.Host, i.Version)
		if i.State == "streaming" {
			fmt.Fprintf(w, ": %d in flight, the oldest for %.1fs", i.Live.InFlightEvents, i.Live.LagSeconds)
		}
		if i.Reason != "" {
			fmt.Fprintf(w, ": %s", i.Reason)
		}
		fmt.Fprintln(w)
	}
	for _, d := range s.Destinations {
		fmt.Fprintf(w, "destination  %s: %d delivered, %d scheduled, %d dead", d.Name, d.Delivered, d.Scheduled, d.Dead)
		if d.LastDelivered != nil {
			fmt.Fprintf(w, ", last at %s", d.LastDelivered.Format(time.RFC3339))
		}
		if live := s.LiveOf(d.Name); live != nil && live.Circuit != "closed" && live.Circuit != "off" {
			fmt.Fprintf(w, ", circuit %s", live.Circuit)
		}
		if d.Paused != nil {
			fmt.Fprintf(w, ", PAUSED since %s %s", d.Paused.Since.Format(time.RFC3339), d.Paused.Reason)
		}
		fmt.Fprintln(w)
	}
}

// byteCount writes a number of bytes for people.
func byteCount(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f kB", float64(n)/(1<<10))
	default:
		return fmt.Sprintf("%d bytes", n)
	}
}
