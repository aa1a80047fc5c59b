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

	pending *outbox.Event // decoded, waiting for room in the window
}

// run connects and streams until the connection is lost, or until intake ends:
// then it calls intakeOver and sees what is in flight through, until drain ends.
func (s *session) run(intake, drain context.Context, intakeOver func()) error {
	if err := s.connect(intake); err != nil {
		return err
	}
	defer s.disconnect()
	if err := s.start(intake); err != nil {
		return err
	}
	if err := s.stream.options.Backlog.Open(intake); err != nil {
		return err
	}
	if err := s.stream.options.OnStart(intake); err != nil {
		return err
	}
	s.streamed = true
	s.stream.yield.Store(false)
	s.stream.update(func(st *Status) { st.State, st.Reason = Streaming, "" })
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

func (s *session) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	config := s.stream.options.Config.Copy()
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["client_encoding"] = "UTF8"
	config.RuntimeParams["bytea_output"] = "hex"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open replication connection: %w", err)
	}
	s.conn = conn
	return nil
}

// start asks for the stream from the slot's own position. A position given here
// that is ahead of the slot's would silently skip events, one behind it is
// silently moved up: so none is given.
func (s *session) start(ctx context.Context) error {
	if err := s.identify(ctx); err != nil {
		return err
	}
	timeout, err := s.walSenderTimeout(ctx)
	if err != nil {
		return err
	}
	s.walTimeout = timeout
	s.interval = statusInterval(timeout)
	s.silence = max(timeout, 6*s.interval)
	s.lastHeard = time.Now()
	s.decoder = decoder.New(s.stream.options.Table)
	options := pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'",
		"publication_names " + quoteLiteral(quoteIdentifier(s.stream.options.Publication)),
	}}
	if err := pglogrepl.StartReplication(ctx, s.conn, quoteIdentifier(s.stream.options.Slot), 0, options); err != nil {
		return fmt.Errorf("start replication on slot %q: %w", s.stream.options.Slot, err)
	}
	return nil
}

// identify asks who the server is. On another system or timeline, as after a
// failover, positions that were seen before can stand for other events: then what
// is in flight is settled first, and everything is looked at anew.
func (s *session) identify(ctx context.Context) error {
	system, err := pglogrepl.IdentifySystem(ctx, s.conn)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	identity := fmt.Sprintf("%s/%d", system.SystemID, system.Timeline)
	if known := s.stream.system; known != "" && known != identity {
		s.stream.options.Log.Warn().Str("was", known).Str("is", identity).Msg("another server or timeline answers; settling what is in flight before going on")
		if !s.stream.settleDown(ctx) {
			return ctx.Err()
		}
		s.stream.startOver()
	}
	s.stream.system = identity
	return nil
}

func (s *session) walSenderTimeout(ctx context.Context) (time.Duration, error) {
	results, err := s.conn.Exec(ctx, "SHOW wal_sender_timeout").ReadAll()
	if err != nil {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return 0, errors.New("read wal_sender_timeout: no row")
	}
	return parseInterval(string(results[0].Rows[0][0])), nil
}

// parseInterval reads what SHOW prints of a time setting, such as 60s, 5s, 1min
// or 500ms. What it can't read counts as not set.
func parseInterval(text string) time.Duration {
	text = strings.Replace(strings.Replace(text, "min", "m", 1), "d", "h", 1)
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

// statusInterval leaves three chances within the server's time-out.
func statusInterval(timeout time.Duration) time.Duration {
	const usual = 10 * time.Second
	if timeout <= 0 {
		return usual
	}
	return max(min(timeout/3, usual), tick)
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
	if s.stream.yield.Load() {
		return errors.New("the server is shutting down")
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
			if err := stream.tracker.Begin(stream.options.Backlog.Position()); err != nil {
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
	default:
		return nil // notices and parameter changes
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
		err = s.stream.tracker.Begin(m.FinalLSN)
	case decoder.Insert:
		s.pending = m.Event
	case decoder.Commit:
		err = s.stream.tracker.Commit(m.TransactionEndLSN)
	}
	if err != nil {
		return &protocolError{err}
	}
	return nil
}

// report sends a standby status when one is due: on the timer, when the server
// asks, and when the watermark has moved.
func (s *session) report(ctx context.Context) error {
	now := time.Now()
	watermark := s.stream.tracker.Watermark()
	moved := watermark > s.confirmed && now.Sub(s.lastStatus) >= tick
	if !moved && !s.replyAsked && now.Sub(s.lastStatus) < s.interval {
		return nil
	}
	return s.confirm(ctx, watermark, now)
}

// confirm tells the server that everything before the watermark is settled. All
// three positions are set, always: pglogrepl would fill an unset flush position
// with the write position.
func (s *session) confirm(ctx context.Context, watermark outbox.LSN, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: watermark, WALFlushPosition: watermark, WALApplyPosition: watermark,
		ReplyRequested: now.Sub(s.lastHeard) > s.interval/2,
	})
	if err != nil {
		return fmt.Errorf("send standby status: %w", err)
	}
	s.confirmed, s.lastStatus, s.replyAsked = watermark, now, false
	events, bytes := s.stream.tracker.InFlight()
	s.stream.update(func(st *Status) {
		st.Confirmed, st.ServerEnd, st.InFlight, st.Bytes = watermark, s.serverEnd, events, bytes
	})
	return nil
}

// drain reads no more and keeps the connection alive until everything in flight
// is settled, or until ctx ends; then it confirms what there is and ends the
// stream in good order.
func (s *session) drain(ctx context.Context) error {
	s.stream.update(func(st *Status) { st.State = Draining })
	for s.stream.absorb(); !s.stream.drained() && ctx.Err() == nil; s.stream.absorb() {
		if err := s.report(ctx); err != nil {
			return err
		}
		s.stream.await(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.confirm(ctx, s.stream.tracker.Watermark(), time.Now()); err != nil {
		return err
	}
	return s.endCopy()
}

// endCopy ends the stream and reads what the server had sent meanwhile. Closing
// a connection with unread data resets it, and the reset could overtake the last
// status.
func (s *session) endCopy() error {
	if err := s.conn.Conn().SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	s.conn.Frontend().Send(&pgproto3.CopyDone{})
	if err := s.conn.Frontend().Flush(); err != nil {
		return fmt.Errorf("end the stream: %w", err)
	}
	for {
		message, err := s.conn.ReceiveMessage(context.Background())
		if err != nil {
			return fmt.Errorf("end the stream: %w", err)
		}
		if _, ready := message.(*pgproto3.ReadyForQuery); ready {
			return nil
		}
	}
}

func (s *session) disconnect() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.conn.Close(ctx)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

func quoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func quoteLiteral(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }
