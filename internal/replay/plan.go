package replay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/outboxrow"
)

// Request says what somebody wants to be sent again. One of FromLSN, Checkpoint and
// Since is set.
type Request struct {
	FromLSN    string `json:"from_lsn,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"`
	UntilLSN   string `json:"until_lsn,omitempty"`
	Filter
}

// Check finds what is wrong with a request before anybody is asked.
func (r *Request) Check() error {
	given := 0
	for _, yes := range []bool{r.FromLSN != "", r.Checkpoint != "", r.Since != nil} {
		if yes {
			given++
		}
	}
	if given != 1 {
		return errors.New("say from where: one of an LSN, a checkpoint and a time")
	}
	for _, lsn := range []string{r.FromLSN, r.UntilLSN} {
		if lsn == "" {
			continue
		}
		if _, err := saved.ParseLSN(lsn); err != nil {
			return err
		}
	}
	return nil
}

// Plan is a request that was looked at: what would be sent, and what can't be.
type Plan struct {
	Source     Source      `json:"source"`
	HeldSlot   string      `json:"held_slot,omitempty"`
	FromLSN    string      `json:"from_lsn"`
	UntilLSN   string      `json:"until_lsn"`
	Total      int64       `json:"total"`
	Counts     []Count     `json:"counts"`
	First      *Edge       `json:"first,omitempty"`
	Last       *Edge       `json:"last,omitempty"`
	Impossible []Exception `json:"impossible,omitempty"`
	Filter
}

// Count is how many deliveries of a destination and event type there are.
type Count struct {
	Destination string `json:"destination"`
	EventType   string `json:"event_type"`
	Deliveries  int64  `json:"deliveries"`
	Gone        int64  `json:"-"`
}

// Edge is the first or the last event.
type Edge struct {
	ID          string    `json:"id"`
	LSN         string    `json:"lsn"`
	CommittedAt time.Time `json:"committed_at"`
}

// Exception is what a replay can't send, and why.
type Exception struct {
	Count  int64  `json:"count"`
	Reason string `json:"reason"`
}

// Kept is from where on events can be sent again.
type Kept struct {
	FromLSN  string
	FromTime time.Time
	Server   string // its flush position
	Now      time.Time
}

// RangeError says that a request is out of what is kept.
type RangeError struct {
	Problem string
	Kept    Kept
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s; kept is what was committed from LSN %s (%s) on, and the server is at %s",
		e.Problem, e.Kept.FromLSN, e.Kept.FromTime.UTC().Format(time.RFC3339), e.Kept.Server)
}

// ErrNoSource says that there is nothing to read the events from.
var ErrNoSource = errors.New("the delivery log is not kept, and no checkpoint holds the WAL from there on")

// committed is when the event of row d of the delivery log was committed: the log
// has the time from there to its delivery.
const committed = `(d.delivered_at - make_interval(secs => coalesce(d.latency_ms, 0) / 1000))`

// Plan looks at a request. The error is a *RangeError, ErrNoSource or
// saved.ErrNotFound when it can't be met.
func (s *Store) Plan(ctx context.Context, r Request) (Plan, error) {
	kept, err := s.kept(ctx)
	if err != nil {
		return Plan{}, err
	}
	from, err := s.begin(ctx, r, kept)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Source: FromTable, FromLSN: from, UntilLSN: r.UntilLSN, Filter: r.Filter}
	if p.UntilLSN == "" {
		p.UntilLSN = kept.Server
	}
	held, err := s.heldFrom(ctx, from)
	if err != nil {
		return Plan{}, err
	}
	behind, err := s.behind(ctx, from, kept.FromLSN)
	if err != nil {
		return Plan{}, err
	}
	if !s.o.DeliveryLog || behind {
		if held == "" && !s.o.DeliveryLog {
			return Plan{}, fmt.Errorf("replay from %s: %w", from, ErrNoSource)
		}
		if held == "" {
			return Plan{}, &RangeError{fmt.Sprintf("LSN %s is older than everything kept", from), kept}
		}
		p.Source, p.HeldSlot = FromWAL, held
	}
	return p, s.count(ctx, &p, held)
}

// kept tells from where on the delivery log is whole: from where it was trimmed to,
// or, if it never was, from the first thing that anybody noted.
func (s *Store) kept(ctx context.Context) (Kept, error) {
	var k Kept
	schema := func(table string) string { return pgx.Identifier{s.o.Schema, table}.Sanitize() }
	err := s.o.Database.QueryRow(ctx, `WITH noted AS (
			SELECT lsn, saved_at AS at FROM `+schema("checkpoints")+`
			UNION ALL SELECT base_lsn, made_at FROM `+schema("slot_state")+` WHERE NOT making AND base_lsn > '0/0'
			UNION ALL (SELECT d.commit_lsn, `+committed+` FROM `+s.deliveries+` d ORDER BY d.commit_lsn, d.tx_index LIMIT 1)),
		server AS (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS lsn),
		trimmed AS (SELECT lsn, at FROM `+s.trimmed+` WHERE what = 'deliveries')
		SELECT coalesce((SELECT lsn FROM trimmed), (SELECT min(lsn) FROM noted), (SELECT lsn FROM server))::text,
			coalesce((SELECT at FROM trimmed), (SELECT min(at) FROM noted), now()), (SELECT lsn FROM server)::text, now()`).
		Scan(&k.FromLSN, &k.FromTime, &k.Server, &k.Now)
	if err != nil {
		return k, fmt.Errorf("look up what can be sent again: %w", err)
	}
	return k, nil
}

// begin gives the LSN from which on events are read.
func (s *Store) begin(ctx context.Context, r Request, kept Kept) (string, error) {
	switch {
	case r.Checkpoint != "":
		c, err := s.o.Checkpoints.Get(ctx, r.Checkpoint)
		return c.LSN, err
	case r.FromLSN != "":
		ahead, err := s.behind(ctx, kept.Server, r.FromLSN)
		if err == nil && ahead {
			err = &RangeError{fmt.Sprintf("LSN %s is in the future", r.FromLSN), kept}
		}
		return r.FromLSN, err
	case r.Since.After(kept.Now):
		return "", &RangeError{r.Since.Format(time.RFC3339) + " is in the future", kept}
	}
	// Whatever was committed since then stands behind any watermark saved before. A
	// minute is left for clocks that differ.
	var from string
	err := s.o.Database.QueryRow(ctx, `SELECT lsn::text FROM `+pgx.Identifier{s.o.Schema, "checkpoints"}.Sanitize()+`
		WHERE saved_at <= $1::timestamptz - interval '1 minute' ORDER BY saved_at DESC, lsn LIMIT 1`, r.Since).Scan(&from)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && r.Since.Before(kept.FromTime):
		return "", &RangeError{r.Since.Format(time.RFC3339) + " is older than everything kept", kept}
	case errors.Is(err, pgx.ErrNoRows):
		return kept.FromLSN, nil
	case err != nil:
		return "", fmt.Errorf("look for a checkpoint before %s: %w", r.Since, err)
	}
	return from, nil
}

// behind tells whether one LSN comes before another.
func (s *Store) behind(ctx context.Context, a, b string) (before bool, err error) {
	if err := s.o.Database.QueryRow(ctx, `SELECT $1::text::pg_lsn < $2::text::pg_lsn`, a, b).Scan(&before); err != nil {
		return false, fmt.Errorf("compare LSNs: %w", err)
	}
	return before, nil
}

// heldFrom gives the latest held slot that has all from an LSN on; "" if none has.
func (s *Store) heldFrom(ctx context.Context, from string) (string, error) {
	held, err := s.o.Checkpoints.List(ctx, saved.Which{Held: true})
	if err != nil {
		return "", err
	}
	for _, c := range held {
		if c.Lost {
			continue
		}
		late, err := s.behind(ctx, from, c.LSN)
		if err != nil {
			return "", err
		}
		if !late {
			return c.HeldSlot, nil
		}
	}
	return "", nil
}

// count fills in what the log tells of the range. Rows that are gone from the table
// turn the plan to the held slot, if there is one.
func (s *Store) count(ctx context.Context, p *Plan, held string) error {
	q, err := s.selection(ctx, p.FromLSN, p.UntilLSN, p.Filter)
	if err != nil {
		return err
	}
	rows, err := s.o.Database.Query(ctx, `SELECT d.destination, coalesce(`+q.eventType+`, ''), count(*), count(*) FILTER (WHERE `+q.id+` IS NULL)
		FROM `+q.from+` GROUP BY 1, 2 ORDER BY 1, 2`, q.args...)
	if err != nil {
		return fmt.Errorf("count what would be sent: %w", err)
	}
	p.Counts, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Count, err error) {
		return c, row.Scan(&c.Destination, &c.EventType, &c.Deliveries, &c.Gone)
	})
	if err != nil {
		return fmt.Errorf("count what would be sent: %w", err)
	}
	var gone int64
	for _, c := range p.Counts {
		p.Total += c.Deliveries
		gone += c.Gone
	}
	if gone > 0 {
		s.except(p, held, gone)
	}
	if p.First, err = s.edge(ctx, q, "ASC"); err != nil {
		return err
	}
	if p.Last, err = s.edge(ctx, q, "DESC"); err != nil {
		return err
	}
	return s.countLetters(ctx, p)
}

// except says what becomes of deliveries whose rows are gone.
func (s *Store) except(p *Plan, held string, gone int64) {
	if held != "" {
		p.Source, p.HeldSlot = FromWAL, held
		return
	}
	if p.Source == FromWAL {
		return
	}
	p.Total -= gone
	reason := "their rows are gone from the table, and no checkpoint holds the WAL from there on"
	if p.ofRows() {
		reason += "; whether they fit can't be told"
	}
	p.Impossible = append(p.Impossible, Exception{gone, reason})
	kept := p.Counts[:0]
	for _, c := range p.Counts {
		if c.Deliveries -= c.Gone; c.Deliveries > 0 {
			kept = append(kept, c)
		}
	}
	p.Counts = kept
}

// countLetters counts what was not delivered, and so is no part of a replay.
func (s *Store) countLetters(ctx context.Context, p *Plan) error {
	rows, err := s.o.Database.Query(ctx, `SELECT state, count(*) FROM `+s.letters+` d WHERE state IN ('DEAD', 'SCHEDULED', 'DISCARDED')
		AND commit_lsn >= $1::text::pg_lsn AND commit_lsn < $2::text::pg_lsn AND (cardinality($3::text[]) = 0 OR destination = ANY ($3)) GROUP BY 1 ORDER BY 1`,
		p.FromLSN, p.UntilLSN, nonNil(p.Destinations))
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	reasons := map[string]string{
		"DEAD":      "they were given up, not delivered: see cdc-relay dlq replay",
		"DISCARDED": "somebody discarded them: see cdc-relay dlq replay",
		"SCHEDULED": "they are parked, and sent when their time has come",
	}
	var state string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error {
		p.Impossible = append(p.Impossible, Exception{n, reasons[state]})
		return nil
	})
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	return nil
}

func (s *Store) edge(ctx context.Context, q selection, order string) (*Edge, error) {
	var e Edge
	err := s.o.Database.QueryRow(ctx, `SELECT d.outbox_id, d.commit_lsn::text, `+committed+` FROM `+q.from+`
		ORDER BY d.commit_lsn `+order+`, d.tx_index `+order+` LIMIT 1`, q.args...).Scan(&e.ID, &e.LSN, &e.CommittedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the first and the last event: %w", err)
	}
	return &e, nil
}

// selection is the part of a statement that finds a range's deliveries d, each once
// however often it was sent, with their outbox rows o where those are there.
type selection struct {
	from      string
	args      []any
	reader    *outboxrow.Reader
	id        string // o's; NULL where the row is gone
	eventType string // o's
}

func (s *Store) selection(ctx context.Context, from, until string, f Filter) (selection, error) {
	table, err := catalog.Read(ctx, s.o.Database, s.o.Outbox)
	if err != nil {
		return selection{}, err
	}
	q := selection{reader: outboxrow.NewReader(table, s.o.Columns), args: []any{from, until}}
	q.eventType = q.reader.Column(s.o.Columns.EventType)
	var kind string
	q.id, kind = q.reader.ID()
	inner, outer := []string{"d.commit_lsn >= $1::text::pg_lsn", "d.commit_lsn < $2::text::pg_lsn"}, []string{}
	add := func(conditions *[]string, condition string, arg any) {
		q.args = append(q.args, arg)
		*conditions = append(*conditions, fmt.Sprintf(condition, len(q.args)))
	}
	if f.Since != nil {
		add(&inner, committed+" >= $%d", f.Since)
	}
	if f.Until != nil {
		add(&inner, committed+" < $%d", f.Until)
	}
	if len(f.Destinations) > 0 {
		add(&inner, "d.destination = ANY ($%d)", f.Destinations)
	}
	if len(f.EventTypes) > 0 {
		patterns := make([]string, len(f.EventTypes))
		for i, glob := range f.EventTypes {
			patterns[i] = likePattern(glob)
		}
		add(&outer, "("+q.id+" IS NULL OR "+q.eventType+" LIKE ANY ($%d))", patterns)
	}
	if f.AggregateID != "" {
		add(&outer, "("+q.id+" IS NULL OR "+q.reader.Column(s.o.Columns.AggregateID)+" = $%d)", f.AggregateID)
	}
	where := ""
	if len(outer) > 0 {
		where = " WHERE " + strings.Join(outer, " AND ")
	}
	q.from = `(SELECT DISTINCT ON (d.commit_lsn, d.tx_index, d.destination, d.outbox_id) d.* FROM ` + s.deliveries + ` d WHERE ` + strings.Join(inner, " AND ") + `
			ORDER BY d.commit_lsn, d.tx_index, d.destination, d.outbox_id, d.delivered_at) d
		LEFT JOIN ` + s.o.Outbox.Sanitize() + ` o ON ` + q.id + ` = d.outbox_id::` + kind + where
	return q, nil
}

// likePattern makes a pattern for LIKE out of a glob.
func likePattern(glob string) string {
	return strings.ReplaceAll(strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(glob), "*", "%")
}
