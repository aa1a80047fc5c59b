package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManualCommand writes the man pages that packages bring along. It is hidden: who
// reads them has no use for it.
func newManualCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "manual DIRECTORY",
		Short:  "Write the man pages",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("make a directory for the man pages: %w", err)
			}
			root := command.Root()
			root.DisableAutoGenTag = true // the same sources give the same pages
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "CDC-RELAY", Section: "1", Source: "cdc-relay " + programVersion()}, args[0]); err != nil {
				return fmt.Errorf("write the man pages: %w", err)
			}
			return nil
		},
	}
}
