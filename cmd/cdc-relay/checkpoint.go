package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newCheckpointCommand(g *globals) *cobra.Command {
	command := &cobra.Command{
		Use:   "checkpoint",
		Short: "Saved LSNs, from which events can be sent again",
	}
	command.AddCommand(newCheckpointSaveCommand(g), newCheckpointListCommand(g), newCheckpointDropCommand(g))
	return command
}

func newCheckpointSaveCommand(g *globals) *cobra.Command {
	var hold bool
	var label string
	command := &cobra.Command{
		Use:   "save NAME",
		Short: "Save the LSN up to which everything is settled",
		Long: `Save the LSN up to which everything is settled, under a name. With --hold its WAL is
kept too, by a copy of the relay's slot: then events can be sent again after their
rows were deleted. That costs disk space on the server, so it ends by itself at the
limits checkpoints.hold.max_bytes and max_age.`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if args[0] == "" {
				return usageError{errors.New("the name is empty")}
			}
			return g.withTables(command.Context(), func(pool *pgxpool.Pool, cfg Config) error {
				c, err := cfg.desk(pool).SaveCheckpoint(command.Context(), person(), args[0], label, hold)
				if err != nil {
					return explainCheckpoint(err, cfg)
				}
				return g.print(c, func(w io.Writer) { printCheckpoint(w, c) })
			})
		},
	}
	command.Flags().BoolVar(&hold, "hold", false, "keep its WAL with a copied slot")
	command.Flags().StringVar(&label, "label", "", "a note to find it by")
	return command
}

// explainCheckpoint adds what puts an error of a checkpoint right.
func explainCheckpoint(err error, cfg Config) error {
	switch {
	case errors.Is(err, saved.ErrExists):
		return mend.With(err, "choose another name, or cdc-relay checkpoint drop it first")
	case errors.Is(err, saved.ErrNotFound):
		return mend.With(err, "cdc-relay checkpoint list")
	case errors.Is(err, saved.ErrNoSlot):
		return mend.With(err, "cdc-relay init")
	}
	return provision.Explain(err, cfg.provisioning())
}

func newCheckpointListCommand(g *globals) *cobra.Command {
	var all bool
	command := &cobra.Command{
		Use:   "list",
		Short: "List the named checkpoints and the latest of those saved each minute",
		RunE: func(command *cobra.Command, _ []string) error {
			return g.withDesk(command.Context(), func(desk *operations.Desk, _ string) error {
				found, err := desk.Checkpoints(command.Context(), all)
				if err != nil {
					return err
				}
				return g.print(found, func(w io.Writer) {
					for _, c := range found {
						printCheckpoint(w, c)
					}
				})
			})
		},
	}
	command.Flags().BoolVar(&all, "all", false, "all that are kept")
	return command
}

func newCheckpointDropCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "drop NAME",
		Short: "Forget a checkpoint and let go of the WAL that it holds",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return g.withTables(command.Context(), func(pool *pgxpool.Pool, cfg Config) error {
				if err := cfg.desk(pool).DropCheckpoint(command.Context(), person(), args[0]); err != nil {
					return explainCheckpoint(err, cfg)
				}
				return g.print(map[string]string{"dropped": args[0]}, func(w io.Writer) { fmt.Fprintf(w, "%s dropped\n", args[0]) })
			})
		},
	}
}

func printCheckpoint(w io.Writer, c saved.Checkpoint) {
	name := c.Name
	if name == "" {
		name = "(each minute)"
	}
	fmt.Fprintf(w, "%-24s %-18s %s", name, c.LSN, c.SavedAt.Format(time.RFC3339))
	switch {
	case c.Lost:
		fmt.Fprintf(w, "  its held WAL is lost (slot %s)", c.HeldSlot)
	case c.HeldSlot != "":
		fmt.Fprintf(w, "  holds %s of WAL (slot %s)", byteCount(c.HeldBytes), c.HeldSlot)
	}
	if c.Label != "" {
		fmt.Fprintf(w, "  %s", c.Label)
	}
	fmt.Fprintln(w)
}
