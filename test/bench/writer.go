package main

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// payload is 300 bytes of JSON.
var payload = `{"text": "` + strings.Repeat("x", 288) + `"}`

// steady commits one row at a time at an even rate, and gives when each commit was sent.
func steady(ctx context.Context, url string, perSecond int, length time.Duration) (map[string]time.Time, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	committed := make(map[string]time.Time)
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for end := time.Now().Add(length); time.Now().Before(end); <-ticker.C {
		id := uuid.NewString()
		committed[id] = time.Now()
		if _, err := conn.Exec(ctx, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
			VALUES ($1, 'order', gen_random_uuid(), 'order.changed', $2)`, id, payload); err != nil {
			return nil, err
		}
	}
	return committed, nil
}

// backlog commits many rows of a thousand aggregates, a hundred in a transaction.
func backlog(ctx context.Context, url string, rows int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for left := rows; left > 0; left -= 100 {
		if _, err := conn.Exec(ctx, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
			SELECT gen_random_uuid(), 'order', ('00000000-0000-0000-0000-' || lpad((random() * 999)::int::text, 12, '0'))::uuid, 'order.changed', $1::text::jsonb
			FROM generate_series(1, $2)`, payload, min(left, 100)); err != nil {
			return err
		}
	}
	return nil
}
