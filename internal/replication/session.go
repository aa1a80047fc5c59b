package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// tick is how long a read may block: the delay, at most, between an event's
// settling, or the end of a context, and the stream's taking notice.
const tick = 100 * time.Millisecond

// protocolError is a message that doesn't follow the protocol. Nothing behind it
// can be trusted, so the stream ends.
type protocolError struct{ err error }

func (e *protocolError) Error() string { return "replication protocol: " + e.err.Error() }
func (e *protocolError) Unwrap() error { return e.err }

// session is one connection's life. It belongs to the goroutine of Stream.Run.
type session struct {
	stream   *Stream
	conn     *pgconn.PgConn
	decoder  *decoder.Decoder
	streamed bool // START_REPLICATION succeeded

	interval   time.Duration // between status updates that nothing else asks for
	walTimeout time.Duration // wal_sender_timeout; 0 for none
	lastStep   time.Time
	lastStatus time.Time     // zero until the first, which is sent at once
	confirmed  outbox.LSN    // last told to the server
	replyAsked bool          // the server wants a status at once
	serverEnd  outbox.LSN    // how far the server said it was
	lastHeard  time.Time     // when the server last sent anything, while it was listened to
	silence    time.Duration // after which it counts as gone

	transaction outbox.LSN // being read; 0 between transactions
	committed   bool       // one was read to its end

	pending *outbox.Event // decoded, waiting for room in the window
	pace    pace
}

// run connects and streams until the connection is lost, or until intake ends:
// then it calls intakeOver and sees what is in flight through, until drain ends.
func (s *session) run(intake, drain context.Context, intakeOver func()) error {
	oid, err := s.stream.options.Outbox(intake)
	if err != nil {
		return err
	}
	if err := s.connect(intake); err != nil {
		return err
	}
	defer s.disconnect()
	if err := s.start(intake, oid); err != nil {
		return err
	}
	if err := s.stream.options.Backlog.Open(intake); err != nil {
		return err
	}
	if !s.stream.sameSlot(intake) {
		return intake.Err()
	}
	if err := s.stream.options.OnStart(intake); err != nil {
		return err
	}
	s.streamed = true
	s.stream.yield.Store(nil)
	s.stream.update(func(st *Status) {
		st.State, st.Reason = Streaming, ""
		st.Sessions++
	})
	s.stream.options.Log.Info().Str("slot", s.stream.options.Slot).Msg("streaming")
	if err := s.backlog(intake); err != nil {
		return err
	}
	for intake.Err() == nil {
		if err := s.step(intake); err != nil {
			return err
		}
	}
	intakeOver()
	return s.drain(drain)
}

// step does one thing: hand on the event that waits, or read the next message.
// Before it, whatever is due is told to the server.
func (s *session) step(ctx context.Context) error {
	// By the wall clock, which goes on while a host sleeps.
	now := time.Now().Round(0)
	if stood := now.Sub(s.lastStep); s.walTimeout > 0 && !s.lastStep.IsZero() && stood > s.walTimeout {
		// Another relay may stream by now, and what lies in the connection's buffer is
		// its to send.
		return fmt.Errorf("this process stood still for %s, longer than wal_sender_timeout", stood.Round(time.Second))
	}
	s.lastStep = now
	s.stream.absorb()
	if reason := s.stream.yield.Load(); reason != nil {
		return errors.New(*reason)
	}
	if err := s.report(ctx); err != nil {
		return err
	}
	if s.pending != nil {
		s.lastHeard = time.Now() // not listened to, so not missed
		return s.emit(ctx)
	}
	return s.receive()
}

// backlogBatch is how many rows of the backlog are read at once, backlogBytes how much.
const (
	backlogBatch = 1000
	backlogBytes = 8 << 20
)

// backlog hands on what comes before the stream, as one transaction, and goes on
// telling the server that the relay lives.
func (s *session) backlog(ctx context.Context) error {
	stream := s.stream
	for opened := false; !stream.ahead && ctx.Err() == nil; {
		events, err := stream.options.Backlog.Next(ctx, backlogBatch, backlogBytes)
		if err != nil {
			return err
		}
		if len(events) > 0 && !opened {
			if err := stream.tracker.Begin(stream.options.Backlog.Position(), time.Now()); err != nil {
				return &protocolError{err}
			}
			opened = true
			stream.options.Log.Info().Msg("sending the unsettled rows from before the slot")
		}
		for _, event := range events {
			s.pending = event
			for s.pending != nil && ctx.Err() == nil {
				if err := s.step(ctx); err != nil {
					return err
				}
			}
		}
		if len(events) == 0 {
			stream.ahead = true
			if opened {
				stream.options.Log.Info().Msg("all unsettled rows from before the slot are handed on; the stream goes on")
				return stream.tracker.Commit(stream.options.Backlog.Position())
			}
		}
	}
	return nil
}

// emit hands on the pending event, unless the window is full: then it waits for
// a settlement, or for the next tick.
func (s *session) emit(ctx context.Context) error {
	full := s.stream.full()
	s.stream.setPaused(full)
	if full {
		s.stream.await(ctx)
		return nil
	}
	event := s.pending
	s.pending = nil
	s.pace.count(s.lastHeard)
	fresh, err := s.stream.tracker.Track(event.Position, event.Size())
	if err != nil {
		return &protocolError{err}
	}
	if !fresh {
		return nil
	}
	select {
	case s.stream.options.Events <- event:
	case <-ctx.Done():
	}
	return nil
}

// receive reads and acts on the next message, if one comes before the next tick.
func (s *session) receive() error {
	if s.conn.Frontend().ReadBufferLen() == 0 {
		time.Sleep(s.pace.rest())
	}
	if err := s.conn.Conn().SetReadDeadline(time.Now().Add(tick)); err != nil {
		return fmt.Errorf("set read deadline: %w", err)
	}
	message, err := s.conn.ReceiveMessage(context.Background())
	if isTimeout(err) {
		// Every status asks for an answer, so a server that lives is never silent long.
		if quiet := time.Since(s.lastHeard); quiet > s.silence {
			return fmt.Errorf("the server has been silent for %s", quiet.Round(time.Second))
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	s.lastHeard = time.Now()
	switch m := message.(type) {
	case *pgproto3.CopyData:
		return s.copyData(m.Data)
	case *pgproto3.ErrorResponse:
		return fmt.Errorf("stream: %w", pgconn.ErrorResponseToPgError(m))
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return errors.New("the server ended the stream")
	case *pgproto3.NoticeResponse:
		if m.Code == codeNotInPrerequisiteState && strings.Contains(m.Message, "publication") {
			return fmt.Errorf("%w: %s", errSkipped, m.Message)
		}
		return nil
	default:
		return nil // parameter changes
	}
}

// copyData acts on one message of the streaming replication protocol.
func (s *session) copyData(data []byte) error {
	if len(data) == 0 {
		return &protocolError{errors.New("empty message")}
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return &protocolError{err}
		}
		s.serverEnd = max(s.serverEnd, keepalive.ServerWALEnd)
		s.replyAsked = s.replyAsked || keepalive.ReplyRequested
		s.stream.tracker.Keepalive(keepalive.ServerWALEnd)
		return nil
	case pglogrepl.XLogDataByteID:
		xlog, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return &protocolError{err}
		}
		s.serverEnd = max(s.serverEnd, xlog.ServerWALEnd)
		return s.change(xlog.WALData)
	default:
		return &protocolError{fmt.Errorf("unknown message type %q", data[0])}
	}
}

// change acts on one pgoutput message.
func (s *session) change(data []byte) error {
	message, err := s.decoder.Decode(data)
	if err != nil {
		return &protocolError{err}
	}
	switch m := message.(type) {
	case decoder.Begin:
		s.transaction = m.FinalLSN
		err = s.stream.tracker.Begin(m.FinalLSN, m.CommitTime)
	case decoder.Insert:
		s.pending = m.Event
		s.pending.ReadAt = s.lastHeard
	case decoder.Commit:
		s.transaction, s.committed = 0, true
		err = s.stream.tracker.Commit(m.TransactionEndLSN)
	}
	if err != nil {
		return &protocolError{err}
	}
	return nil
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
