package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/replication"
	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// serve runs the relay until ctx ends, and then until what is in flight is
// settled and confirmed or the shutdown time-out is over. It owns every
// goroutine of the relay: a part that ends with an error ends the others.
func serve(ctx context.Context, cfg Config, log zerolog.Logger) error {
	if err := setUp(ctx, cfg, log); err != nil {
		return err
	}
	pool, err := cfg.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	r, err := assemble(cfg, pool, log)
	if err != nil {
		return err
	}
	return r.run(ctx, cfg.ShutdownTimeout, log)
}

// setUp creates what is missing in Postgres and refuses to start on what is wrong.
func setUp(ctx context.Context, cfg Config, log zerolog.Logger) error {
	conn, err := cfg.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := provision.CheckServer(ctx, conn); err != nil {
		return err
	}
	return provision.Init(ctx, conn, cfg.provisioning(), func(s provision.Step) {
		log.Info().Str("object", s.Object).Msg(s.Done)
	})
}

// relay is the straight line of an event's walk: the stream's events go to the
// dispatcher, its outcomes to the settler, and the settled positions back to the
// stream.
type relay struct {
	stream     *replication.Stream
	dispatcher *dispatcher.Dispatcher
	settler    *checkpoint.Settler
	events     chan *outbox.Event
}

func assemble(cfg Config, pool *pgxpool.Pool, log zerolog.Logger) (*relay, error) {
	replicationConfig, err := cfg.replication()
	if err != nil {
		return nil, err
	}
	// Room for the whole window: whatever the stream may hand on fits in.
	events := make(chan *outbox.Event, cfg.Window.Events)
	outcomes := make(chan outbox.Outcome, cfg.Settle.BatchSize)

	stream := replication.NewStream(replication.Options{
		Config: replicationConfig, Slot: cfg.Slot.Name, Publication: cfg.Slot.Publication,
		Table: cfg.decoderTable(), Window: replication.Window{Events: cfg.Window.Events, Bytes: cfg.Window.Bytes},
		Events: events, Log: log,
	})
	destinations, err := cfg.destinations()
	if err != nil {
		return nil, err
	}
	dispatch, err := dispatcher.New(dispatcher.Options{Destinations: destinations, Outcomes: outcomes, Now: time.Now, Log: log})
	if err != nil {
		return nil, err
	}
	settler := checkpoint.NewSettler(checkpoint.SettlerOptions{
		Database: pool, Recorders: cfg.recorders(), Outcomes: outcomes,
		Settled:   func(_ []outbox.Outcome, events []outbox.Position) { stream.Settle(events) },
		BatchSize: cfg.Settle.BatchSize, MaxDelay: cfg.Settle.MaxDelay, Log: log,
	})
	return &relay{stream: stream, dispatcher: dispatch, settler: settler, events: events}, nil
}

// recorders are what a settle transaction writes.
func (c *Config) recorders() []checkpoint.Recorder {
	recorders := []checkpoint.Recorder{deadletter.NewStore(c.Database.Schema)}
	if c.DeliveryLog.Enabled {
		recorders = append(recorders, checkpoint.NewDeliveryLog(c.Database.Schema))
	}
	if c.Outbox.MarkProcessed {
		name := c.outboxName()
		recorders = append(recorders, checkpoint.NewProcessedColumn(checkpoint.ProcessedOptions{
			Table:    pgx.Identifier{name.Schema, name.Table},
			IDColumn: c.Outbox.Columns.ID, Column: c.Outbox.Columns.ProcessedAt,
			DeadLetters: pgx.Identifier{c.Database.Schema, "dead_letters"},
		}))
	}
	return recorders
}

func (c *Config) destinations() ([]dispatcher.Destination, error) {
	destinations := make([]dispatcher.Destination, 0, len(c.Destinations))
	for _, d := range c.Destinations {
		sender, err := d.sender(c.Retry)
		if err != nil {
			return nil, fmt.Errorf("destination %s: %w", d.Name, err)
		}
		destinations = append(destinations, dispatcher.Destination{
			Name: d.Name, Match: d.match(), Sender: sender, Concurrency: d.Concurrency,
			Unordered: d.Ordering == "none", Attempts: c.Retry.Inline.Attempts,
		})
	}
	return destinations, nil
}

func (d *DestinationConfig) sender(retry RetryConfig) (dispatcher.Sender, error) {
	scheme, err := signature.Preset(d.Signature)
	if err != nil {
		return nil, err
	}
	signer, err := signature.NewSigner(scheme, d.Secrets)
	if err != nil {
		return nil, err
	}
	return dispatcher.NewHTTPSender(dispatcher.HTTPOptions{
		URL: d.URL, ContentType: d.ContentType, UserAgent: "cdc-relay/" + programVersion(), Signer: signer,
		Transport: dispatcher.NewTransport(dispatcher.TransportOptions{
			Connections: d.Concurrency, ConnectTimeout: min(d.Timeout, 5*time.Second),
			AllowPrivateNetworks: d.AllowPrivateNetworks,
		}),
		Timeout: d.Timeout, MinWait: retry.Inline.MinWait, MaxWait: retry.Inline.MaxWait,
		MaxRetryAfter: retry.MaxRetryAfter, Now: time.Now,
	}), nil
}

// run starts the parts and waits for all of them. When ctx ends, reading stops
// and the rest drains: the stream closes the events, the dispatcher finishes and
// closes the outcomes, the settler settles the last, the stream confirms it.
func (r *relay) run(ctx context.Context, shutdown time.Duration, log zerolog.Logger) error {
	drain, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	parts, failed := errgroup.WithContext(drain)
	intake, stopIntake := context.WithCancel(failed)
	defer stopIntake()
	stopWatching := context.AfterFunc(ctx, func() {
		log.Info().Dur("timeout", shutdown).Msg("stopping: reading no more, finishing what is in flight")
		stopIntake()
	})
	defer stopWatching()

	// Once the settler has ended nothing more will be settled, so there is nothing
	// more to confirm: what was never attempted is left to the next start.
	settling, settlerEnded := context.WithCancel(failed)
	defer settlerEnded()
	parts.Go(func() error { return r.stream.Run(intake, settling) })
	parts.Go(func() error { return r.dispatcher.Run(failed, r.events) })
	parts.Go(func() error {
		defer settlerEnded()
		return r.settler.Run(failed)
	})
	parts.Go(func() error {
		<-intake.Done()
		timer := time.NewTimer(shutdown)
		defer timer.Stop()
		select {
		case <-timer.C:
			log.Warn().Msg("shutdown_timeout is over: what is still in flight is sent again at the next start")
			abort()
		case <-r.stream.Done():
		case <-failed.Done():
		}
		return nil
	})
	err := parts.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
