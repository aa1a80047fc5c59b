package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/internal/alert"
	"github.com/cdc-relay/cdc-relay/internal/backlog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/replay"
	"github.com/cdc-relay/cdc-relay/internal/replication"
	"github.com/cdc-relay/cdc-relay/internal/retention"
	"github.com/cdc-relay/cdc-relay/internal/telemetry"
)

// relay is the straight line of an event's walk: the stream's events go past the
// check of what was settled before to the dispatcher, its outcomes to the
// settler, and the settled positions back to the stream.
type relay struct {
	cfg     Config
	pool    *pgxpool.Pool
	log     zerolog.Logger
	letters *deadletter.Store
	backlog *backlog.Backlog

	stream      *replication.Stream
	resume      *checkpoint.Resume
	dispatcher  *dispatcher.Dispatcher
	settler     *checkpoint.Settler
	alerts      *alert.Notifier
	keeper      *retention.Keeper
	metrics     *telemetry.Relay
	tracer      trace.Tracer // nil without tracing
	saver       *saved.Keeper
	replays     *replay.Runner
	desk        *operations.Desk
	watching    *pgxpool.Pool // for what people and metrics look at
	gauges      *telemetry.Database
	parked      atomic.Int64       // as last counted
	unprocessed atomic.Int64       // as last counted; -1 for not
	events      chan *outbox.Event // from resume to dispatcher

	serverLeaves chan struct{} // it told an ordinary connection that it is shutting down
}

// newRelay creates what is missing in Postgres, refuses to start on what is wrong, and
// returns a relay that is ready to run.
func newRelay(ctx context.Context, s *service) (*relay, error) {
	r := &relay{cfg: s.cfg, log: s.log, alerts: s.alerts, desk: s.desk, watching: s.watching, tracer: s.tracer(), events: make(chan *outbox.Event), serverLeaves: make(chan struct{}, 1)}
	var err error
	r.pool, err = s.cfg.watchedPool(ctx, 5, func(err *pgconn.PgError) {
		if leaves(err) {
			select {
			case r.serverLeaves <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return nil, err
	}
	r.letters, r.backlog = s.cfg.deadLetters(r.pool), s.cfg.backlog(r.pool)
	err = setUp(ctx, s.cfg, r.backlog, s.log)
	if err == nil {
		err = r.assemble()
	}
	if err != nil {
		r.pool.Close()
		return nil, err
	}
	r.metrics, r.gauges = telemetry.NewRelay(s.registry, r.readings()), telemetry.NewDatabase(s.registry)
	r.metrics.Expect(s.cfg.destinationNames())
	return r, nil
}

func (r *relay) assemble() error {
	cfg, pool, log := r.cfg, r.pool, r.log
	replicationConfig, err := cfg.replication()
	if err != nil {
		return err
	}
	destinations, err := cfg.destinations(r.tracer)
	if err != nil {
		return err
	}
	// Room for the whole window: whatever the stream may hand on fits in.
	read := make(chan *outbox.Event, cfg.Window.Events)
	resends := make(chan outbox.Resend)
	outcomes := make(chan outbox.Outcome, cfg.Settle.BatchSize)

	r.stream = replication.NewStream(replication.Options{
		Config: replicationConfig, Slot: cfg.Slot.Name, Publication: cfg.Slot.Publication,
		Table: cfg.decoderTable(), Window: replication.Window{Events: cfg.Window.Events, Bytes: cfg.Window.Bytes},
		Events: read, Outbox: r.checkOutbox, Unpublished: r.backlog.Unpublished, Backlog: r.backlog, Recover: r.recovery(),
		OnStart: r.streamStarts, Log: log,
	})
	r.resume = checkpoint.NewResume(checkpoint.ResumeOptions{
		Database: pool, Schema: cfg.Database.Schema, Slot: cfg.Slot.Name, DeliveryLog: cfg.DeliveryLog.Enabled,
		In: read, Out: r.events, Batch: 500, Log: log,
	})
	options := dispatcher.Options{
		Destinations: destinations, Outcomes: outcomes, Resends: resends, WindowEvents: cfg.Window.Events, WindowBytes: cfg.Window.Bytes,
		Now: time.Now, Tracer: r.tracer, Log: log,
	}
	if cfg.Parking.Enabled {
		options.DeadLetters = r.letters
	}
	if r.dispatcher, err = dispatcher.New(options); err != nil {
		return err
	}
	jobs := cfg.replays(pool)
	r.replays = replay.NewRunner(replay.RunnerOptions{
		Store: jobs, Pool: pool, Streaming: r.streaming, Resends: resends, Route: r.dispatcher.Route, Read: r.rereadFrom(replicationConfig), Log: log,
	})
	r.settler = checkpoint.NewSettler(checkpoint.SettlerOptions{
		Database: pool, Recorders: cfg.recorders(r.letters, jobs), Outcomes: outcomes, Settled: r.settled,
		Wrote:     func(took time.Duration, outcomes int, err error) { r.metrics.Wrote(took, outcomes, err) },
		BatchSize: cfg.Settle.BatchSize, MaxDelay: cfg.Settle.MaxDelay, Log: log,
	})
	r.keeper = cfg.keeper(pool, log)
	r.saver = saved.NewKeeper(saved.KeeperOptions{
		Store: cfg.checkpoints(pool), Watermark: func() (outbox.LSN, bool) { return r.stream.Status().Confirmed, r.streaming() },
		Every: cfg.Checkpoints.Every, Retention: cfg.Checkpoints.Retention,
		MaxBytes: cfg.Checkpoints.Hold.MaxBytes, MaxAge: cfg.Checkpoints.Hold.MaxAge, Released: r.released, Log: log,
	})
	return nil
}

// settled tells everybody what a settle batch has recorded.
func (r *relay) settled(batch []outbox.Outcome, events []outbox.Position) {
	r.metrics.Settled(batch)
	r.dispatcher.Settled(batch)
	r.replays.Settled(batch)
	r.stream.Settle(events)
	for _, o := range batch {
		if o.Fate == outbox.Dead {
			r.alerts.Tell(alert.Notice{
				Subject: o.Destination, EventID: o.Event.ID, EventType: o.Event.EventType, Reason: o.Reason, Status: o.Status,
			})
		}
	}
}

// leaves tells whether the server says that it is shutting down.
func leaves(err *pgconn.PgError) bool {
	switch err.Code {
	case "57P01", "57P02", "57P03": // admin shutdown, crash shutdown, cannot connect now
		return true
	}
	return false
}

// letGo lets a server that is shutting down go. It ends the ordinary connections
// at once, but waits for its replication clients to confirm everything, which
// can't be done without the others: not by the settler, nor by whoever else has to
// ask or write something before an event is settled. So the first of them that is
// sent away ends the stream's connection too.
func (r *relay) letGo(ctx context.Context) error {
	for {
		select {
		case <-r.serverLeaves:
			r.stream.Yield("the server is shutting down")
		case <-ctx.Done():
			return nil
		}
	}
}

// streamStarts runs when the server has begun to stream and nothing has been read
// of it yet: what stands in the database from before must be known by then.
func (r *relay) streamStarts(ctx context.Context) error {
	var text string
	if err := r.pool.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&text); err != nil {
		return fmt.Errorf("read the server's position: %w", err)
	}
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return fmt.Errorf("read the server's position: %w", err)
	}
	r.resume.CheckUntil(max(lsn, r.backlog.Until()))
	return r.dispatcher.LoadParked(ctx)
}

// run starts the parts and waits for all of them. When ctx ends, reading stops
// and the rest drains: the stream closes the events, the dispatcher finishes and
// closes the outcomes, the settler settles the last, the stream confirms it.
func (r *relay) run(ctx context.Context) error {
	drain, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	parts, failed := errgroup.WithContext(drain)
	intake, stopIntake := context.WithCancel(failed)
	defer stopIntake()
	stopWatching := context.AfterFunc(ctx, func() {
		r.log.Info().Dur("timeout", r.cfg.ShutdownTimeout).Msg("stopping: reading no more, finishing what is in flight")
		stopIntake()
	})
	defer stopWatching()

	// Once the settler has ended nothing more will be settled, so there is nothing
	// more to confirm: what was never attempted is left to the next start.
	settling, settlerEnded := context.WithCancel(failed)
	defer settlerEnded()
	parts.Go(func() error { return r.stream.Run(intake, settling) })
	parts.Go(func() error { return r.resume.Run(failed) })
	parts.Go(func() error { return r.dispatcher.Run(failed, r.events) })
	parts.Go(func() error {
		defer settlerEnded()
		return r.settler.Run(failed)
	})
	parts.Go(func() error { return r.letGo(settling) })
	parts.Go(func() error { return r.watchParked(intake) })
	parts.Go(func() error { return r.watchDatabase(intake, r.desk, r.gauges) })
	parts.Go(func() error { return r.watchBacklog(intake) })
	parts.Go(func() error { return r.watchOutbox(intake) })
	parts.Go(func() error { return r.keeper.Run(intake) })
	parts.Go(func() error { return r.saver.Run(intake) })
	parts.Go(func() error { return r.replays.Run(intake) })
	parts.Go(func() error {
		r.boundShutdown(intake, failed, abort)
		return nil
	})
	err := parts.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// boundShutdown breaks off what is still in flight when the shutdown time-out is over.
func (r *relay) boundShutdown(intake, failed context.Context, abort context.CancelFunc) {
	<-intake.Done()
	timer := time.NewTimer(r.cfg.ShutdownTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
		r.log.Warn().Msg("shutdown_timeout is over: what is still in flight is sent again at the next start")
		abort()
	case <-r.stream.Done():
	case <-failed.Done():
	}
}

// watchParked stops the reading while too much is parked: the database, not the
// relay, would otherwise run full during a long outage.
func (r *relay) watchParked(ctx context.Context) error {
	if !r.cfg.Parking.Enabled {
		return nil
	}
	ticker := time.NewTicker(5 * time.Second)
	defer ticker.Stop()
	held := false
	for {
		if parked, err := r.letters.Count(ctx); err == nil {
			r.parked.Store(int64(parked))
			full := parked >= r.cfg.Parking.MaxRows
			if full != held {
				r.log.Error().Int("parked", parked).Int("max_rows", r.cfg.Parking.MaxRows).Bool("reading_stopped", full).
					Msg("parked events have reached parking.max_rows, or fallen below it")
			}
			held = full
			r.stream.Hold(full)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
