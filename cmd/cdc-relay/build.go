package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/alert"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/replay"
	"github.com/cdc-relay/cdc-relay/internal/signature"
	"github.com/cdc-relay/cdc-relay/internal/telemetry"
)

// Here the configuration becomes the options of the packages.

// recorders are what a settle transaction writes.
func (c *Config) recorders(letters *deadletter.Store, replays *replay.Store) []checkpoint.Recorder {
	recorders := []checkpoint.Recorder{letters, replays}
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

func (c *Config) checkpoints(pool *pgxpool.Pool) *saved.Store {
	return saved.NewStore(pool, c.Database.Schema, c.Slot.Name)
}

func (c *Config) replays(pool *pgxpool.Pool) *replay.Store {
	return replay.NewStore(replay.Options{
		Database: pool, Schema: c.Database.Schema, Slot: c.Slot.Name, Outbox: c.outboxName(), Columns: c.outboxColumns(),
		DeliveryLog: c.DeliveryLog.Enabled, Checkpoints: c.checkpoints(pool),
	})
}

func (c *Config) deadLetters(pool *pgxpool.Pool) *deadletter.Store {
	var blocking []string
	for _, d := range c.Destinations {
		if d.OnDead == "block" {
			blocking = append(blocking, d.Name)
		}
	}
	return deadletter.NewStore(deadletter.Options{
		Database: pool, Schema: c.Database.Schema, Slot: c.Slot.Name, Blocking: blocking, Now: time.Now,
	})
}

// desk is where operators work, on a database that has the relay's tables.
func (c *Config) desk(pool *pgxpool.Pool) *operations.Desk {
	return operations.NewDesk(operations.Options{
		Pool: pool, Provision: c.provisioning(), Relays: c.relays(), Letters: c.deadLetters(pool), Replays: c.replays(pool), Checkpoints: c.checkpoints(pool),
		Configured: c.destinationNames, NewID: uuid.NewString, Now: time.Now,
		Inbox: inbox.NewManager(pool, c.inboxTables()), TakesIn: c.Inbox.Listen != "",
	})
}

func (c *Config) destinationNames() []string {
	names := make([]string, len(c.Destinations))
	for i, d := range c.Destinations {
		names[i] = d.Name
	}
	return names
}

func (c *Config) destinations(tracer trace.Tracer) ([]dispatcher.Destination, error) {
	destinations := make([]dispatcher.Destination, 0, len(c.Destinations))
	inline, breaker := c.Retry.Inline, c.CircuitBreaker
	for _, d := range c.Destinations {
		sender, err := d.sender(c.Retry, tracer)
		if err != nil {
			return nil, fmt.Errorf("destination %s: %w", d.Name, err)
		}
		destinations = append(destinations, dispatcher.Destination{
			Name: d.Name, Match: d.match(), Sender: sender, Concurrency: d.Concurrency,
			Unordered: d.Ordering == "none", Blocking: d.OnDead == "block", RateLimit: d.RateLimit,
			Breaker: dispatcher.Breaker{
				FailureShare: breaker.FailureShare, MinRounds: breaker.MinRounds, Window: breaker.Window, Pause: breaker.Pause,
			},
			Attempts: inline.Attempts, Schedule: c.Retry.Schedule, ShortWait: inline.MaxWait,
			RoundTime: time.Duration(inline.Attempts) * (d.Timeout + inline.MaxWait),
		})
	}
	return destinations, nil
}

func (d *DestinationConfig) sender(retry RetryConfig, tracer trace.Tracer) (dispatcher.Sender, error) {
	scheme, err := signature.Preset(d.Signature)
	if err != nil {
		return nil, err
	}
	signer, err := signature.NewSigner(scheme, d.Secrets)
	if err != nil {
		return nil, err
	}
	certificates, err := d.TLS.load()
	if err != nil {
		return nil, err
	}
	return dispatcher.NewHTTPSender(dispatcher.HTTPOptions{
		URL: d.URL, ContentType: d.ContentType, UserAgent: "cdc-relay/" + programVersion(), Signer: signer,
		Transport: dispatcher.NewTransport(dispatcher.TransportOptions{
			Connections: d.Concurrency, ConnectTimeout: min(d.Timeout, 5*time.Second),
			AllowPrivateNetworks: d.AllowPrivateNetworks, TLS: certificates,
		}),
		Timeout: d.Timeout, MinWait: retry.Inline.MinWait, MaxWait: retry.Inline.MaxWait,
		MaxRetryAfter: retry.MaxRetryAfter, Now: time.Now, Tracer: tracer,
	}), nil
}

// alertInterval is the least time between two alerts about one destination.
const alertInterval = time.Minute

func (c *Config) notifier(log zerolog.Logger) (*alert.Notifier, error) {
	targets := make([]alert.Target, 0, len(c.Alerts.URLs))
	for i, a := range c.Alerts.URLs {
		kind, err := alert.ParseType(a.Type)
		if err != nil {
			return nil, fmt.Errorf("alerts.urls[%d].type: %w", i, err)
		}
		target := alert.Target{
			URL: a.URL, Type: kind, RoutingKey: a.RoutingKey,
			Transport: dispatcher.NewTransport(dispatcher.TransportOptions{
				Connections: 2, ConnectTimeout: 5 * time.Second, AllowPrivateNetworks: a.AllowPrivateNetworks,
			}),
		}
		if len(a.Secrets) > 0 {
			if target.Signer, err = signature.NewSigner(signature.Standard(), a.Secrets); err != nil {
				return nil, fmt.Errorf("alerts.urls[%d].secrets: %w", i, err)
			}
		}
		targets = append(targets, target)
	}
	return alert.New(alert.Options{Targets: targets, Every: alertInterval, Now: time.Now, Log: log}), nil
}

// tracing is nil where the config has no endpoint for traces.
func (c *Config) tracing(ctx context.Context, log zerolog.Logger) (*sdktrace.TracerProvider, error) {
	if c.Tracing.Endpoint == "" {
		return nil, nil
	}
	// The exporter tells of its failures here alone.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn().Err(err).Msg("traces could not be exported; they are dropped")
	}))
	return telemetry.NewTracing(ctx, telemetry.TracingOptions{
		Endpoint: c.Tracing.Endpoint, Headers: c.Tracing.Headers, Ratio: c.Tracing.SampleRatio,
		Service: c.Tracing.ServiceName, Version: programVersion(),
	})
}
