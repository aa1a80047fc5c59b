package backlog

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
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
	query, kind, err := b.readStatement(ctx)
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
		e := &outbox.Event{Kind: kind}
		var seq int64
		var aggregateType, aggregateID, eventType, headers *string
		var created *time.Time
		var settled []string
		if err := rows.Scan(&seq, &e.ID, &aggregateType, &aggregateID, &eventType, &e.Payload, &headers, &created, &settled); err != nil {
			return nil, 0, err
		}
		e.Position = outbox.Position{Commit: b.base, Index: uint32(seq)}
		e.AggregateType, e.EventType = text(aggregateType), text(eventType)
		e.AggregateID, e.HasAggregate = text(aggregateID), aggregateID != nil
		if headers != nil {
			e.Headers = []byte(*headers)
		}
		if e.CommitTime = time.Now(); created != nil {
			e.CommitTime = *created
		}
		if e.Payload == nil {
			e.Defect = "column " + b.o.Columns.Payload + " is NULL"
		}
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

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// readStatement reads rows in the text form in which the stream would bring them.
func (b *Backlog) readStatement(ctx context.Context) (string, outbox.PayloadKind, error) {
	table, err := catalog.Read(ctx, b.o.Database, b.o.Outbox)
	if err != nil {
		return "", 0, err
	}
	c := b.o.Columns
	column := func(name, cast string) string {
		if name == "" || table.Columns[name] == "" {
			return "NULL"
		}
		return "o." + pgx.Identifier{name}.Sanitize() + cast
	}
	kind, payload := outbox.Text, column(c.Payload, "::text")
	switch table.Columns[c.Payload] {
	case "json", "jsonb":
		kind = outbox.JSON
	case "bytea":
		kind, payload = outbox.Binary, column(c.Payload, "")
	}
	if kind != outbox.Binary {
		// As bytes, so that they arrive as they are, NULL among them.
		payload = "convert_to(" + payload + ", 'UTF8')"
	}
	id := column(c.ID, "")
	return strings.Join([]string{
		`SELECT b.seq, b.outbox_id,`, column(c.AggregateType, "::text"), `,`, column(c.AggregateID, "::text"), `,`, column(c.EventType, "::text"), `,`,
		payload, `,`, column(c.Headers, "::text"), `,`, column(c.CreatedAt, "::timestamptz"), `, b.settled FROM `, b.table, ` b JOIN `, b.o.Outbox.Sanitize(),
		` o ON `, id, ` = b.outbox_id::`, table.Columns[c.ID], ` WHERE b.seq >= $1 AND b.seq < $1 + $2 ORDER BY b.seq`,
	}, " "), kind, nil
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
