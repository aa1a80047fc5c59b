package replay

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/outboxrow"
)

// item is one delivery that was read, in the order of the commits. One without an
// event only moves the cursor.
type item struct {
	event       *outbox.Event
	destination string
	at          cursor
	gone        bool // its row is not in the table any more
}

// source gives a job's items batch by batch; none at the end.
type source interface {
	next(ctx context.Context) ([]item, error)
	close() error
}

// batch is how many deliveries, or events, are looked at in one statement.
const batch = 500

// tableSource reads the delivery log with the outbox rows.
type tableSource struct {
	store  *Store
	job    *Job
	at     cursor
	resume bool // some of it may have been sent before a restart
}

func (t *tableSource) close() error { return nil }

func (t *tableSource) next(ctx context.Context) ([]item, error) {
	inner := t.job.Filter
	inner.EventTypes, inner.AggregateID = nil, ""
	q, err := t.store.selection(ctx, t.job.FromLSN, t.job.UntilLSN, inner)
	if err != nil {
		return nil, err
	}
	statement, args := t.statement(q)
	rows, err := t.store.o.Database.Query(ctx, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("read what is to be sent again: %w", err)
	}
	items, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (item, error) { return t.scan(q.reader, row) })
	if err != nil {
		return nil, fmt.Errorf("read what is to be sent again: %w", err)
	}
	if len(items) > 0 {
		t.at = items[len(items)-1].at
	}
	return items, nil
}

// statement limits the log's rows before they are joined, so that each batch costs
// the same however much there is.
func (t *tableSource) statement(q selection) (string, []any) {
	n := len(q.args)
	from := strings.Replace(q.from, " WHERE ", fmt.Sprintf(` WHERE (d.commit_lsn, d.tx_index, d.destination) > ($%d::text::pg_lsn, $%d, $%d) AND `, n+1, n+2, n+3), 1)
	from = strings.Replace(from, "d.delivered_at) d", fmt.Sprintf("d.delivered_at LIMIT %d) d", batch), 1)
	args := append(q.args, t.at.lsn, t.at.index, t.at.destination)
	sent := "false"
	if t.resume {
		args = append(args, t.job.ID)
		sent = fmt.Sprintf(`(EXISTS (SELECT FROM %s r WHERE r.commit_lsn = d.commit_lsn AND r.tx_index = d.tx_index AND r.destination = d.destination
				AND r.outbox_id = d.outbox_id AND r.replay_id = $%[3]d)
			OR EXISTS (SELECT FROM %[2]s r WHERE r.outbox_id = d.outbox_id AND r.destination = d.destination AND r.replay_id = $%[3]d))`,
			t.store.deliveries, t.store.letters, len(args))
	}
	return `SELECT d.commit_lsn::text, d.tx_index, d.destination, d.outbox_id, ` + committed + `, ` + q.id + ` IS NULL, ` + sent + `, ` + q.reader.List() +
		` FROM ` + from + ` ORDER BY d.commit_lsn, d.tx_index, d.destination`, args
}

func (t *tableSource) scan(reader *outboxrow.Reader, row pgx.CollectableRow) (i item, err error) {
	var id string
	var sent bool
	var values outboxrow.Row
	e := &outbox.Event{}
	if err := row.Scan(append([]any{&i.at.lsn, &i.at.index, &i.at.destination, &id, &e.CommitTime, &i.gone, &sent}, values.Fields()...)...); err != nil {
		return i, err
	}
	i.destination = i.at.destination
	lsn, err := pglogrepl.ParseLSN(i.at.lsn)
	if err != nil {
		return i, err
	}
	i.at.lsn = lsn.String() // as outcomes write it
	if i.gone || sent {
		i.gone = i.gone && !t.job.ofRows()
		return i, nil
	}
	commit := e.CommitTime
	e = reader.Event(id, &values)
	e.CommitTime, e.Replay = commit, t.job.ID
	e.Position = outbox.Position{Commit: lsn, Index: uint32(i.at.index)}
	if t.job.fits(e) {
		i.event = e
	}
	return i, nil
}

// fits tells whether the event itself is meant.
func (f *Filter) fits(e *outbox.Event) bool {
	if f.AggregateID != "" && (!e.HasAggregate || e.AggregateID != f.AggregateID) {
		return false
	}
	return len(f.EventTypes) == 0 || slices.ContainsFunc(f.EventTypes, func(glob string) bool { return globMatches(glob, e.EventType) })
}

// globMatches: * stands for any text, whatever is in it.
func globMatches(glob, text string) bool {
	escape := strings.NewReplacer(`\`, `\\`, "?", `\?`, "[", `\[`, "/", "\x00")
	matched, err := path.Match(escape.Replace(glob), strings.ReplaceAll(text, "/", "\x00"))
	return err == nil && matched
}

// walSource reads a held slot.
type walSource struct {
	store  *Store
	job    *Job
	from   outbox.LSN
	after  outbox.Position // the cursor, as far as it names an event
	route  func(*outbox.Event) []string
	events chan *outbox.Event
	ended  chan error // has the reader's error, once
	cancel context.CancelFunc
}

// openWAL starts the reader's goroutine; close ends it and waits for it.
func openWAL(ctx context.Context, s *Store, job *Job, route func(*outbox.Event) []string, read func(context.Context, string, outbox.LSN, chan<- *outbox.Event) error) (*walSource, error) {
	w := &walSource{store: s, job: job, route: route, events: make(chan *outbox.Event, batch), ended: make(chan error, 1)}
	until, err := pglogrepl.ParseLSN(job.UntilLSN)
	if err != nil {
		return nil, fmt.Errorf("end of replay %s: %w", job.ID, err)
	}
	if w.from, err = pglogrepl.ParseLSN(job.FromLSN); err != nil {
		return nil, fmt.Errorf("beginning of replay %s: %w", job.ID, err)
	}
	if w.after.Commit, err = pglogrepl.ParseLSN(job.cursor.lsn); err != nil {
		return nil, fmt.Errorf("cursor of replay %s: %w", job.ID, err)
	}
	w.after.Index = uint32(job.cursor.index)
	ctx, w.cancel = context.WithCancel(ctx)
	go func() { w.ended <- read(ctx, job.HeldSlot, until, w.events) }()
	return w, nil
}

func (w *walSource) close() error {
	w.cancel()
	for range w.events { // until the reader has closed it
	}
	if err := <-w.ended; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// next waits for the first event and takes what else is there.
func (w *walSource) next(ctx context.Context) ([]item, error) {
	for {
		var events []*outbox.Event
		select {
		case first, more := <-w.events:
			if !more {
				err := <-w.ended
				w.ended <- err
				return nil, err
			}
			events = w.take(first)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		items, err := w.destinations(ctx, events)
		if err != nil || len(items) > 0 {
			return items, err
		}
	}
}

func (w *walSource) take(first *outbox.Event) []*outbox.Event {
	var events []*outbox.Event
	for event := first; ; {
		if w.meant(event) {
			event.Replay = w.job.ID
			events = append(events, event)
		}
		if len(events) == batch {
			return events
		}
		select {
		case next, more := <-w.events:
			if !more {
				return events
			}
			event = next
		default:
			return events
		}
	}
}

func (w *walSource) meant(e *outbox.Event) bool {
	since, until := w.job.Since, w.job.Until
	return e.Position.Commit >= w.from && e.Position.Compare(w.after) >= 0 && w.job.fits(e) &&
		(since == nil || !e.CommitTime.Before(*since)) && (until == nil || e.CommitTime.Before(*until))
}

// destinations finds where each event was delivered: the delivery log knows, or,
// where none is kept, the routes.
func (w *walSource) destinations(ctx context.Context, events []*outbox.Event) ([]item, error) {
	delivered := make(map[outbox.Position][]string)
	sent := make(map[outbox.Position][]string)
	if err := w.lookUp(ctx, events, delivered, sent); err != nil {
		return nil, err
	}
	var items []item
	for _, e := range events {
		names := delivered[e.Position]
		if !w.store.o.DeliveryLog {
			names = w.route(e)
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			i := item{event: e, destination: name, at: cursor{e.Position.Commit.String(), int64(e.Position.Index), name}}
			if e.Position == w.after && name <= w.job.cursor.destination {
				continue
			}
			if len(w.job.Destinations) > 0 && !slices.Contains(w.job.Destinations, name) {
				continue
			}
			if slices.Contains(sent[e.Position], name) {
				i.event = nil
			}
			items = append(items, i)
		}
	}
	return items, nil
}

func (w *walSource) lookUp(ctx context.Context, events []*outbox.Event, delivered, sent map[outbox.Position][]string) error {
	lsns, ids, indexes := make([]string, len(events)), make([]string, len(events)), make([]int64, len(events))
	for i, e := range events {
		lsns[i], indexes[i], ids[i] = e.Position.Commit.String(), int64(e.Position.Index), e.ID
	}
	rows, err := w.store.o.Database.Query(ctx, `WITH e AS (SELECT ord, lsn::pg_lsn, tx_index, id FROM unnest($1::text[], $2::bigint[], $3::text[]) WITH ORDINALITY AS u (lsn, tx_index, id, ord))
		SELECT e.ord, d.destination, coalesce(d.replay_id = $4, false) FROM e JOIN `+w.store.deliveries+` d ON d.commit_lsn = e.lsn AND d.tx_index = e.tx_index AND d.outbox_id = e.id
		UNION ALL SELECT e.ord, d.destination, true FROM e JOIN `+w.store.letters+` d ON d.outbox_id = e.id AND d.replay_id = $4`, lsns, indexes, ids, w.job.ID)
	if err != nil {
		return fmt.Errorf("look up where events were delivered: %w", err)
	}
	var place int
	var destination string
	var again bool
	_, err = pgx.ForEachRow(rows, []any{&place, &destination, &again}, func() error {
		at := events[place-1].Position
		delivered[at] = append(delivered[at], destination)
		if again {
			sent[at] = append(sent[at], destination)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look up where events were delivered: %w", err)
	}
	return nil
}
