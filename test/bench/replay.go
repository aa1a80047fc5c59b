package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
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
	from, err := s.clock(ctx)
	if err != nil {
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
	time.Sleep(time.Second) // the last batches settle
	until, err := s.clock(ctx)
	if err != nil {
		return err
	}
	if err := s.command("replay", "--from-checkpoint", "middle", "--detach"); err != nil {
		return err
	}
	beside, err := s.latency(ctx, r, rate, length)
	if err != nil {
		return err
	}
	during := len(r.replays())
	fmt.Printf("\nA replay of what followed a checkpoint, %d events/s live beside it:\n", rate)
	fmt.Printf("  latency alone           p50 %s  p99 %s\n", alone.p50, alone.p99)
	fmt.Printf("  latency beside it       p50 %s  p99 %s\n", beside.p50, beside.p99)
	fmt.Printf("  p99 beside / alone      %.2f (goal: at most 2)\n", float64(beside.p99)/float64(alone.p99))
	return s.judgeReplay(ctx, r, from, until, during)
}

// judgeReplay waits for the replay's end and holds what came against what was
// committed between the two times.
func (s *subject) judgeReplay(ctx context.Context, r *receiver, from, until time.Time, during int) error {
	var wanted int
	var ids []string
	err := s.conn.QueryRow(ctx, `SELECT count(*), array_agg(id::text) FROM outbox_events WHERE created_at BETWEEN $1 AND $2`, from, until).Scan(&wanted, &ids)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Minute); len(r.replays()) < wanted && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(2 * time.Second) // what is too much would come by now
	missing := make(map[string]bool, wanted)
	for _, id := range ids {
		missing[id] = true
	}
	tooMuch, disorder, last := 0, 0, make(map[string]place)
	for _, got := range r.replays() {
		if !missing[got.id] {
			tooMuch++
		}
		delete(missing, got.id)
		at, err := parsePlace(got.lsn)
		if err != nil {
			return err
		}
		if at.before(last[got.aggregate]) {
			disorder++
		}
		last[got.aggregate] = at
	}
	fmt.Printf("  sent again              %d of %d, %d of them meanwhile; %d missing, %d twice or not asked for, %d out of order\n",
		len(r.replays()), wanted, during, len(missing), tooMuch, disorder)
	return nil
}

// place is an event's in the WAL, as Cdc-Relay-Lsn has it.
type place struct {
	commit pglogrepl.LSN
	index  int
}

func parsePlace(text string) (p place, err error) {
	cut := strings.LastIndex(text, "/")
	if cut < 0 {
		return p, fmt.Errorf("%q is no position", text)
	}
	if p.commit, err = pglogrepl.ParseLSN(text[:cut]); err != nil {
		return p, err
	}
	p.index, err = strconv.Atoi(text[cut+1:])
	return p, err
}

func (p place) before(o place) bool {
	return p.commit < o.commit || p.commit == o.commit && p.index < o.index
}

// clock is the server's time, as created_at has it.
func (s *subject) clock(ctx context.Context) (at time.Time, err error) {
	return at, s.conn.QueryRow(ctx, `SELECT clock_timestamp()::timestamp`).Scan(&at)
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
