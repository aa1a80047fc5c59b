package checkpoint

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Querier reads. A *pgxpool.Pool is one.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ResumeOptions are what a Resume is made of.
type ResumeOptions struct {
	Database    Querier
	Schema      string
	Slot        string
	DeliveryLog bool // is kept, so that it can be asked
	In          <-chan *outbox.Event
	Out         chan<- *outbox.Event // closed by Run at its end
	Batch       int                  // the most events asked about at once
	Log         zerolog.Logger
}

// Resume stands between stream and dispatcher, and tells the dispatcher which
// deliveries were settled before a restart. The slot begins again at the first
// unsettled event, so among those that follow it many can be settled: they are
// asked about, in batches, up to the position at which the server was when the
// stream began. After that nothing can have been settled before, and events pass
// unseen.
type Resume struct {
	options ResumeOptions
	probe   string        // is anything recorded of a transaction or of later ones?
	query   string        // what is recorded of some events?
	until   atomic.Uint64 // an LSN
}

// NewResume returns a Resume that lets everything pass.
func NewResume(o ResumeOptions) *Resume {
	table := func(name string) string { return pgx.Identifier{o.Schema, name}.Sanitize() }
	letters, deliveries, slots := table("dead_letters"), table("deliveries"), table("slot_state")
	query := `WITH e AS (SELECT ord, lsn::pg_lsn, tx_index, id FROM unnest($1::text[], $2::bigint[], $3::text[]) WITH ORDINALITY AS u (lsn, tx_index, id, ord))
		SELECT e.ord, d.destination, d.state IN ('SCHEDULED', 'DEAD') FROM e JOIN ` + letters + ` d ON d.outbox_id = e.id AND d.commit_lsn = e.lsn AND d.tx_index = e.tx_index`
	if o.DeliveryLog {
		query += ` UNION SELECT e.ord, d.destination, false FROM e JOIN ` + deliveries + ` d
			ON d.commit_lsn = e.lsn AND d.tx_index = e.tx_index AND d.outbox_id = e.id`
	}
	// An event of the stream whose row is in the backlog; those of the backlog itself
	// come before its slot's first position.
	query += ` UNION SELECT e.ord, NULL, false FROM e JOIN ` + table("backlog") + ` b ON b.outbox_id = e.id
		WHERE e.lsn > (SELECT base_lsn FROM ` + slots + ` WHERE slot_name = $4)`
	// Nearly always everything that was settled lies within the first events, and what
	// follows them needs no look-up of each.
	last := `(SELECT max(commit_lsn) FROM ` + letters + `), (SELECT until_lsn FROM ` + slots + ` WHERE slot_name = $2)`
	if o.DeliveryLog {
		last += `, (SELECT max(commit_lsn) FROM ` + deliveries + `)`
	}
	probe := `SELECT coalesce($1::text::pg_lsn <= greatest(` + last + `), false)`
	return &Resume{options: o, probe: probe, query: query}
}

// CheckUntil makes events that were committed before the LSN be asked about. It
// is called before the stream hands on its first event.
func (r *Resume) CheckUntil(lsn outbox.LSN) { r.until.Store(uint64(lsn)) }

// Run passes events on until there are no more, or ctx ends. While the database
// can't be asked they wait: passing them on unasked could repeat them.
func (r *Resume) Run(ctx context.Context) error {
	defer close(r.options.Out)
	batch := make([]*outbox.Event, 0, r.options.Batch)
	for {
		batch = batch[:0]
		select {
		case event, more := <-r.options.In:
			if !more {
				return nil
			}
			batch = append(batch, event)
		case <-ctx.Done():
			return ctx.Err()
		}
		if uint64(batch[0].Position.Commit) < r.until.Load() {
			batch = r.fill(batch)
			err := persist(ctx, r.options.Log, "asking what was settled before the restart failed; events wait", func() error { return r.ask(ctx, batch) })
			if err != nil {
				return err
			}
		}
		for _, event := range batch {
			select {
			case r.options.Out <- event:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// fill adds what is waiting already.
func (r *Resume) fill(batch []*outbox.Event) []*outbox.Event {
	for len(batch) < r.options.Batch {
		select {
		case event, more := <-r.options.In:
			if !more {
				return batch // the next receive tells so again
			}
			batch = append(batch, event)
		default:
			return batch
		}
	}
	return batch
}

func (r *Resume) ask(ctx context.Context, batch []*outbox.Event) error {
	if recorded, err := r.anyFrom(ctx, batch[0].Position.Commit); err != nil || !recorded {
		return err
	}
	lsns, ids, indexes := make([]string, len(batch)), make([]string, len(batch)), make([]int64, len(batch))
	for i, e := range batch {
		lsns[i], indexes[i], ids[i] = e.Position.Commit.String(), int64(e.Position.Index), e.ID
	}
	rows, err := r.options.Database.Query(ctx, r.query, lsns, indexes, ids, r.options.Slot)
	if err != nil {
		return fmt.Errorf("ask what was settled before the restart: %w", err)
	}
	var place int
	var destination *string
	var parked bool
	_, err = pgx.ForEachRow(rows, []any{&place, &destination, &parked}, func() error {
		event := batch[place-1]
		if destination == nil {
			event.InBacklog = true
		} else {
			event.Settled = append(event.Settled, outbox.Settled{Destination: *destination, Parked: parked})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ask what was settled before the restart: %w", err)
	}
	return nil
}

// anyFrom tells whether anything is recorded of a transaction or of later ones.
func (r *Resume) anyFrom(ctx context.Context, commit outbox.LSN) (recorded bool, err error) {
	rows, err := r.options.Database.Query(ctx, r.probe, commit.String(), r.options.Slot)
	if err == nil {
		recorded, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	}
	if err != nil {
		return false, fmt.Errorf("ask whether anything was settled before the restart: %w", err)
	}
	return recorded, nil
}
