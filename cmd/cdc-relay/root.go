package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set when a release is built: -ldflags "-X main.version=1.2.3".
var version = ""

// programVersion is the release's version, or what the build knows of itself.
func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

// globals are the flags of every command.
type globals struct {
	configPath string
	output     string
	command    *cobra.Command
}

func newRootCommand() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:           "cdc-relay",
		Short:         "Deliver a Postgres outbox over HTTP, straight from the write-ahead log, and take in webhooks",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(command *cobra.Command, _ []string) error {
			g.command = command
			if g.output != "text" && g.output != "json" {
				return usageError{fmt.Errorf("--output is %q; there are text and json", g.output)}
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.PersistentFlags().StringVar(&g.configPath, "config", "cdc-relay.yaml", "configuration file")
	root.PersistentFlags().StringVar(&g.output, "output", "text", "text or json")
	root.AddCommand(
		newRunCommand(g), newInitCommand(g), newDoctorCommand(g), newStatusCommand(g),
		newCheckpointCommand(g), newReplayCommand(g), newDLQCommand(g), newInboxCommand(g), newDestinationCommand(g), newDemoCommand(g), newVersionCommand(g), newConfigTopic(), newManualCommand(),
	)
	markUsageErrors(root)
	return root
}

// markUsageErrors makes wrong arguments of any command exit like wrong flags.
func markUsageErrors(command *cobra.Command) {
	check := command.Args
	if check == nil {
		check = cobra.NoArgs
		if command.HasSubCommands() {
			check = cobra.ArbitraryArgs
			if command.RunE == nil {
				command.RunE = requireSubcommand
			}
		}
	}
	command.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, sub := range command.Commands() {
		markUsageErrors(sub)
	}
}

func requireSubcommand(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s has no command %q; see %s --help", command.CommandPath(), args[0], command.CommandPath())}
	}
	return command.Help()
}

// load reads the configuration that the flags name.
func (g *globals) load() (Config, error) {
	return loadConfig(g.configPath, !g.command.Flags().Changed("config"))
}

// print writes v as JSON under --output json, and by text otherwise.
func (g *globals) print(v any, text func(io.Writer)) error {
	out := g.command.OutOrStdout()
	if g.output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(v)
	}
	text(out)
	return nil
}

func newVersionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			v := programVersion()
			return g.print(map[string]string{"version": v}, func(w io.Writer) { fmt.Fprintln(w, "cdc-relay", v) })
		},
	}
}
