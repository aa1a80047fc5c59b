// Command bench measures the relay, as a user runs it, against a Postgres of its
// own and receivers on this machine, and prints the figures as ratios within one
// run. `make bench` runs it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
)

func main() {
	events := flag.Int("events", 100_000, "events of a backlog")
	program := flag.String("program", "", "the program to measure; built from this tree when empty")
	only := flag.String("only", "goals", "one part: goals, or of them drain, latency, slow or back; scale, polling, neighbour, replay, inbox or profile; all for each of them")
	profiles := flag.String("profiles", ".", "folder for what profile writes")
	plot := flag.String("plot", "", "file for the plot of scale, an SVG")
	rounds := flag.Int("rounds", 5, "rounds of goals, of which medians are told")
	client := flag.String("client", "", "be the bare client: send -events requests to this URL")
	flag.Parse()
	debug.SetGCPercent(400) // the receiver's memory of a million arrivals is no part of what is measured
	if *client != "" {
		if err := sendBare(context.Background(), *client, *events); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(context.Background(), &bench{program: *program, events: *events, rounds: *rounds, plot: *plot, profiles: *profiles}, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run's surroundings.
type bench struct {
	program string
	dir     string
	server  *throwaway.Server
	events  int
	rounds  int
	plot    string

	profiles  string
	drainedAt float64 // events a second of the last drain
}

func run(ctx context.Context, b *bench, only string) error {
	dir, err := os.MkdirTemp("", "cdc-relay-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if b.program == "" {
		b.program = filepath.Join(dir, "cdc-relay")
		if out, err := exec.Command("go", "build", "-o", b.program, "./cmd/cdc-relay").CombinedOutput(); err != nil {
			return fmt.Errorf("build the program: %w: %s", err, out)
		}
	}
	server, err := throwaway.StartLocal(ctx, throwaway.Options{Settings: map[string]string{"fsync": "on"}})
	if err != nil {
		return err
	}
	defer server.Stop()
	fmt.Printf("PostgreSQL %s from %s, fsync on\n", server.Version, server.From)
	b.dir, b.server = dir, server
	parts := []struct {
		name    string
		measure func(context.Context) error
	}{{"goals", func(ctx context.Context) error { return b.againstGoals(ctx, measures()) }}, {"scale", b.scale}, {"polling", b.againstPolling}, {"neighbour", b.deadNeighbour}, {"replay", b.besideReplay}, {"inbox", b.slowHandlers}, {"profile", b.profile}}
	for _, m := range measures() {
		if only == m.name {
			return b.againstGoals(ctx, []measure{m})
		}
	}
	for _, part := range parts {
		if only != "all" && only != part.name {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
