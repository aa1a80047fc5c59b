package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// changeLock serialises what changes lanes from outside of the settler (replays,
// discards) with the settling of parked events: each must see the other's rows to
// tell which row of a lane is the first.
const changeLock = 0x6364632d // "cdc-"

// Record puts the outcomes that are dead or scheduled, and moves on the rows of
// those that were parked before: a checkpoint.Recorder.
func (s *Store) Record(ctx context.Context, tx pgx.Tx, batch []outbox.Outcome) error {
	var fresh, known []outbox.Outcome
	for _, o := range batch {
		switch {
		case o.LetterID != 0:
			known = append(known, o)
		case o.Fate == outbox.Dead || o.Fate == outbox.Scheduled:
			fresh = append(fresh, o)
		}
	}
	if len(fresh)+len(known) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock_shared($1)`, int64(changeLock)); err != nil {
		return fmt.Errorf("lock dead letters: %w", err)
	}
	if err := s.update(ctx, tx, known); err != nil {
		return err
	}
	if err := s.insert(ctx, tx, fresh); err != nil {
		return err
	}
	return s.promote(ctx, tx, lanesOf(batch))
}

// lanesOf gives the lanes in which the batch changed something, with the time
// until which the next row of each is spoken for.
func lanesOf(batch []outbox.Outcome) map[Lane]time.Time {
	lanes := make(map[Lane]time.Time)
	for _, o := range batch {
		key, ordered := o.Event.Lane()
		if !ordered || !o.Ordered || o.LetterID == 0 && o.Fate != outbox.Dead && o.Fate != outbox.Scheduled {
			continue
		}
		lanes[Lane{o.Destination, key}] = o.NextHeldUntil // the last one counts
	}
	return lanes
}

// update moves on the rows of deliveries that were parked before. A row that was
// discarded meanwhile stays so.
func (s *Store) update(ctx context.Context, tx pgx.Tx, known []outbox.Outcome) error {
	if len(known) == 0 {
		return nil
	}
	var ids []int64
	var states, reasons, attempts []string
	var tries, rounds []int32
	var next []*time.Time
	for _, o := range known {
		text, err := attemptsJSON(o)
		if err != nil {
			return err
		}
		ids = append(ids, o.LetterID)
		states, reasons = append(states, string(stateOf(o.Fate))), append(reasons, o.Reason)
		attempts = append(attempts, text)
		tries, rounds = append(tries, int32(o.Tries)), append(rounds, int32(o.Rounds))
		next = append(next, due(o))
	}
	// The state is compared in a way that no index serves: while most rows are SCHEDULED
	// and the statistics don't tell yet, the planner would read all of these.
	_, err := tx.Exec(ctx, `UPDATE `+s.table+` d SET state = u.state, reason = CASE WHEN u.reason = '' THEN d.reason ELSE u.reason END,
		attempts = d.attempts || u.attempts::jsonb, attempt_count = u.tries, rounds = u.rounds, next_attempt_at = u.next, updated_at = $8
		FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::integer[], $7::timestamptz[])
		AS u (id, state, reason, attempts, tries, rounds, next) WHERE d.id = u.id AND d.state IS NOT DISTINCT FROM 'SCHEDULED'`,
		ids, states, reasons, attempts, tries, rounds, next, s.now())
	if err != nil {
		return fmt.Errorf("update dead letters: %w", err)
	}
	return nil
}

func stateOf(f outbox.Fate) State {
	switch f {
	case outbox.Delivered, outbox.Repeated:
		return Delivered
	case outbox.Dead:
		return Dead
	default:
		return Scheduled
	}
}

// due is the next attempt's time, nil for a row that waits behind another.
func due(o outbox.Outcome) *time.Time {
	if o.Fate != outbox.Scheduled || o.NextAttempt.IsZero() {
		return nil
	}
	return &o.NextAttempt
}

func attemptsJSON(o outbox.Outcome) (string, error) {
	if len(o.Attempts) == 0 {
		return "[]", nil
	}
	text, err := json.Marshal(o.Attempts)
	if err != nil {
		return "", fmt.Errorf("encode attempts of event %s: %w", o.Event.ID, err)
	}
	return string(text), nil
}

// insert puts new rows, all in one statement.
func (s *Store) insert(ctx context.Context, tx pgx.Tx, fresh []outbox.Outcome) error {
	if len(fresh) == 0 {
		return nil
	}
	var ids, destinations, states, reasons, lsns, kinds, attempts []string
	var lanes, aggregateTypes, aggregateIDs, eventTypes, headers, replays []*string
	var indexes []int64
	var tries, rounds []int32
	var committed []time.Time
	var next []*time.Time
	var payloads [][]byte
	for _, o := range fresh {
		text, err := attemptsJSON(o)
		if err != nil {
			return err
		}
		e := o.Event
		ids, destinations = append(ids, e.ID), append(destinations, o.Destination)
		states, reasons = append(states, string(stateOf(o.Fate))), append(reasons, o.Reason)
		lsns, indexes = append(lsns, e.Position.Commit.String()), append(indexes, int64(e.Position.Index))
		committed = append(committed, e.CommitTime)
		key, ordered := e.Lane()
		lanes = append(lanes, nullable(key, ordered && o.Ordered))
		aggregateTypes = append(aggregateTypes, nullable(e.AggregateType, e.AggregateType != ""))
		aggregateIDs = append(aggregateIDs, nullable(e.AggregateID, e.HasAggregate))
		eventTypes = append(eventTypes, nullable(e.EventType, e.EventType != ""))
		payloads, kinds = append(payloads, e.Payload), append(kinds, kindName(e.Kind))
		headers = append(headers, nullable(string(e.Headers), e.Headers != nil))
		attempts, tries, rounds = append(attempts, text), append(tries, int32(o.Tries)), append(rounds, int32(o.Rounds))
		next, replays = append(next, due(o)), append(replays, nullable(o.ReplayID, o.ReplayID != ""))
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+s.table+` (outbox_id, destination, state, reason, commit_lsn, tx_index, committed_at, lane,
		aggregate_type, aggregate_id, event_type, payload, payload_kind, headers, attempts, attempt_count, rounds, next_attempt_at, replay_id)
		SELECT a, b, c, d, e::pg_lsn, f, g, h, i, j, k, l, m, n, o::jsonb, p, q, r, s FROM unnest($1::text[], $2::text[], $3::text[], $4::text[],
		$5::text[], $6::bigint[], $7::timestamptz[], $8::text[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::text[], $14::text[],
		$15::text[], $16::integer[], $17::integer[], $18::timestamptz[], $19::text[]) AS t (a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s)`,
		ids, destinations, states, reasons, lsns, indexes, committed, lanes,
		aggregateTypes, aggregateIDs, eventTypes, payloads, kinds, headers, attempts, tries, rounds, next, replays)
	if err != nil {
		return fmt.Errorf("write dead letters: %w", err)
	}
	return nil
}

func nullable(s string, present bool) *string {
	if !present {
		return nil
	}
	return &s
}

// promote makes the first row of each lane due, where it has no time yet: now, or
// when the hold on it by who is working on the lane is over.
func (s *Store) promote(ctx context.Context, tx pgx.Tx, lanes map[Lane]time.Time) error {
	if len(lanes) == 0 {
		return nil
	}
	var destinations, keys []string
	var held []time.Time
	now := s.now()
	for lane, until := range lanes {
		destinations, keys = append(destinations, lane.Destination), append(keys, lane.Key)
		if until.IsZero() {
			until = now
		}
		held = append(held, until)
	}
	rows, err := tx.Query(ctx, `SELECT first.id, l.held FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS l (destination, lane, held)
		CROSS JOIN LATERAL (SELECT e.id, e.state, e.next_attempt_at FROM `+s.table+` e WHERE e.destination = l.destination AND e.lane = l.lane
			AND e.state IN ('SCHEDULED', 'DEAD') AND `+holds("e", "$4")+`
			ORDER BY e.commit_lsn, e.tx_index, e.id LIMIT 1) first
		WHERE first.state = 'SCHEDULED' AND first.next_attempt_at IS NULL`, destinations, keys, held, s.blocking)
	if err != nil {
		return fmt.Errorf("look for the next of each lane: %w", err)
	}
	var ids []int64
	var due []time.Time
	var id int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		ids, due = append(ids, id), append(due, at)
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the next of each lane: %w", err)
	}
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `UPDATE `+s.table+` d SET next_attempt_at = u.due FROM unnest($1::bigint[], $2::timestamptz[]) AS u (id, due) WHERE d.id = u.id`, ids, due); err != nil {
		return fmt.Errorf("make the next of each lane due: %w", err)
	}
	return nil
}

// unheld says of lanes that nobody has their next row in hand.
func unheld(lanes []Lane) map[Lane]time.Time {
	all := make(map[Lane]time.Time, len(lanes))
	for _, lane := range lanes {
		if lane.Key != "" {
			all[lane] = time.Time{}
		}
	}
	return all
}
