package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/alert"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/telemetry"
)

// inboxes is the inbox of a running process: the listener that partners call, and the
// workers on what was stored. Each has connections of its own, so that slow handlers
// never keep a partner waiting for its answer.
type inboxes struct {
	cfg       Config
	log       zerolog.Logger
	ingress   *pgxpool.Pool
	workplace *pgxpool.Pool
	listener  net.Listener
	receiver  atomic.Pointer[inbox.Receiver] // replaced at a reload
	processor *inbox.Processor               // nil where nothing is processed here
	manager   *inbox.Manager
	alerts    *alert.Notifier
	metrics   *telemetry.Inbox
}

// ingressConnections are enough for some thousand webhooks a second: each is held for
// one commit.
const ingressConnections = 12

// newInboxes creates what is missing of the tables, opens the listener, and returns
// what is ready to run.
func newInboxes(ctx context.Context, s *service) (b *inboxes, err error) {
	b = &inboxes{cfg: s.cfg, log: s.log, alerts: s.alerts, metrics: telemetry.NewInbox(s.registry)}
	defer func() {
		if err != nil {
			b.close()
			b = nil
		}
	}()
	nobody := func(*pgconn.PgError) {}
	if b.ingress, err = s.cfg.watchedPool(ctx, ingressConnections, nobody); err != nil {
		return b, err
	}
	if b.workplace, err = s.cfg.watchedPool(ctx, int32(s.cfg.Inbox.Processing.Workers)+2, nobody); err != nil {
		return b, err
	}
	if err := inbox.Migrate(ctx, b.ingress, s.cfg.inboxTables()); err != nil {
		return b, provision.ExplainConnect(err)
	}
	b.manager = inbox.NewManager(b.ingress, s.cfg.inboxTables())
	if s.cfg.Inbox.processes() {
		if b.processor, err = b.newProcessor(); err != nil {
			return b, err
		}
	}
	if err := b.reload(s.cfg); err != nil {
		return b, err
	}
	if b.listener, err = net.Listen("tcp", s.cfg.Inbox.Listen); err != nil {
		return b, fmt.Errorf("listen for inbound webhooks: %w", err)
	}
	return b, nil
}

func (b *inboxes) newProcessor() (*inbox.Processor, error) {
	handler, err := b.cfg.inboxHandler()
	if err != nil {
		return nil, err
	}
	p := b.cfg.Inbox.Processing
	return inbox.NewProcessor(inbox.ProcessorOptions{
		Database: b.workplace, Tables: b.cfg.inboxTables(), Handler: handler, Machines: b.cfg.Inbox.machines(), Workers: p.Workers,
		Schedule: p.Schedule, Defer: inbox.Deferral(p.Defer), Grace: b.cfg.ShutdownTimeout, Kept: p.Retention,
		Quarantined: b.quarantined, Attempted: func(e inbox.Event, outcome string) { b.metrics.Attempted(e.Partner, outcome) }, Log: b.log,
	})
}

func (b *inboxes) quarantined(e inbox.Event, reason string) {
	b.alerts.Tell(alert.Notice{
		Kind: alert.Quarantined, Subject: e.Partner, EventID: e.EventID, EventType: e.Type, Reason: reason,
	})
}

// reload puts a configuration's partners in force.
func (b *inboxes) reload(cfg Config) error {
	o := inbox.Options{
		Database: b.ingress, Tables: b.cfg.inboxTables(), Partners: cfg.Inbox.partners(), PublicURL: cfg.Inbox.PublicURL,
		Fetch: newFetch(), Answered: b.metrics.Answered, Log: b.log,
	}
	if b.processor != nil {
		o.Stored = b.processor.Wake
	}
	receiver, err := inbox.NewHandler(o)
	if err != nil {
		return err
	}
	b.receiver.Store(receiver)
	return nil
}

// newFetch returns what gets a provider's certificate: from public addresses only,
// without following redirects, and not much.
func newFetch() func(context.Context, string) ([]byte, error) {
	client := &http.Client{
		Transport:     dispatcher.NewTransport(dispatcher.TransportOptions{Connections: 2, ConnectTimeout: 2 * time.Second}),
		Timeout:       4 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, address string) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s answered %d", request.URL.Host, response.StatusCode)
		}
		return io.ReadAll(io.LimitReader(response.Body, 64<<10))
	}
}

// run serves and processes until ctx ends. Then nothing more is taken in, and what is
// under way has the shutdown time-out to finish.
func (b *inboxes) run(ctx context.Context) error {
	server := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) { b.receiver.Load().ServeHTTP(w, h) }),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 60 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10,
	}
	b.log.Info().Stringer("address", b.listener.Addr()).Int("partners", len(b.cfg.Inbox.Partners)).Bool("processing", b.processor != nil).Msg("taking in webhooks")
	parts, running := errgroup.WithContext(ctx)
	parts.Go(func() error {
		if err := server.Serve(b.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve inbound webhooks: %w", err)
		}
		return nil
	})
	parts.Go(func() error {
		<-running.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.cfg.ShutdownTimeout)
		defer cancel()
		if err := server.Shutdown(ending); err != nil {
			b.log.Warn().Err(err).Msg("shutdown_timeout is over: partners whose webhooks had no answer yet send them again")
			server.Close()
		}
		return nil
	})
	parts.Go(func() error { return b.count(running) })
	if b.processor != nil {
		parts.Go(func() error { return b.processor.Run(running) })
	}
	return parts.Wait()
}

// count keeps the figures of open rows fresh.
func (b *inboxes) count(ctx context.Context) error {
	ticker := time.NewTicker(15 * time.Second)
	defer ticker.Stop()
	for {
		tallies, err := b.manager.Tallies(ctx, inbox.Filter{Statuses: []inbox.Status{inbox.Pending, inbox.Deferred, inbox.Quarantined}})
		if err == nil {
			b.metrics.Rows(rowCounts(tallies))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func rowCounts(tallies []inbox.Tally) []telemetry.RowCount {
	counts := make(map[telemetry.RowCount]int)
	for _, t := range tallies {
		counts[telemetry.RowCount{Partner: t.Partner, Status: string(t.Status)}] += t.Count
	}
	rows := make([]telemetry.RowCount, 0, len(counts))
	for row, n := range counts {
		row.Count = n
		rows = append(rows, row)
	}
	return rows
}

// reachable tells whether webhooks can be stored.
func (b *inboxes) reachable() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return b.ingress.Ping(ctx)
}

func (b *inboxes) close() {
	if b.listener != nil {
		b.listener.Close() // Serve has closed it, unless the process never came to serve
	}
	for _, pool := range []*pgxpool.Pool{b.ingress, b.workplace} {
		if pool != nil {
			pool.Close()
		}
	}
}
