package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// RereadOptions say which part of which slot's WAL is read.
type RereadOptions struct {
	Config      *pgconn.Config
	Slot        string // not the relay's own
	Publication string
	Table       decoder.Table
	Until       outbox.LSN // what was committed at or after it is not given
	Events      chan<- *outbox.Event
}

// Reread gives the outbox's inserts from where a slot stands, in the order of their
// commits, and closes the channel at its end. It confirms nothing, so the slot stays
// where it is and can be read again.
func Reread(ctx context.Context, o RereadOptions) error {
	defer close(o.Events)
	conn, err := open(ctx, o.Config)
	if err != nil {
		return err
	}
	r := &reread{o: o, conn: conn, decoder: decoder.New(o.Table)}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn.Close(ctx)
	}()
	timeout, err := walSenderTimeout(ctx, conn)
	if err != nil {
		return err
	}
	r.interval = statusInterval(timeout)
	if err := startReplication(ctx, conn, o.Slot, o.Publication); err != nil {
		return err
	}
	for !r.done {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.step(ctx); err != nil {
			return fmt.Errorf("read slot %q again: %w", o.Slot, err)
		}
	}
	return nil
}

// reread is one reading. It belongs to the goroutine of Reread.
type reread struct {
	o        RereadOptions
	conn     *pgconn.PgConn
	decoder  *decoder.Decoder
	interval time.Duration
	told     time.Time // when the server last got a status
	begun    bool      // within a transaction
	done     bool
}

// step reads one message, if one comes before the next tick, and hands on its event.
func (r *reread) step(ctx context.Context) error {
	if err := r.tell(ctx); err != nil {
		return err
	}
	if err := r.conn.Conn().SetReadDeadline(time.Now().Add(tick)); err != nil {
		return err
	}
	message, err := r.conn.ReceiveMessage(context.Background())
	if isTimeout(err) {
		return nil
	}
	if err != nil {
		return err
	}
	switch m := message.(type) {
	case *pgproto3.CopyData:
		return r.copyData(ctx, m.Data)
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(m)
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return errors.New("the server ended the stream")
	}
	return nil
}

// tell keeps the connection alive. A position of 0 confirms nothing.
func (r *reread) tell(ctx context.Context) error {
	if time.Since(r.told) < r.interval {
		return nil
	}
	r.told = time.Now()
	return pglogrepl.SendStandbyStatusUpdate(ctx, r.conn, pglogrepl.StandbyStatusUpdate{ReplyRequested: true})
}

func (r *reread) copyData(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errors.New("empty message")
	}
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return err
		}
		if keepalive.ReplyRequested {
			r.told = time.Time{}
		}
		r.done = !r.begun && keepalive.ServerWALEnd >= r.o.Until
		return nil
	case pglogrepl.XLogDataByteID:
		xlog, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return err
		}
		message, err := r.decoder.Decode(xlog.WALData)
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case decoder.Begin:
			r.begun, r.done = true, m.FinalLSN >= r.o.Until
		case decoder.Commit:
			r.begun = false
		case decoder.Insert:
			return r.hand(ctx, m.Event)
		}
	}
	return nil
}

// hand hands on an event, however long that takes, and keeps the connection alive.
func (r *reread) hand(ctx context.Context, event *outbox.Event) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case r.o.Events <- event:
			return nil
		case <-ticker.C:
			if err := r.tell(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
