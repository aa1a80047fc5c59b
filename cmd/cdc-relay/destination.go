package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/operations"
)

func newDestinationCommand(g *globals) *cobra.Command {
	command := &cobra.Command{Use: "destination", Short: "Pause and resume destinations"}
	var reason string
	pause := &cobra.Command{
		Use:   "pause NAME",
		Short: "Send nothing to a destination until it is resumed; its events are parked",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return g.changeDestination(command, args[0], "paused", func(desk *operations.Desk, actor string) error {
				return desk.Pause(command.Context(), actor, args[0], reason)
			})
		},
	}
	pause.Flags().StringVar(&reason, "reason", "", "kept with the pause")
	resume := &cobra.Command{
		Use:   "resume NAME",
		Short: "Send to a paused destination again, first what was parked",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return g.changeDestination(command, args[0], "resumed", func(desk *operations.Desk, actor string) error {
				return desk.Resume(command.Context(), actor, args[0])
			})
		},
	}
	command.AddCommand(pause, resume)
	return command
}

func (g *globals) changeDestination(command *cobra.Command, name, done string, change func(desk *operations.Desk, actor string) error) error {
	return g.withDesk(command.Context(), func(desk *operations.Desk, actor string) error {
		err := change(desk, actor)
		if errors.Is(err, operations.ErrUnknownDestination) {
			return usageError{err}
		}
		if err != nil {
			return err
		}
		return g.print(map[string]string{"destination": name, "state": done}, func(w io.Writer) { fmt.Fprintf(w, "%s %s\n", name, done) })
	})
}
