package backlog

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/outboxrow"
)

// Next reads the next events of the backlog, at most limit rows and about so many
// bytes; none when all were read. Rows that were deleted meanwhile are passed over.
func (b *Backlog) Next(ctx context.Context, limit, bytes int) ([]*outbox.Event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.next < b.rows {
		events, last, err := b.read(ctx, limit, bytes)
		if err != nil {
			return nil, fmt.Errorf("read the backlog: %w", err)
		}
		b.next = last + 1
		if len(events) > 0 {
			return events, nil
		}
	}
	return nil, nil
}

// Position is the transaction that the backlog's events count as.
func (b *Backlog) Position() outbox.LSN {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.base
}

// read gives the events of the next rows, and the last seq that it looked at.
func (b *Backlog) read(ctx context.Context, limit, bytes int) ([]*outbox.Event, int64, error) {
	query, reader, err := b.readStatement(ctx)
	if err != nil {
		return nil, 0, err
	}
	rows, err := b.o.Database.Query(ctx, query, b.next, limit)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	last := min(b.next+int64(limit), b.rows) - 1
	var events []*outbox.Event
	size := 0
	for rows.Next() {
		var seq int64
		var id string
		var settled []string
		row := &outboxrow.Row{}
		if err := rows.Scan(append([]any{&seq, &id, &settled}, row.Fields()...)...); err != nil {
			return nil, 0, err
		}
		e := reader.Event(id, row)
		e.Position = outbox.Position{Commit: b.base, Index: uint32(seq)}
		for _, destination := range settled {
			e.Settled = append(e.Settled, outbox.Settled{Destination: destination, Parked: true})
		}
		events = append(events, e)
		if size += e.Size(); size >= bytes {
			return events, seq, nil
		}
	}
	return events, last, rows.Err()
}

// readStatement reads rows in the text form in which the stream would bring them.
func (b *Backlog) readStatement(ctx context.Context) (string, *outboxrow.Reader, error) {
	table, err := catalog.Read(ctx, b.o.Database, b.o.Outbox)
	if err != nil {
		return "", nil, err
	}
	reader := outboxrow.NewReader(table, b.o.Columns)
	id, kind := reader.ID()
	return fmt.Sprintf(`SELECT b.seq, b.outbox_id, b.settled, %s FROM %s b JOIN %s o ON %s = b.outbox_id::%s WHERE b.seq >= $1 AND b.seq < $1 + $2 ORDER BY b.seq`,
		reader.List(), b.table, b.o.Outbox.Sanitize(), id, kind), reader, nil
}

// Finish forgets the rows of the backlog once they, and all that the stream
// could bring of them, are settled.
func (b *Backlog) Finish(ctx context.Context) error {
	tx, err := b.o.Database.Begin(ctx)
	if err != nil {
		return fmt.Errorf("finish the backlog: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	if _, err := tx.Exec(ctx, `UPDATE `+b.state+` SET finished_at = now() WHERE slot_name = $1`, b.o.Slot); err != nil {
		return fmt.Errorf("finish the backlog: %w", err)
	}
	if _, err := tx.Exec(ctx, `DELETE FROM `+b.table); err != nil {
		return fmt.Errorf("finish the backlog: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("finish the backlog: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rows = 0
	return nil
}
