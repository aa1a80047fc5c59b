package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// poller is the relay that articles show: it asks the table for unsent rows each
// interval, sends them one by one, signed, and marks them.
type poller struct {
	url, destination string
	interval         time.Duration
	client           *http.Client
}

func (p *poller) run(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	signer, err := signature.NewSigner(signature.Standard(), []string{secret})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		sent, err := p.turn(ctx, conn, signer)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if sent == 0 {
			select {
			case <-time.After(p.interval):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

func (p *poller) turn(ctx context.Context, conn *pgx.Conn, signer *signature.Signer) (int, error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	rows, err := tx.Query(ctx, `SELECT id::text, payload::text FROM outbox_events WHERE processed_at IS NULL ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED`)
	if err != nil {
		return 0, err
	}
	type row struct{ ID, Body string }
	batch, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		return 0, err
	}
	ids := make([]string, 0, len(batch))
	for _, r := range batch {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.destination, bytes.NewReader([]byte(r.Body)))
		if err != nil {
			return 0, err
		}
		request.Header.Set("Idempotency-Key", r.ID)
		for _, h := range signer.Sign(signature.Message{ID: r.ID, Time: time.Now(), Body: []byte(r.Body)}) {
			request.Header.Set(h.Name, h.Value)
		}
		response, err := p.client.Do(request)
		if err != nil {
			return 0, err
		}
		response.Body.Close()
		ids = append(ids, r.ID)
	}
	if _, err := tx.Exec(ctx, `UPDATE outbox_events SET processed_at = now() WHERE id = ANY ($1::text[]::uuid[])`, ids); err != nil {
		return 0, err
	}
	return len(ids), tx.Commit(ctx)
}

// againstPolling compares latency at a steady rate, and the drain of a backlog,
// with the polling relay at two intervals.
func (b *bench) againstPolling(ctx context.Context) error {
	const rate, length = 500, 10 * time.Second
	fmt.Printf("\nCommit to receipt at %d events/s, and the drain of %d events:\n", rate, b.events/5)
	relay, err := b.neighbourless(ctx, "bench_relay", nil, rate, length)
	if err != nil {
		return err
	}
	fmt.Printf("  cdc-relay               %s\n", relay)
	for _, interval := range []time.Duration{time.Second, 100 * time.Millisecond} {
		polling, err := b.neighbourless(ctx, fmt.Sprintf("bench_poll_%d", interval.Milliseconds()), &poller{interval: interval, client: http.DefaultClient}, rate, length)
		if err != nil {
			return err
		}
		fmt.Printf("  polling each %-10s %s  (relay drains %.1f times as fast)\n", interval, polling, relay.drain/polling.drain)
	}
	return nil
}

// pace is how fast something was.
type pace struct {
	p50, p99 time.Duration
	drain    float64 // events a second
}

func (p pace) String() string {
	return fmt.Sprintf("p50 %-12s p99 %-12s drain %.0f/s", p.p50.Round(10*time.Microsecond), p.p99.Round(10*time.Microsecond), p.drain)
}

// neighbourless measures the relay with one destination, or the poller on the
// same table without a relay's reading it.
func (b *bench) neighbourless(ctx context.Context, name string, polling *poller, rate int, length time.Duration) (p pace, err error) {
	r := newReceiver()
	defer r.Close()
	s, err := b.start(ctx, name, fmt.Sprintf("destinations:\n  - { name: main, url: %q, secrets: [ %s ], allow_private_networks: true }\n", r.URL, secret))
	if err != nil {
		return p, err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	if polling != nil {
		if err := s.replaceBy(ctx, polling, r.URL); err != nil {
			return p, err
		}
		working, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- polling.run(working) }()
		defer func() {
			cancel()
			err = firstError(err, <-ended)
		}()
	}
	committed, err := steady(ctx, s.url, rate, length)
	if err != nil {
		return p, err
	}
	if err := reach(r, len(committed)); err != nil {
		return p, err
	}
	sorted := r.latencies(committed)
	p.p50, p.p99 = quantile(sorted, 0.5), quantile(sorted, 0.99)
	began := time.Now()
	if err := backlog(ctx, s.url, b.events/5); err != nil {
		return p, err
	}
	if err := reach(r, len(committed)+b.events/5); err != nil {
		return p, err
	}
	p.drain = float64(b.events/5) / time.Since(began).Seconds()
	return p, nil
}
