package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

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
		st.Confirmed, st.ServerEnd, st.InFlight, st.Bytes, st.Oldest = watermark, s.serverEnd, events, bytes, s.stream.tracker.Oldest()
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
