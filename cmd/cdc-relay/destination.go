package main

import (
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

func newDestinationCommand(g *globals) *cobra.Command {
	command := &cobra.Command{Use: "destination", Short: "Pause and resume destinations"}
	var reason string
	pause := &cobra.Command{
		Use:   "pause NAME",
		Short: "Send nothing to a destination until it is resumed; its events are parked",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return g.changeDestination(command, args[0], "paused", func(letters *deadletter.Store) error {
				return letters.Pause(command.Context(), args[0], reason)
			})
		},
	}
	pause.Flags().StringVar(&reason, "reason", "", "kept with the pause")
	resume := &cobra.Command{
		Use:   "resume NAME",
		Short: "Send to a paused destination again, first what was parked",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return g.changeDestination(command, args[0], "resumed", func(letters *deadletter.Store) error {
				return letters.Resume(command.Context(), args[0])
			})
		},
	}
	command.AddCommand(pause, resume)
	return command
}

func (g *globals) changeDestination(command *cobra.Command, name, done string, change func(*deadletter.Store) error) error {
	return g.withLetters(command.Context(), func(letters *deadletter.Store, _ *pgxpool.Pool, cfg Config) error {
		known := false
		for _, d := range cfg.Destinations {
			known = known || d.Name == name
		}
		if !known {
			return usageError{fmt.Errorf("the config has no destination %q", name)}
		}
		if err := change(letters); err != nil {
			return err
		}
		return g.print(map[string]string{"destination": name, "state": done}, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", name, done) })
	})
}
