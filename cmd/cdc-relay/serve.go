package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/admin"
	"github.com/cdc-relay/cdc-relay/internal/alert"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/telemetry"
)

// serve runs the relay, the inbox and the admin listener, whichever the config has,
// until ctx ends; then what is in flight has the shutdown time-out to finish. It owns
// every goroutine: a part that ends with an error ends the others.
//
// Each configuration that comes over reloads replaces the destinations' and the
// partners' settings.
func serve(ctx context.Context, cfg Config, reloads <-chan Config, log zerolog.Logger) error {
	s := &service{cfg: cfg, log: log, registry: telemetry.NewRegistry(programVersion())}
	defer s.close()
	if err := s.assemble(ctx); err != nil {
		return err
	}
	return s.run(ctx, reloads)
}

// service is what one process runs.
type service struct {
	cfg      Config
	log      zerolog.Logger
	registry *prometheus.Registry
	alerts   *alert.Notifier
	tracing  *sdktrace.TracerProvider // nil without an endpoint for traces
	watching *pgxpool.Pool            // for what people look at, so that it never keeps events waiting
	desk     *operations.Desk
	relay    *relay   // nil without destinations
	inbox    *inboxes // nil without a listener for it
}

func (s *service) assemble(ctx context.Context) (err error) {
	if s.alerts, err = s.cfg.notifier(s.log); err != nil {
		return err
	}
	if s.tracing, err = s.cfg.tracing(ctx, s.log); err != nil {
		return err
	}
	if s.watching, err = s.cfg.watchedPool(ctx, watchingConnections, func(*pgconn.PgError) {}); err != nil {
		return err
	}
	s.desk = s.cfg.desk(s.watching)
	if s.cfg.relays() {
		if s.relay, err = newRelay(ctx, s); err != nil {
			return err
		}
	}
	if s.cfg.inboxAlone() {
		if _, err = initializeTables(ctx, s.cfg); err != nil {
			return err
		}
	}
	if s.cfg.Inbox.Listen != "" {
		if s.inbox, err = newInboxes(ctx, s); err != nil {
			return err
		}
	}
	// What is there now is all that will be, and what may not be written is better known
	// before the first event than from each settle transaction.
	return s.cfg.withConnection(ctx, func(conn *pgx.Conn) error { return provision.CheckGrants(ctx, conn, s.cfg.provisioning()) })
}

func (s *service) close() {
	if s.relay != nil {
		s.relay.pool.Close()
	}
	if s.inbox != nil {
		s.inbox.close()
	}
	if s.watching != nil {
		s.watching.Close()
	}
	if s.tracing != nil {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		if err := s.tracing.Shutdown(ctx); err != nil {
			s.log.Warn().Err(err).Msg("the last traces could not be exported")
		}
	}
}

// flushTimeout bounds how long the end waits for a collector of traces.
const flushTimeout = 5 * time.Second

// tracer is nil without tracing, so that nothing is spent on it.
func (s *service) tracer() trace.Tracer {
	if s.tracing == nil {
		return nil
	}
	return s.tracing.Tracer("github.com/cdc-relay/cdc-relay")
}

// watchingConnections are enough for some pages at once.
const watchingConnections = 4

// run starts the parts and waits for all of them. The admin listener stays until the
// others have finished.
func (s *service) run(ctx context.Context, reloads <-chan Config) error {
	parts, running := errgroup.WithContext(ctx)
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	parts.Go(func() error {
		defer stopServing()
		work, working := errgroup.WithContext(running)
		if s.relay != nil {
			work.Go(func() error { return s.relay.run(working) })
		}
		if s.inbox != nil {
			work.Go(func() error { return s.inbox.run(working) })
		}
		return work.Wait()
	})
	parts.Go(func() error { return s.alerts.Run(running) })
	parts.Go(func() error { return s.takeReloads(running, reloads) })
	parts.Go(func() error { return newHeart(s).run(serving) })
	if s.cfg.Admin.Listen != "" {
		parts.Go(func() error {
			return s.administer(serving)
		})
	}
	return parts.Wait()
}

// administer serves the admin listener.
func (s *service) administer(ctx context.Context) error {
	redactor, err := operations.NewRedactor(s.cfg.Admin.Redact)
	if err != nil {
		return err
	}
	listener, err := admin.Listen(ctx, s.cfg.Admin.Listen)
	if err != nil {
		return err
	}
	s.log.Info().Stringer("address", listener.Addr()).Bool("token", s.cfg.Admin.Token != "").Msg("serving the admin page, the API and the metrics")
	return admin.Run(ctx, listener, admin.Options{
		Token: s.cfg.Admin.Token, ReadToken: s.cfg.Admin.ReadToken, Ready: s.readiness, Metrics: s.registry,
		Desk: s.desk, Redactor: redactor, Version: programVersion(), Now: time.Now, Log: s.log,
	})
}

// takeReloads puts reloaded configurations in force.
func (s *service) takeReloads(ctx context.Context, reloads <-chan Config) error {
	for {
		select {
		case cfg := <-reloads:
			if err := s.reload(cfg); err != nil {
				s.log.Error().Err(err).Msg("reloaded config refused; the old one stays in force")
				continue
			}
			s.log.Info().Int("destinations", len(cfg.Destinations)).Int("partners", len(cfg.Inbox.Partners)).Msg("config reloaded")
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *service) reload(cfg Config) error {
	if s.inbox != nil {
		if err := s.inbox.reload(cfg); err != nil {
			return err
		}
	}
	if s.relay == nil {
		return nil
	}
	destinations, err := cfg.destinations(s.relay.tracer)
	if err != nil {
		return err
	}
	s.relay.metrics.Expect(cfg.destinationNames())
	return s.relay.dispatcher.Reload(destinations)
}
