package checkpoint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Recorder writes its part of a settle batch within the batch's transaction.
// Record may be called again with the same batch when the transaction failed.
type Recorder interface {
	Record(ctx context.Context, tx pgx.Tx, batch []outbox.Outcome) error
}

// Database begins the settle transactions. A *pgxpool.Pool is one.
type Database interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// SettlerOptions are what a Settler is made of.
type SettlerOptions struct {
	Database  Database
	Recorders []Recorder
	Outcomes  <-chan outbox.Outcome
	Settled   func(batch []outbox.Outcome, events []outbox.Position) // called after each commit
	Wrote     func(took time.Duration, outcomes int, err error)      // called after each transaction; may be nil
	BatchSize int                                                    // the most outcomes in a transaction
	MaxDelay  time.Duration                                          // how long the first of a batch waits for company
	Log       zerolog.Logger
}

// Settler records outcomes, a batch in one transaction, and reports the events
// whose every delivery is recorded. Run is its only goroutine.
//
// A batch that can't be written is tried again until it can, or until the
// context ends: meanwhile nothing is reported, so nothing is confirmed, the
// window fills and reading stops.
type Settler struct {
	options SettlerOptions
	// pending holds the events that were partly settled.
	pending map[outbox.Position]progress
	// again says that a recorder has something left to do without a further batch.
	again bool
}

// finisher is a Recorder that wants to know when its batch was committed.
type finisher interface {
	Committed() (again bool)
}

// againInterval is how soon a recorder's leftovers are taken up when nothing else is.
const againInterval = 200 * time.Millisecond

// progress is how far an event with several deliveries has come.
type progress struct {
	left     int
	missing  int  // deliveries that were settled without having been made
	repeated bool // settled before a restart, so that what was made then isn't known
}

// NewSettler returns a Settler that has settled nothing.
func NewSettler(o SettlerOptions) *Settler {
	return &Settler{options: o, pending: make(map[outbox.Position]progress)}
}

// Run settles until the channel of outcomes is closed and everything in it is
// recorded, or until ctx ends.
func (s *Settler) Run(ctx context.Context) error {
	batch := make([]outbox.Outcome, 0, s.options.BatchSize)
	for {
		batch, more := s.collect(ctx, batch[:0])
		if len(batch) > 0 || s.again && ctx.Err() == nil {
			if err := s.settle(ctx, batch); err != nil {
				return err
			}
			clear(batch)
		}
		if !more {
			return ctx.Err()
		}
	}
}

// collect waits for the first outcome and then, for a short while, for more.
// more is false when no further outcome will come.
func (s *Settler) collect(ctx context.Context, batch []outbox.Outcome) (_ []outbox.Outcome, more bool) {
	var leftovers <-chan time.Time
	if s.again {
		timer := time.NewTimer(againInterval)
		defer timer.Stop()
		leftovers = timer.C
	}
	select {
	case <-leftovers:
		return batch, true
	case first, open := <-s.options.Outcomes:
		if !open {
			return batch, false
		}
		batch = append(batch, first)
	case <-ctx.Done():
		return batch, false
	}
	company := time.NewTimer(s.options.MaxDelay)
	defer company.Stop()
	for len(batch) < s.options.BatchSize {
		select {
		case next, open := <-s.options.Outcomes:
			if !open {
				return batch, false
			}
			batch = append(batch, next)
		case <-company.C:
			return batch, true
		case <-ctx.Done():
			return batch, false
		}
	}
	return batch, true
}

// settle writes a batch, however often that takes, and reports it.
func (s *Settler) settle(ctx context.Context, batch []outbox.Outcome) error {
	events := s.complete(batch)
	err := persist(ctx, s.options.Log, "settling failed; nothing is confirmed until it succeeds", func() error {
		began := time.Now()
		err := s.write(ctx, batch)
		if s.options.Wrote != nil {
			s.options.Wrote(time.Since(began), len(batch), err)
		}
		return err
	})
	if err == nil {
		s.options.Settled(batch, events)
	}
	return err
}

// persist does something in the database, however often it must be tried, until
// it is done or ctx ends.
func persist(ctx context.Context, log zerolog.Logger, complaint string, do func() error) error {
	for failures := 0; ; failures++ {
		err := do()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := min(100*time.Millisecond<<min(failures, 10), 10*time.Second)
		wait = wait/2 + rand.N(wait/2)
		log.Error().Err(err).Dur("retry_in", wait).Msg(complaint)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (s *Settler) write(ctx context.Context, batch []outbox.Outcome) error {
	tx, err := s.options.Database.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin settle transaction: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	for _, recorder := range s.options.Recorders {
		if err := recorder.Record(ctx, tx, batch); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit settle transaction: %w", err)
	}
	s.again = false
	for _, recorder := range s.options.Recorders {
		if f, ok := recorder.(finisher); ok && f.Committed() {
			s.again = true
		}
	}
	return nil
}

// complete gives the events that this batch leaves without an open delivery, and
// marks in the batch which outcome completes the deliveries of its event.
func (s *Settler) complete(batch []outbox.Outcome) []outbox.Position {
	events := make([]outbox.Position, 0, len(batch))
	for i := range batch {
		o := &batch[i]
		if o.Event.Replay != "" {
			continue // it was settled before
		}
		position := o.Event.Position
		event, known := s.pending[position]
		if o.LetterID != 0 {
			s.completeParked(o, event, known)
			continue
		}
		if !known {
			event.left = max(o.Deliveries, 1)
		}
		event.left--
		switch o.Fate {
		case outbox.Scheduled, outbox.Dead, outbox.Superseded:
			event.missing++
		case outbox.Repeated:
			event.repeated = true
		}
		if event.left > 0 {
			s.pending[position] = event
			continue
		}
		delete(s.pending, position)
		o.Completes = event.missing == 0
		o.Unsure = event.repeated
		events = append(events, position)
	}
	return events
}

// completeParked: the event of a parked delivery was settled when it was parked.
// Its row may be marked now, unless other deliveries are under way; then the last
// of these has to know that one less is missing.
func (s *Settler) completeParked(o *outbox.Outcome, event progress, pending bool) {
	if o.Fate != outbox.Delivered {
		return
	}
	if pending {
		event.missing--
		s.pending[o.Event.Position] = event
		return
	}
	o.Completes, o.Unsure = true, true
}
