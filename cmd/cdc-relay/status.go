package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newStatusCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show lag, slot, destinations and dead letters",
		RunE: func(command *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			ctx := command.Context()
			var status relayStatus
			err = cfg.withConnection(ctx, func(conn *pgx.Conn) (err error) {
				if status.Inbox, err = inboxStatus(ctx, conn, cfg); err != nil || cfg.inboxAlone() {
					return err
				}
				if status.Status, err = provision.ReadStatus(ctx, conn, cfg.provisioning()); err != nil {
					return err
				}
				if version, err := provision.TablesVersion(ctx, conn, cfg.Database.Schema); err != nil || version == 0 {
					return err
				}
				status.Held, err = saved.NewStore(conn, cfg.Database.Schema, cfg.Slot.Name).List(ctx, saved.Which{Held: true})
				return err
			})
			if err != nil {
				return err
			}
			return g.print(status, func(w io.Writer) {
				if !cfg.inboxAlone() {
					printStatus(w, status)
				}
				printInboxStatus(w, cfg.Inbox.Table, status.Inbox)
			})
		},
	}
}

// relayStatus is what `status` prints.
type relayStatus struct {
	provision.Status
	Held  []saved.Checkpoint   `json:"held_checkpoints,omitempty"`
	Inbox map[inbox.Status]int `json:"inbox,omitempty"` // rows that are not done with
}

// inboxStatus counts the open rows of a configured inbox.
func inboxStatus(ctx context.Context, conn *pgx.Conn, cfg Config) (map[inbox.Status]int, error) {
	if cfg.Inbox.Listen == "" {
		return nil, nil
	}
	complete, err := inbox.Complete(ctx, conn, cfg.inboxTables())
	if err != nil || !complete {
		return nil, err
	}
	open := []inbox.Status{inbox.Pending, inbox.Deferred, inbox.Quarantined}
	tallies, err := inbox.NewManager(conn, cfg.inboxTables()).Tallies(ctx, inbox.Filter{Statuses: open})
	if err != nil {
		return nil, err
	}
	counts := make(map[inbox.Status]int)
	for _, status := range open {
		counts[status] = 0
	}
	for _, t := range tallies {
		counts[t.Status] += t.Count
	}
	return counts, nil
}

func printInboxStatus(w io.Writer, table string, counts map[inbox.Status]int) {
	if counts != nil {
		fmt.Fprintf(w, "inbox        %s: %d pending, %d deferred, %d quarantined\n", table, counts[inbox.Pending], counts[inbox.Deferred], counts[inbox.Quarantined])
	}
}

func printStatus(w io.Writer, s relayStatus) {
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
	for _, d := range s.Destinations {
		fmt.Fprintf(w, "destination  %s: %d delivered, %d scheduled, %d dead", d.Name, d.Delivered, d.Scheduled, d.Dead)
		if d.LastDelivered != nil {
			fmt.Fprintf(w, ", last at %s", d.LastDelivered.Format(time.RFC3339))
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
