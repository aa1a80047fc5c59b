package main

import (
	"context"
	"fmt"
	"net"
	"time"
)

// deadNeighbour measures what a destination that is down for the whole run does
// to another: to its latency at a steady rate, to the relay's memory, and to the
// WAL held back after a backlog.
func (b *bench) deadNeighbour(ctx context.Context) error {
	const rate, length = 500, 20 * time.Second
	alone, err := b.neighbour(ctx, "bench_alone", "", rate, length)
	if err != nil {
		return err
	}
	refusing, err := refusingAddress()
	if err != nil {
		return err
	}
	beside, err := b.neighbour(ctx, "bench_beside", refusing, rate, length)
	if err != nil {
		return err
	}
	fmt.Printf("\nOne destination down, %d events/s at the other:\n", rate)
	fmt.Printf("  latency alone           p50 %s  p99 %s\n", alone.p50, alone.p99)
	fmt.Printf("  latency beside it       p50 %s  p99 %s\n", beside.p50, beside.p99)
	fmt.Printf("  p99 beside / alone      %.2f (goal: at most 1.5)\n", float64(beside.p99)/float64(alone.p99))
	fmt.Printf("  WAL held after %d   %.1f MB (goal: under 16)\n", b.events, float64(beside.heldAfter)/(1<<20))
	fmt.Printf("  peak memory             %.0f MB; alone %.0f MB\n", float64(beside.peakBytes)/(1<<20), float64(alone.peakBytes)/(1<<20))
	return nil
}

// neighbourFigures are one half of the comparison.
type neighbourFigures struct {
	p50, p99  time.Duration
	heldAfter int64
	peakBytes int64
}

func (b *bench) neighbour(ctx context.Context, name, dead string, rate int, length time.Duration) (f neighbourFigures, err error) {
	r := newReceiver()
	defer r.Close()
	config := fmt.Sprintf("destinations:\n  - { name: good, url: %q, secrets: [ %s ], allow_private_networks: true }\n", r.URL, secret)
	if dead != "" {
		config += fmt.Sprintf("  - { name: dead, url: \"http://%s/\", secrets: [ %s ], allow_private_networks: true }\n", dead, secret)
	}
	s, err := b.start(ctx, name, config)
	if err != nil {
		return f, err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	committed, err := steady(ctx, s.url, rate, length)
	if err != nil {
		return f, err
	}
	if err := reach(r, len(committed)); err != nil {
		return f, err
	}
	sorted := r.latencies(committed)
	f.p50, f.p99 = quantile(sorted, 0.5), quantile(sorted, 0.99)
	if err := backlog(ctx, s.url, b.events); err != nil {
		return f, err
	}
	if err := reach(r, len(committed)+b.events); err != nil {
		return f, err
	}
	time.Sleep(2 * time.Second) // the last batches settle, and are confirmed each 100 ms
	if f.heldAfter, err = s.held(ctx); err != nil {
		return f, err
	}
	f.peakBytes, err = s.peak()
	return f, err
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// reach waits until the receiver has n events.
func reach(r *receiver, n int) error {
	for deadline := time.Now().Add(5 * time.Minute); r.count() < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d events arrived within five minutes", r.count(), n)
		}
	}
	return nil
}

// refusingAddress is a loopback address at which nobody listens.
func refusingAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
