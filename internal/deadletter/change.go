package deadletter

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Replay schedules dead letters that fit to be sent again at once, at most limit
// of them, oldest event first, so that lanes keep their order. Only DEAD ones and
// DISCARDED ones are taken. It gives how many were; none means that no more fit.
// A row without a payload can't be sent and is left.
func (s *Store) Replay(ctx context.Context, f Filter, replayID string, limit int) (int, error) {
	return s.change(ctx, "replay dead letters", f, `d.state IN ('DEAD', 'DISCARDED') AND d.payload IS NOT NULL`,
		`state = 'SCHEDULED', rounds = 0, replay_id = @replay, next_attempt_at = CASE WHEN d.lane IS NULL THEN @now::timestamptz END`,
		pgx.NamedArgs{"replay": replayID}, limit)
}

// Discard gives up on dead letters that fit, DEAD and SCHEDULED ones, at most
// limit of them. The rows stay, with who gave the reason.
func (s *Store) Discard(ctx context.Context, f Filter, reason string, limit int) (int, error) {
	return s.change(ctx, "discard dead letters", f, `d.state IN ('DEAD', 'SCHEDULED')`,
		`state = 'DISCARDED', reason = @reason, next_attempt_at = NULL`, pgx.NamedArgs{"reason": reason}, limit)
}

// change alters rows in a transaction of its own, alone among those that alter
// lanes, and makes the first row of each lane due afterwards.
func (s *Store) change(ctx context.Context, what string, f Filter, condition, set string, args pgx.NamedArgs, limit int) (int, error) {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(changeLock)); err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	where, positional := f.where()
	rows, err := tx.Query(ctx, fmt.Sprintf(`SELECT d.id FROM %s d WHERE %s AND %s ORDER BY d.commit_lsn, d.tx_index, d.id LIMIT %d`, s.table, where, condition, limit), positional...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	args["ids"], args["now"] = ids, s.now()
	rows, err = tx.Query(ctx, `UPDATE `+s.table+` d SET `+set+`, updated_at = @now WHERE d.id = ANY (@ids) RETURNING d.destination, coalesce(d.lane, '')`, args)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	lanes, err := collectLanes(rows)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	if err := s.promote(ctx, tx, unheld(lanes)); err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return len(ids), nil
}

// Progress counts the rows of a replay.
type Progress struct {
	Scheduled int `json:"scheduled"`
	Delivered int `json:"delivered"`
	Dead      int `json:"dead"`
	Discarded int `json:"discarded"`
}

// Progress tells how far a replay has come.
func (s *Store) Progress(ctx context.Context, replayID string) (p Progress, err error) {
	rows, err := s.db.Query(ctx, `SELECT count(*) FILTER (WHERE state = 'SCHEDULED'), count(*) FILTER (WHERE state = 'DELIVERED'),
		count(*) FILTER (WHERE state = 'DEAD'), count(*) FILTER (WHERE state = 'DISCARDED') FROM `+s.table+` WHERE replay_id = $1`, replayID)
	if err == nil {
		p, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (p Progress, err error) {
			return p, row.Scan(&p.Scheduled, &p.Delivered, &p.Dead, &p.Discarded)
		})
	}
	if err != nil {
		return p, fmt.Errorf("read progress of replay %s: %w", replayID, err)
	}
	return p, nil
}
