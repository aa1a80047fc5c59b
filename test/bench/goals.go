package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// goal is one line of the table: a figure that is measured in each round, and what it
// should be.
type goal struct {
	name   string
	want   float64
	most   bool // want is the most; else the least
	format string
	values []float64
}

func (g *goal) median() float64 {
	sorted := slices.Sorted(slices.Values(g.values))
	return sorted[len(sorted)/2]
}

func (g *goal) String() string {
	bound, verdict := "at least", "reached"
	if g.most {
		bound = "at most"
	}
	m := g.median()
	if g.most && m > g.want || !g.most && m < g.want {
		verdict = "missed"
	}
	show := func(v float64) string { return fmt.Sprintf(g.format, v) }
	return fmt.Sprintf("| %s | %s %s | %s (%s to %s) | %s |", g.name, bound, show(g.want), show(m), show(slices.Min(g.values)), show(slices.Max(g.values)), verdict)
}

// goals are measured round by round, so that each ratio is within one and the same
// minute, and told as medians.
type goals struct {
	list []*goal
	raw  []*goal // figures beside the ratios, without a goal
}

func (g *goals) of(list *[]*goal, name, format string) *goal {
	for _, known := range *list {
		if known.name == name {
			return known
		}
	}
	added := &goal{name: name, format: format}
	*list = append(*list, added)
	return added
}

func (g *goals) least(name string, want, value float64) {
	line := g.of(&g.list, name, "%.2f")
	line.want, line.values = want, append(line.values, value)
}

func (g *goals) atMost(name, format string, want, value float64) {
	line := g.of(&g.list, name, format)
	line.want, line.most, line.values = want, true, append(line.values, value)
}

func (g *goals) figure(name, format string, value float64) {
	line := g.of(&g.raw, name, format)
	line.values = append(line.values, value)
}

// measure is a part of a round.
type measure struct {
	name string
	of   func(b *bench, ctx context.Context, name string, g *goals) error
}

func measures() []measure {
	return []measure{{"drain", (*bench).drain}, {"latency", (*bench).latency}, {"slow", (*bench).slowReceiver}, {"back", (*bench).comesBack}}
}

// againstGoals measures what has a goal, in so many rounds, and prints the table.
func (b *bench) againstGoals(ctx context.Context, measures []measure) error {
	g := &goals{}
	for round := range b.rounds {
		began := time.Now()
		for _, m := range measures {
			if err := m.of(b, ctx, fmt.Sprintf("goal_%d", round), g); err != nil {
				return fmt.Errorf("round %d: %s: %w", round+1, m.name, err)
			}
		}
		fmt.Printf("round %d of %d took %s\n", round+1, b.rounds, time.Since(began).Round(time.Second))
	}
	if len(measures) > 1 {
		if err := b.memory(ctx, g); err != nil {
			return fmt.Errorf("memory: %w", err)
		}
	}
	g.print(b.rounds)
	return nil
}

func (g *goals) print(rounds int) {
	fmt.Printf("\n| work | goal | median (least to most) of %d rounds | verdict |\n|---|---|---|---|\n", rounds)
	for _, line := range g.list {
		fmt.Println(line)
	}
	fmt.Printf("\n| beside them | median (least to most) |\n|---|---|\n")
	for _, line := range g.raw {
		fmt.Printf("| %s | %s (%s to %s) |\n", line.name, fmt.Sprintf(line.format, line.median()), fmt.Sprintf(line.format, slices.Min(line.values)), fmt.Sprintf(line.format, slices.Max(line.values)))
	}
}

func destinationTo(url, more string) string {
	return fmt.Sprintf("destinations:\n  - { name: main, url: %q, secrets: [ %s ], allow_private_networks: true%s }\n", url, secret, more)
}

// drain compares the relay over one backlog with the bare client and with polling
// relays, and what it costs the processors.
func (b *bench) drain(ctx context.Context, name string, g *goals) (err error) {
	name += "_drain"
	r := newReceiver()
	defer r.Close()
	s, err := b.start(ctx, name, destinationTo(r.URL, ""))
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	if err := s.end(); err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, name+"_bare"); err != nil {
		return err
	}
	defer s.conn.Exec(context.WithoutCancel(ctx), `SELECT pg_drop_replication_slot($1)`, name+"_bare")
	if err := backlog(ctx, s.url, b.events); err != nil {
		return err
	}
	if _, err := s.conn.Exec(ctx, `CHECKPOINT`); err != nil {
		return err
	}
	end, err := s.flushed(ctx)
	if err != nil {
		return err
	}

	bare, err := b.bareClient(ctx, b.events)
	if err != nil {
		return err
	}

	var relay float64
	postgres, err := b.postgresFor(func() (err error) {
		relay, err = s.drained(ctx, r, end)
		return err
	})
	if err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	cpu := s.used
	baseline, err := b.postgresFor(func() error {
		if err := s.receiveBare(ctx, name+"_bare", name, end); err != nil {
			return err
		}
		return s.updateBare(ctx)
	})
	if err != nil {
		return err
	}
	many, err := s.polled(ctx, r.URL, 16, b.events/2)
	if err != nil {
		return err
	}
	one, err := s.polled(ctx, r.URL, 1, b.events/5)
	if err != nil {
		return err
	}
	g.least("drain / bare POST client", 0.75, relay/bare.rate)
	g.least("drain / polling relay with 16 workers, unordered", 1.3, relay/many)
	g.least("drain / polling relay, one by one", 2.5, relay/one)
	g.atMost("relay's CPU / bare client's", "%.2f", 2.0, cpu.Seconds()/bare.cpu.Seconds())
	g.atMost("Postgres' CPU / that of streaming and one batched UPDATE", "%.2f", 1.5, postgres.Seconds()/baseline.Seconds())
	b.drainedAt = relay
	g.figure("drain, events/s", "%.0f", relay)
	g.figure("bare POST client, requests/s", "%.0f", bare.rate)
	g.figure("polling relay with 16 workers, events/s", "%.0f", many)
	g.figure("polling relay one by one, events/s", "%.0f", one)
	g.figure("relay's CPU, µs an event", "%.0f", float64(cpu.Microseconds())/float64(b.events))
	g.figure("Postgres' CPU, µs an event", "%.0f", float64(postgres.Microseconds())/float64(b.events))
	g.figure("bare client's CPU, µs a request", "%.0f", float64(bare.cpu.Microseconds())/float64(b.events))
	return nil
}

// drained starts the relay over a backlog, and gives its rate from the first receipt
// until everything is recorded and confirmed.
func (s *subject) drained(ctx context.Context, r *receiver, end string) (float64, error) {
	if err := s.launch(destinationTo(r.URL, "")); err != nil {
		return 0, err
	}
	if err := reach(r, 1); err != nil {
		return 0, err
	}
	if err := reach(r, s.bench.events); err != nil {
		return 0, err
	}
	if err := s.confirmed(ctx, end); err != nil {
		return 0, err
	}
	first, _ := r.span()
	return float64(s.bench.events) / time.Since(first).Seconds(), nil
}

// postgresFor gives the time that the server's processes spend on something.
func (b *bench) postgresFor(do func() error) (time.Duration, error) {
	before, err := b.postgresCPU()
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := b.postgresCPU()
	return after - before, err
}

// latency is from before the commit to the receipt.
func (b *bench) latency(ctx context.Context, name string, g *goals) (err error) {
	r := newReceiver()
	defer r.Close()
	s, err := b.start(ctx, name+"_latency", destinationTo(r.URL, ""))
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	if _, err := steady(ctx, s.url, 200, 2*time.Second); err != nil { // connections are made
		return err
	}
	measure := func(rows, perSecond int) ([]time.Duration, error) {
		already := r.count()
		committed, err := steadyRows(ctx, s.url, perSecond, rows, 8*time.Second)
		if err != nil {
			return nil, err
		}
		err = reach(r, already+len(committed))
		return r.latencies(committed), err
	}
	time.Sleep(time.Second)
	calm, err := measure(1, 500)
	if err != nil {
		return err
	}
	busy, err := measure(10, 500) // transactions of ten rows
	if err != nil {
		return err
	}
	g.atMost("commit to receipt at 500 events/s, p50 in ms", "%.1f", 2, quantile(calm, 0.5).Seconds()*1000)
	g.atMost("commit to receipt at 500 events/s, p99 in ms", "%.1f", 6, quantile(calm, 0.99).Seconds()*1000)
	g.atMost("commit to receipt at 5,000 events/s, p99 in ms", "%.1f", 50, quantile(busy, 0.99).Seconds()*1000)
	return nil
}

// slowReceiver is one that takes 20 ms: 64 connections can carry 3,200 a second.
func (b *bench) slowReceiver(ctx context.Context, name string, g *goals) (err error) {
	const takes, connections = 20 * time.Millisecond, 64
	r := newReceiver()
	defer r.Close()
	r.takes.Store(int64(takes))
	s, err := b.start(ctx, name+"_slow", destinationTo(r.URL, ", concurrency: 64"))
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	rows := b.events / 4
	if err := sendBare(ctx, r.URL, rows); err != nil {
		return err
	}
	first, last := r.span()
	g.figure("the same by a bare client", "%.2f", float64(rows)/(last.Sub(first)+takes).Seconds()/(connections/takes.Seconds()))
	r.forget()
	if err := backlogOf(ctx, s.url, rows, 10_000); err != nil {
		return err
	}
	if err := reach(r, rows); err != nil {
		return err
	}
	first, last = r.span()
	rate := float64(rows) / (last.Sub(first) + takes).Seconds()
	g.least("receiver that takes 20 ms, of what 64 connections can do", 0.95, rate/(connections/takes.Seconds()))
	return nil
}

// comesBack has a destination refuse everything until a backlog is parked, and then
// take it, beside live traffic.
func (b *bench) comesBack(ctx context.Context, name string, g *goals) (err error) {
	r := newReceiver()
	defer r.Close()
	r.refuses.Store(true)
	schedule := strings.TrimSuffix(strings.Repeat("2s, ", 200), ", ")
	config := destinationTo(r.URL, "") + "retry: { inline: { attempts: 1 }, schedule: [ " + schedule + " ] }\ncircuit_breaker: { pause: 2s }\n"
	s, err := b.start(ctx, name+"_back", config)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	if err := backlogOf(ctx, s.url, b.events, 5_000); err != nil {
		return err
	}
	if err := s.until(ctx, "everything to be parked", fmt.Sprintf(`SELECT count(*) >= %d FROM cdc_relay.dead_letters`, b.events)); err != nil {
		return err
	}
	live, stopLive := context.WithCancel(ctx)
	defer stopLive()
	traffic := make(chan error, 1)
	go func() {
		_, err := steady(live, s.url, 200, 10*time.Minute)
		traffic <- err
	}()
	r.refuses.Store(false)
	if err := reach(r, 1); err != nil {
		return err
	}
	began := time.Now()
	if err := reach(r, b.events); err != nil { // asking the database meanwhile would cost it much
		return err
	}
	if err := s.until(ctx, "everything parked to be delivered", `SELECT NOT EXISTS (SELECT FROM cdc_relay.dead_letters WHERE state = 'SCHEDULED')`); err != nil {
		return err
	}
	rate := float64(b.events) / time.Since(began).Seconds()
	stopLive()
	if err := <-traffic; err != nil && live.Err() == nil {
		return err
	}
	if b.drainedAt > 0 { // in this round
		g.least("100,000 parked rows return / drain", 0.5, rate/b.drainedAt)
	}
	g.figure("parked rows return, events/s", "%.0f", rate)
	peak, err := s.peak()
	g.atMost(fmt.Sprintf("memory: a receiver that is down until %d events are parked, in MB", b.events), "%.0f", 100, float64(peak)/(1<<20))
	return err
}

// memory is the most that the relay has used, in one transaction of ten times the
// events, and in a backlog of as many.
func (b *bench) memory(ctx context.Context, g *goals) (err error) {
	r := newReceiver()
	defer r.Close()
	s, err := b.start(ctx, "goal_memory", destinationTo(r.URL, ""))
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	rows := 10 * b.events
	measure := func(what string, write func() error) error {
		already := r.count()
		if err := write(); err != nil {
			return err
		}
		if err := reach(r, already+rows); err != nil {
			return err
		}
		peak, err := s.peak()
		g.atMost(what, "%.0f", 100, float64(peak)/(1<<20))
		return err
	}
	if err := measure(fmt.Sprintf("memory: a transaction of %d rows, in MB", rows), func() error {
		_, err := s.conn.Exec(ctx, manyRows, payload, rows, 1000)
		return err
	}); err != nil {
		return err
	}
	return measure(fmt.Sprintf("memory: a backlog of %d events, in MB", rows), func() error { return backlog(ctx, s.url, rows) })
}
