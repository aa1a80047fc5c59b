package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Request says what Claim may take up.
type Request struct {
	Destination string
	Heads       int           // the most first rows of lanes, and rows without order
	Followers   int           // the most further rows of each of their lanes
	Bytes       int           // the most payload, but always one row
	Lease       time.Duration // how long nobody else takes up what this took
}

// Claim takes up what is due at one destination: rows without order, first rows
// of lanes, and behind each of these the rows that follow it, in order. Several
// relays may claim at once: each row goes to one of them.
func (s *Store) Claim(ctx context.Context, r Request) ([]Letter, error) {
	heads, err := s.claimHeads(ctx, r)
	if err != nil || len(heads) == 0 || r.Followers == 0 {
		return heads, err
	}
	return s.withFollowers(ctx, r, heads)
}

// columns are what a Letter is made of, in the order in which scan reads them.
const columns = `d.id, d.outbox_id, d.destination, d.lane IS NOT NULL, d.rounds, d.attempt_count, coalesce(d.replay_id, ''),
	coalesce(d.next_attempt_at, 'epoch'), d.commit_lsn::text, d.tx_index, d.committed_at, coalesce(d.aggregate_type, ''),
	coalesce(d.aggregate_id, ''), d.aggregate_id IS NOT NULL, coalesce(d.event_type, ''), d.payload, d.payload_kind, d.headers`

func scan(row pgx.CollectableRow) (Letter, error) {
	l := Letter{Event: &outbox.Event{}}
	e := l.Event
	var lsn, kind string
	var index int64
	var headers *string
	err := row.Scan(&l.ID, &e.ID, &l.Destination, &l.Ordered, &l.Rounds, &l.Tries, &l.ReplayID, &l.Lease, &lsn, &index,
		&e.CommitTime, &e.AggregateType, &e.AggregateID, &e.HasAggregate, &e.EventType, &e.Payload, &kind, &headers)
	if err != nil {
		return l, err
	}
	if e.Position.Commit, err = pglogrepl.ParseLSN(lsn); err != nil {
		return l, fmt.Errorf("position of dead letter %d: %w", l.ID, err)
	}
	e.Position.Index, e.Kind = uint32(index), kindOf(kind)
	if headers != nil {
		e.Headers = []byte(*headers)
	}
	if e.Payload == nil {
		e.Defect = "the row had no payload"
	}
	return l, nil
}

// claimHeads: the rows that are due are found by dead_letters_due, and that none
// of their lane comes before them by dead_letters_lane.
func (s *Store) claimHeads(ctx context.Context, r Request) ([]Letter, error) {
	now := s.now()
	rows, err := s.db.Query(ctx, `WITH due AS (
			SELECT d.id, d.next_attempt_at, coalesce(octet_length(d.payload), 0) AS size FROM `+s.table+` d
			WHERE d.destination = $1 AND d.state = 'SCHEDULED' AND d.next_attempt_at <= $7
			AND (d.replay_id IS NOT NULL OR d.commit_lsn < (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $5))
			AND (d.lane IS NULL OR NOT EXISTS (SELECT FROM `+s.table+` e WHERE e.destination = d.destination AND e.lane = d.lane
				AND e.state IN ('SCHEDULED', 'DEAD') AND `+holds("e", "$6")+`
				AND (e.commit_lsn, e.tx_index, e.id) < (d.commit_lsn, d.tx_index, d.id)))
			ORDER BY d.next_attempt_at LIMIT $2 FOR UPDATE SKIP LOCKED
		), fitting AS (SELECT id FROM (SELECT id, sum(size) OVER (ORDER BY next_attempt_at, id) - size AS before FROM due) s WHERE before < $3)
		UPDATE `+s.table+` d SET next_attempt_at = $4, updated_at = $7 FROM fitting f WHERE d.id = f.id
		RETURNING `+columns, r.Destination, r.Heads, r.Bytes, now.Add(r.Lease), s.slot, s.blocking, now)
	if err != nil {
		return nil, fmt.Errorf("claim due dead letters of %s: %w", r.Destination, err)
	}
	heads, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, fmt.Errorf("claim due dead letters of %s: %w", r.Destination, err)
	}
	return heads, nil
}

// withFollowers puts behind each head the rows of its lane that come next. They
// need no lease of their own: they are not due while the head is there.
func (s *Store) withFollowers(ctx context.Context, r Request, heads []Letter) ([]Letter, error) {
	room := r.Bytes
	var ids []int64
	for _, head := range heads {
		room -= len(head.Event.Payload)
		if head.Ordered {
			ids = append(ids, head.ID)
		}
	}
	if len(ids) == 0 || room <= 0 {
		return heads, nil
	}
	rows, err := s.db.Query(ctx, `SELECT h.id AS head, `+columns+` FROM `+s.table+` h CROSS JOIN LATERAL (
			SELECT * FROM `+s.table+` f WHERE f.destination = h.destination AND f.lane = h.lane AND f.state = 'SCHEDULED'
			AND f.commit_lsn < (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $3)
			AND (f.commit_lsn, f.tx_index, f.id) > (h.commit_lsn, h.tx_index, h.id)
			ORDER BY f.commit_lsn, f.tx_index, f.id LIMIT $2) d
		WHERE h.id = ANY ($1) ORDER BY h.id, d.commit_lsn, d.tx_index, d.id`, ids, r.Followers, s.slot)
	if err != nil {
		return nil, fmt.Errorf("read what follows in the lanes of %s: %w", r.Destination, err)
	}
	defer rows.Close()
	followers := make(map[int64][]Letter)
	for rows.Next() && room > 0 {
		var head int64
		letter, err := scan(after{rows, &head})
		if err != nil {
			return nil, fmt.Errorf("read what follows in the lanes of %s: %w", r.Destination, err)
		}
		room -= len(letter.Event.Payload)
		followers[head] = append(followers[head], letter)
	}
	if room > 0 && rows.Err() != nil {
		return nil, fmt.Errorf("read what follows in the lanes of %s: %w", r.Destination, rows.Err())
	}
	all := make([]Letter, 0, len(heads))
	for _, head := range heads {
		all = append(all, head)
		for _, follower := range followers[head.ID] {
			follower.Lease = head.Lease
			all = append(all, follower)
		}
	}
	return all, nil
}

// after scans a first column of its own and leaves the rest to scan.
type after struct {
	pgx.Rows
	first any
}

func (a after) Scan(dest ...any) error { return a.Rows.Scan(append([]any{a.first}, dest...)...) }

// EachLane calls each with every lane in which later events must wait. It first
// lets settle transactions that are under way end, those too which a killed relay
// has left to the server.
func (s *Store) EachLane(ctx context.Context, each func(Lane)) error {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("read parked lanes: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // it only reads
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(changeLock)); err != nil {
		return fmt.Errorf("read parked lanes: %w", err)
	}
	rows, err := tx.Query(ctx, `SELECT DISTINCT d.destination, d.lane FROM `+s.table+` d
		WHERE d.lane IS NOT NULL AND d.state IN ('SCHEDULED', 'DEAD') AND `+holds("d", "$1"), s.blocking)
	if err != nil {
		return fmt.Errorf("read parked lanes: %w", err)
	}
	var lane Lane
	_, err = pgx.ForEachRow(rows, []any{&lane.Destination, &lane.Key}, func() error {
		each(lane)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read parked lanes: %w", err)
	}
	return nil
}

// FreeLanes gives those of the lanes in which nothing has to wait any more.
func (s *Store) FreeLanes(ctx context.Context, lanes []Lane) ([]Lane, error) {
	destinations, keys := make([]string, len(lanes)), make([]string, len(lanes))
	for i, lane := range lanes {
		destinations[i], keys[i] = lane.Destination, lane.Key
	}
	// The LATERAL with its LIMIT makes one look-up in dead_letters_lane of each lane. NOT
	// EXISTS would have the planner read all that is parked.
	rows, err := s.db.Query(ctx, `SELECT l.destination, l.lane FROM unnest($1::text[], $2::text[]) AS l (destination, lane)
		LEFT JOIN LATERAL (SELECT true AS stands FROM `+s.table+` d WHERE d.destination = l.destination AND d.lane = l.lane
			AND d.state IN ('SCHEDULED', 'DEAD') AND `+holds("d", "$3")+` LIMIT 1) rest ON true
		WHERE rest.stands IS NULL`, destinations, keys, s.blocking)
	if err != nil {
		return nil, fmt.Errorf("look for free lanes: %w", err)
	}
	return collectLanes(rows)
}

func collectLanes(rows pgx.Rows) ([]Lane, error) {
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Lane, err error) { return l, row.Scan(&l.Destination, &l.Key) })
}

// Count tells how many rows are parked.
func (s *Store) Count(ctx context.Context) (n int, err error) {
	rows, err := s.db.Query(ctx, `SELECT count(*) FROM `+s.table+` WHERE state = 'SCHEDULED'`)
	if err == nil {
		n, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int])
	}
	if err != nil {
		return 0, fmt.Errorf("count parked events: %w", err)
	}
	return n, nil
}

// Paused names the destinations that a person has paused.
func (s *Store) Paused(ctx context.Context) ([]string, error) {
	rows, err := s.db.Query(ctx, `SELECT name FROM `+s.pauses)
	if err != nil {
		return nil, fmt.Errorf("read paused destinations: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read paused destinations: %w", err)
	}
	return names, nil
}

// Pause pauses a destination, with the reason that a person gives.
func (s *Store) Pause(ctx context.Context, name, reason string) error {
	return s.exec(ctx, "pause destination "+name, `INSERT INTO `+s.pauses+` (name, reason) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET reason = excluded.reason`, name, reason)
}

// Resume lets a paused destination go on.
func (s *Store) Resume(ctx context.Context, name string) error {
	return s.exec(ctx, "resume destination "+name, `DELETE FROM `+s.pauses+` WHERE name = $1`, name)
}

func (s *Store) exec(ctx context.Context, what, sql string, args ...any) error {
	rows, err := s.db.Query(ctx, sql, args...)
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
