// Package replication reads the outbox's inserts from a logical replication slot
// and confirms to the slot what is settled.
//
//	Stream.receive ─► Decoder.Decode ─► Tracker.Begin/Track/Commit ─► Stream.emit ─► channel of Event
//	Stream.Settle(positions) ─► Tracker.Settle ─► Watermark ─► Stream.confirm
//
// One goroutine, that of Run, owns the connection: it alone reads and writes it.
// It reads with short deadlines, so that it sends the standby status on time
// whether or not there is anything to read, and also while the window is full
// and it must not read.
//
// Stream survives a lost connection: it connects again with backoff, and what
// the server then repeats is recognised by its Position.
//
// https://www.postgresql.org/docs/current/protocol-replication.html
package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Options are what a Stream is made of.
type Options struct {
	Config      *pgconn.Config // of a direct connection, not through a pooler
	Slot        string
	Publication string
	Table       decoder.Table
	Window      Window
	Events      chan<- *outbox.Event // closed by Run when it reads no more
	// Outbox is asked on each connection, before anything else, for the table's object
	// identifier. Its error ends the connection; ErrSlotLost in it tells that the slot
	// is of no use.
	Outbox func(ctx context.Context) (oid uint32, err error)
	// Unpublished is told that the publication did not exist where the slot stands.
	Unpublished func(ctx context.Context) error
	// Backlog is what comes before the stream's first event. Open is called on each
	// connection before OnStart.
	Backlog Backlog
	// Recover makes a lost slot anew; nil ends the stream instead. Nothing is in
	// flight when it is called.
	Recover func(ctx context.Context, reason error) error
	// OnStart is called on each connection when streaming has begun, before the
	// first message is read. Its error ends the connection, not the stream.
	OnStart func(ctx context.Context) error
	Log     zerolog.Logger
}

// Backlog gives events that a new slot's stream doesn't hold. They count as one
// transaction, before all of the stream's.
type Backlog interface {
	// Open makes it be read from its start. It has nothing to give once it was
	// finished.
	Open(ctx context.Context) error
	// Next gives the next events, none at the end.
	Next(ctx context.Context, limit, bytes int) ([]*outbox.Event, error)
	Position() outbox.LSN
}

// Window bounds what is in flight: handed on and not settled. Reading stops
// while either bound is reached.
type Window struct {
	Events int
	Bytes  int
}

// Stream reads one slot. Run is called once; Settle and Status may be called
// from any goroutine meanwhile.
type Stream struct {
	options    Options
	tracker    *checkpoint.Tracker
	paused     bool       // the window was full at the last look
	ahead      bool       // the backlog was handed on whole
	slotAt     outbox.LSN // where the present slot's backlog stands: another slot, another place
	stuckIn    outbox.LSN // the transaction within which the last connection ended
	stuckTimes int        // so many times in a row

	system string // the server's identity and timeline at the last connection
	held   atomic.Bool
	yield  atomic.Pointer[string] // why the present connection shall end

	mu      sync.Mutex
	settled []outbox.Position // reported by Settle, not yet seen by Run
	status  Status
	notify  chan struct{} // has room for one: something was settled
	done    chan struct{} // closed when Run returns
}

// Status is what a Stream says of itself.
type Status struct {
	State     State
	Reason    string     // why it doesn't stream
	Confirmed outbox.LSN // last confirmed to the server
	ServerEnd outbox.LSN // how far the server said it was
	InFlight  int        // events
	Bytes     int        // of those events
	Oldest    time.Time  // when the first of what isn't settled was committed; zero for nothing
	Paused    bool       // the window is full
	Sessions  int        // how often it began to stream
}

// State is what a Stream is doing.
type State string

// The states of a Stream.
const (
	Connecting State = "connecting"
	Streaming  State = "streaming"
	Standby    State = "standby" // another relay streams the slot
	Draining   State = "draining"
	Recovering State = "recovering" // a lost slot is made anew
	Stopped    State = "stopped"
)

// NewStream returns a Stream that is not connected.
func NewStream(o Options) *Stream {
	return &Stream{
		options: o, tracker: checkpoint.NewTracker(),
		notify: make(chan struct{}, 1), done: make(chan struct{}), status: Status{State: Connecting},
	}
}

// Settle takes note that events are settled. It never blocks.
func (s *Stream) Settle(positions []outbox.Position) {
	s.mu.Lock()
	s.settled = append(s.settled, positions...)
	s.mu.Unlock()
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// Done is closed when Run has returned.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Status tells what the stream is doing.
func (s *Stream) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Stream) update(change func(*Status)) {
	s.mu.Lock()
	change(&s.status)
	s.mu.Unlock()
}

// Run streams until intake ends, then waits, with the connection kept alive,
// until what is in flight is settled and confirmed, or until drain ends.
//
// A lost connection is made again. Run returns an error only for what
// reconnecting can't mend: the slot or the publication gone, a column missing,
// bytes that break the protocol.
func (s *Stream) Run(intake, drain context.Context) error {
	defer close(s.done)
	defer s.update(func(st *Status) { st.State = Stopped })
	closeEvents := sync.OnceFunc(func() { close(s.options.Events) })
	defer closeEvents()
	for failures := 0; ; {
		session := &session{stream: s}
		err := session.run(intake, drain, closeEvents)
		s.tellStuck(session)
		s.tracker.Disconnect()
		if session.streamed {
			failures = 0
		}
		if intake.Err() != nil {
			return s.finish(err)
		}
		if unpublished(err) {
			err = errors.Join(err, s.options.Unpublished(intake))
		}
		if err = s.judge(err); err != nil {
			err = s.recover(intake, err)
		}
		if err != nil {
			return err
		}
		wait := backoff(failures)
		if s.Status().State == Standby {
			wait = standbyInterval
		}
		failures++
		s.sleep(intake, wait)
	}
}

// tellStuck says so when connections keep ending within one and the same
// transaction: trying again alone will hardly help then.
func (s *Stream) tellStuck(ended *session) {
	if ended.transaction == 0 && !ended.committed {
		return // it didn't come so far
	}
	if ended.committed || ended.transaction != s.stuckIn {
		s.stuckIn, s.stuckTimes = ended.transaction, 1
		return
	}
	if s.stuckTimes++; s.stuckTimes < 3 {
		return
	}
	s.options.Log.Error().Str("slot", s.options.Slot).Stringer("lsn", ended.transaction).Int("times", s.stuckTimes).
		Msg("the connection ends within the same transaction again and again; raise wal_sender_timeout, and look in the server's log for why it ends")
}

// standbyInterval is how often a standby tries to take over.
const standbyInterval = time.Second

// recover makes a lost slot anew, where that is wanted. It gives the error if not.
func (s *Stream) recover(ctx context.Context, lost error) error {
	if !errors.Is(lost, ErrSlotLost) || s.options.Recover == nil {
		return lost
	}
	s.update(func(st *Status) { st.State, st.Reason = Recovering, lost.Error() })
	// What is in flight still counts, once it is settled.
	if !s.settleDown(ctx) {
		return nil
	}
	s.startOver()
	if err := s.options.Recover(ctx, lost); err != nil {
		s.options.Log.Error().Err(err).Msg("the lost slot could not be made anew; trying again")
	}
	return nil
}

// sameSlot looks whether the slot is still the one of the last connection. While
// this relay stood by, another may have made it anew, with a backlog that this one
// has not handed on: then everything is looked at anew. False when ctx ended first.
func (s *Stream) sameSlot(ctx context.Context) bool {
	at := s.options.Backlog.Position()
	if s.slotAt != 0 && at != s.slotAt {
		s.options.Log.Warn().Str("slot", s.options.Slot).Msg("the slot was made anew by another relay; settling what is in flight before going on")
		if !s.settleDown(ctx) {
			return false
		}
		s.startOver()
	}
	s.slotAt = at
	return true
}

// startOver forgets positions that mean nothing any more.
func (s *Stream) startOver() { s.tracker, s.ahead = checkpoint.NewTracker(), false }

// settleDown waits until nothing is in flight; false when ctx ended first.
func (s *Stream) settleDown(ctx context.Context) bool {
	for s.absorb(); !s.drained(); s.absorb() {
		s.await(ctx)
		if ctx.Err() != nil {
			return false
		}
	}
	return true
}

// finish ends Run after the intake: a connection lost now costs repeats at the
// next start, so it is told, but it is no failure.
func (s *Stream) finish(err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		s.options.Log.Warn().Err(err).Msg("replication ended before everything was confirmed; the rest is sent again at the next start")
	}
	return nil
}

// judge logs why the session ended and returns the error if trying again is in vain.
func (s *Stream) judge(err error) error {
	var missing *decoder.MissingColumnError
	var broken *protocolError
	switch {
	case errors.As(err, &missing), errors.As(err, &broken), errors.Is(err, ErrSlotLost):
		return err
	case isCode(err, codeUndefinedObject) && strings.Contains(err.Error(), "slot"), isCode(err, codeNotInPrerequisiteState):
		return fmt.Errorf("%w: %w", ErrSlotLost, err)
	case isCode(err, codeObjectInUse):
		s.update(func(st *Status) { st.State, st.Reason = Standby, "another relay streams the slot" })
		s.options.Log.Info().Str("slot", s.options.Slot).Msg("another relay streams the slot; standing by")
	default:
		s.update(func(st *Status) { st.State, st.Reason = Connecting, err.Error() })
		s.options.Log.Error().Err(err).Str("slot", s.options.Slot).Msg("replication connection lost; connecting again")
	}
	return nil
}

// ErrSlotLost says that the slot is gone, or that the server has given up what
// it needs.
var ErrSlotLost = errors.New("replication slot lost")

// SQLSTATE codes of START_REPLICATION.
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	codeUndefinedObject        = "42704"
	codeNotInPrerequisiteState = "55000"
	codeObjectInUse            = "55006"
)

// unpublished tells whether the server didn't find the publication where the slot
// stands. Until version 17 that ends the stream; from 18 on the server warns, and
// goes on without the rows.
func unpublished(err error) bool {
	return errors.Is(err, errSkipped) || isCode(err, codeUndefinedObject) && strings.Contains(err.Error(), "publication")
}

var errSkipped = errors.New("the server left out rows, for want of the publication")

func isCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// backoff doubles from 100 ms to 10 s, spread over its upper half. A standby
// asks often enough to take over within seconds.
func backoff(failures int) time.Duration {
	wait := min(100*time.Millisecond<<min(failures, 10), 5*time.Second)
	return wait/2 + rand.N(wait/2)
}

func (s *Stream) sleep(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// await waits for a settlement, or for the next tick.
func (s *Stream) await(ctx context.Context) {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	select {
	case <-s.notify:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (s *Stream) setPaused(paused bool) {
	if s.paused != paused {
		s.paused = paused
		s.update(func(st *Status) { st.Paused = paused })
	}
}

// absorb tells the tracker what was settled since the last time.
func (s *Stream) absorb() {
	s.mu.Lock()
	settled := s.settled
	s.settled = nil
	s.mu.Unlock()
	for _, position := range settled {
		s.tracker.Settle(position)
	}
}

// Hold stops the reading, or lets it go on. The connection stays.
func (s *Stream) Hold(held bool) { s.held.Store(held) }

// Yield ends the present connection, if there is one, for the reason given; Run
// makes it again.
func (s *Stream) Yield(reason string) { s.yield.Store(&reason) }

// full tells whether nothing may be handed on at present.
func (s *Stream) full() bool {
	if s.held.Load() {
		return true
	}
	events, bytes := s.tracker.InFlight()
	return events >= s.options.Window.Events || bytes >= s.options.Window.Bytes
}

func (s *Stream) drained() bool {
	events, _ := s.tracker.InFlight()
	return events == 0
}
