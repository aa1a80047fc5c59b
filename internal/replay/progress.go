package replay

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Here are the steps of a job under way in its table.

func (s *Store) start(ctx context.Context, id string) error {
	return s.step(ctx, id, `state = 'RUNNING', started_at = coalesce(started_at, now())`)
}

func (s *Store) finish(ctx context.Context, id string) error {
	return s.step(ctx, id, `state = 'DONE', ended_at = now()`)
}

func (s *Store) fail(ctx context.Context, id, reason string) error {
	return s.step(ctx, id, `state = 'FAILED', reason = $2, ended_at = now()`, reason)
}

func (s *Store) step(ctx context.Context, id, set string, args ...any) error {
	_, err := s.o.Database.Exec(ctx, `UPDATE `+s.replays+` SET `+set+` WHERE id = $1 AND state IN ('QUEUED', 'RUNNING')`, append([]any{id}, args...)...)
	if err != nil {
		return fmt.Errorf("note the state of replay %s: %w", id, err)
	}
	return nil
}

// save keeps the cursor, and tells how much is parked and whether the job is still
// to be worked on.
func (s *Store) save(ctx context.Context, id string, at cursor, skipped int64) (parked int64, running bool, err error) {
	err = s.o.Database.QueryRow(ctx, `UPDATE `+s.replays+` SET cursor_lsn = $2::text::pg_lsn, cursor_index = $3, cursor_destination = $4, skipped = skipped + $5
		WHERE id = $1 AND state = 'RUNNING' RETURNING parked`, id, at.lsn, at.index, at.destination, skipped).Scan(&parked)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("save the cursor of replay %s: %w", id, err)
	}
	return parked, true, nil
}
