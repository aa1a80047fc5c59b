package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

// besideReplay measures what a replay of half a backlog, at its usual rate, does to
// the latency of live events.
func (b *bench) besideReplay(ctx context.Context) (err error) {
	const rate, length = 500, 20 * time.Second
	r := newReceiver()
	defer r.Close()
	s, err := b.start(ctx, "bench_replay", fmt.Sprintf("destinations:\n  - { name: main, url: %q, secrets: [ %s ], allow_private_networks: true }\n", r.URL, secret))
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	half := b.events / 2
	if err := backlog(ctx, s.url, half); err != nil {
		return err
	}
	if err := reach(r, half); err != nil {
		return err
	}
	time.Sleep(time.Second) // the last batches settle
	if err := s.command("checkpoint", "save", "middle"); err != nil {
		return err
	}
	if err := backlog(ctx, s.url, half); err != nil {
		return err
	}
	if err := reach(r, 2*half); err != nil {
		return err
	}
	alone, err := s.latency(ctx, r, rate, length)
	if err != nil {
		return err
	}
	before := r.repeats()
	if err := s.command("replay", "--from-checkpoint", "middle", "--detach"); err != nil {
		return err
	}
	beside, err := s.latency(ctx, r, rate, length)
	if err != nil {
		return err
	}
	during := r.repeats() - before
	fmt.Printf("\nA replay of what followed a checkpoint, %d events/s live beside it:\n", rate)
	fmt.Printf("  latency alone           p50 %s  p99 %s\n", alone.p50, alone.p99)
	fmt.Printf("  latency beside it       p50 %s  p99 %s\n", beside.p50, beside.p99)
	fmt.Printf("  p99 beside / alone      %.2f (goal: at most 2)\n", float64(beside.p99)/float64(alone.p99))
	fmt.Printf("  sent again meanwhile    %d of %d\n", during, half+len(beside.sent))
	return nil
}

func (s *subject) command(args ...string) error {
	out, err := exec.Command(s.bench.program, append([]string{"--config", filepath.Join(s.bench.dir, s.name+".yaml")}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

// latencyFigures are of live events at a steady rate.
type latencyFigures struct {
	p50, p99 time.Duration
	sent     map[string]time.Time
}

func (s *subject) latency(ctx context.Context, r *receiver, rate int, length time.Duration) (f latencyFigures, err error) {
	known := r.count()
	if f.sent, err = steady(ctx, s.url, rate, length); err != nil {
		return f, err
	}
	if err := reach(r, known+len(f.sent)); err != nil {
		return f, err
	}
	sorted := r.latencies(f.sent)
	f.p50, f.p99 = quantile(sorted, 0.5), quantile(sorted, 0.99)
	return f, nil
}
