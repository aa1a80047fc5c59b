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
	return steadyRows(ctx, url, perSecond, 1, length)
}

// steadyRows commits transactions of some rows at an even rate.
func steadyRows(ctx context.Context, url string, perSecond, rows int, length time.Duration) (map[string]time.Time, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	committed := make(map[string]time.Time)
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for end := time.Now().Add(length); time.Now().Before(end); <-ticker.C {
		ids, began := make([]string, rows), time.Now()
		for i := range ids {
			ids[i] = uuid.NewString()
			committed[ids[i]] = began
		}
		if _, err := conn.Exec(ctx, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
			SELECT id::uuid, 'order', gen_random_uuid(), 'order.changed', $2::text::jsonb FROM unnest($1::text[]) id`, ids, payload); err != nil {
			return committed, err
		}
	}
	return committed, nil
}

// backlog commits many rows of a thousand aggregates, a hundred in a transaction.
func backlog(ctx context.Context, url string, rows int) error { return backlogOf(ctx, url, rows, 1000) }

// manyRows inserts $2 rows of $3 aggregates.
const manyRows = `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
	SELECT gen_random_uuid(), 'order', ('00000000-0000-0000-0000-' || lpad((random() * ($3::int - 1))::int::text, 12, '0'))::uuid, 'order.changed', $1::text::jsonb
	FROM generate_series(1, $2::int)`

func backlogOf(ctx context.Context, url string, rows, aggregates int) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for left := rows; left > 0; left -= 100 {
		if _, err := conn.Exec(ctx, manyRows, payload, min(left, 100), aggregates); err != nil {
			return err
		}
	}
	return nil
}
