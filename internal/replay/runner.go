package replay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// RunnerOptions are what a Runner is made of.
type RunnerOptions struct {
	Store *Store
	Pool  *pgxpool.Pool // gives the connection that holds the runners' lock
	// Streaming tells whether this relay is the one that streams: that one runs jobs.
	Streaming func() bool
	Resends   chan<- outbox.Resend
	// Route gives the destinations that want an event, for when no log knows them.
	Route func(*outbox.Event) []string
	// Read reads a held slot up to an LSN, closes the channel, and returns.
	Read func(ctx context.Context, slot string, until outbox.LSN, events chan<- *outbox.Event) error
	Log  zerolog.Logger
}

// Runner works on jobs, one after the other.
type Runner struct {
	o RunnerOptions

	mu      sync.Mutex
	settled []outbox.Outcome
	notify  chan struct{} // has room for one: something was settled
}

// NewRunner returns a Runner.
func NewRunner(o RunnerOptions) *Runner { return &Runner{o: o, notify: make(chan struct{}, 1)} }

const (
	// windowItems and windowBytes bound what a job has in flight, parkedItems what
	// of it may wait in the dead letters: a receiver that is down gets no more.
	windowItems = 512
	windowBytes = 8 << 20
	parkedItems = 1000

	lookEvery = time.Second // for jobs, and for a change of the one under way
)

// Settled takes note of outcomes that are recorded. It never blocks.
func (r *Runner) Settled(batch []outbox.Outcome) {
	r.mu.Lock()
	found := false
	for _, o := range batch {
		if o.Event.Replay != "" {
			r.settled, found = append(r.settled, o), true
		}
	}
	r.mu.Unlock()
	if found {
		select {
		case r.notify <- struct{}{}:
		default:
		}
	}
}

// Run works until ctx ends.
func (r *Runner) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if r.o.Streaming() {
			if err := r.work(ctx); err != nil && ctx.Err() == nil {
				r.o.Log.Error().Err(err).Msg("replays can't go on at present; trying again")
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// runnerLock keeps two relays from working on one job, should each think that it is
// the one that streams.
const runnerLock = 0x6364632e // "cdc."

func (r *Runner) work(ctx context.Context) error {
	job, err := r.o.Store.next(ctx)
	if err != nil || job == nil {
		return err
	}
	conn, err := r.o.Pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("lock replays: %w", err)
	}
	defer conn.Release()
	var locked bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(runnerLock)).Scan(&locked); err != nil {
		return fmt.Errorf("lock replays: %w", err)
	}
	if !locked {
		return nil
	}
	defer func() {
		if _, err := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, int64(runnerLock)); err != nil {
			conn.Conn().Close(context.WithoutCancel(ctx)) // which unlocks it too
		}
	}()
	for job != nil && err == nil {
		if err = r.perform(ctx, job); err != nil {
			break
		}
		job, err = r.o.Store.next(ctx)
	}
	return err
}

// perform works on a job until it is over or ctx ends.
func (r *Runner) perform(ctx context.Context, job *Job) error {
	log := r.o.Log.With().Str("replay", job.ID).Logger()
	log.Info().Str("source", string(job.Source)).Str("from", job.FromLSN).Str("until", job.UntilLSN).Int64("total", job.Total).
		Bool("resumed", job.StartedAt != nil).Msg("replay goes on")
	source, err := r.open(ctx, job)
	if err != nil {
		return err
	}
	run := newRun(r, job)
	err = run.drive(ctx, source)
	if closing := source.close(); err == nil {
		err = closing
	}
	switch {
	case errors.Is(err, errOver):
		log.Warn().Msg("replay cancelled")
		return nil
	case err != nil && ctx.Err() == nil && job.Source == FromWAL && run.walGone(ctx):
		log.Error().Err(err).Msg("replay failed")
		return r.o.Store.fail(ctx, job.ID, "the checkpoint's held WAL is gone: "+err.Error())
	case err != nil:
		return fmt.Errorf("replay %s: %w", job.ID, err)
	}
	if err := r.o.Store.finish(ctx, job.ID); err != nil {
		return err
	}
	log.Info().Msg("replay done")
	return nil
}

func (r *Runner) open(ctx context.Context, job *Job) (source, error) {
	resumed := job.StartedAt != nil
	if err := r.o.Store.start(ctx, job.ID); err != nil {
		return nil, err
	}
	if job.Source == FromWAL {
		return openWAL(ctx, r.o.Store, job, r.o.Route, r.o.Read)
	}
	return &tableSource{store: r.o.Store, job: job, at: job.cursor, resume: resumed}, nil
}

// take gives what was settled since the last time.
func (r *Runner) take() []outbox.Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	settled := r.settled
	r.settled = nil
	return settled
}

// errOver ends a job that somebody has cancelled.
var errOver = errors.New("the replay is not running any more")

// run is one job under way. It belongs to the goroutine of Runner.Run.
type run struct {
	runner  *Runner
	job     *Job
	limiter *rate.Limiter

	order    []item // in flight or done, in order; the cursor moves over what is done at the front
	done     map[cursor]bool
	inFlight int
	bytes    int
	at       cursor
	skipped  int64 // not yet counted
	parked   int64
	looked   time.Time
}

func newRun(r *Runner, job *Job) *run {
	limit := rate.Inf
	if job.Rate > 0 {
		limit = rate.Limit(job.Rate)
	}
	r.take() // what an earlier run of a job left
	return &run{
		runner: r, job: job, limiter: rate.NewLimiter(limit, max(1, int(job.Rate/20))), done: make(map[cursor]bool),
		at: job.cursor, parked: job.Parked, looked: time.Now(),
	}
}

// drive hands on all items and waits until each has an outcome.
func (r *run) drive(ctx context.Context, s source) error {
	for {
		items, err := s.next(ctx)
		if err != nil {
			return err
		}
		if len(items) == 0 {
			break
		}
		for _, i := range items {
			if err := r.hand(ctx, i); err != nil {
				return err
			}
		}
	}
	for r.inFlight > 0 {
		if err := r.await(ctx); err != nil {
			return err
		}
	}
	return r.look(ctx)
}

// hand hands on one item as soon as there is room and the rate lets it.
func (r *run) hand(ctx context.Context, i item) error {
	if i.event == nil {
		if i.gone {
			r.skipped++
		}
		r.order, r.done[i.at] = append(r.order, i), true
		r.advance()
		return r.lookSoon(ctx)
	}
	for r.inFlight >= windowItems || r.bytes >= windowBytes || r.parked >= parkedItems {
		if err := r.await(ctx); err != nil {
			return err
		}
	}
	if err := r.limiter.Wait(ctx); err != nil {
		return err
	}
	select {
	case r.runner.o.Resends <- outbox.Resend{Event: i.event, Destination: i.destination}:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.order = append(r.order, i)
	r.inFlight++
	r.bytes += i.event.Size()
	r.absorb()
	return r.lookSoon(ctx)
}

// await waits for an outcome, or for the next look at the job.
func (r *run) await(ctx context.Context) error {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case <-r.runner.notify:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	r.absorb()
	return r.lookSoon(ctx)
}

func (r *run) absorb() {
	for _, o := range r.runner.take() {
		if o.Event.Replay != r.job.ID {
			continue
		}
		at := cursor{o.Event.Position.Commit.String(), int64(o.Event.Position.Index), o.Destination}
		if r.done[at] {
			continue
		}
		r.done[at] = true
		r.inFlight--
		r.bytes -= o.Event.Size()
	}
	r.advance()
}

// advance moves the cursor over what is done.
func (r *run) advance() {
	n := 0
	for n < len(r.order) && r.done[r.order[n].at] {
		r.at = r.order[n].at
		delete(r.done, r.at)
		n++
	}
	r.order = r.order[n:]
}

func (r *run) lookSoon(ctx context.Context) error {
	if time.Since(r.looked) < lookEvery {
		return nil
	}
	return r.look(ctx)
}

// look saves the cursor and finds out whether the job is still wanted.
func (r *run) look(ctx context.Context) error {
	r.looked = time.Now()
	parked, running, err := r.runner.o.Store.save(ctx, r.job.ID, r.at, r.skipped)
	if err != nil {
		return err
	}
	r.skipped, r.parked = 0, parked
	if !running {
		return errOver
	}
	return nil
}

// walGone tells whether the slot that is read from is of no use any more.
func (r *run) walGone(ctx context.Context) bool {
	var usable bool
	err := r.runner.o.Store.o.Database.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND wal_status IS DISTINCT FROM 'lost')`, r.job.HeldSlot).Scan(&usable)
	return err == nil && !usable
}
