package operations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

// Journey is one event, and what became of it at each destination.
type Journey struct {
	OutboxID      string             `json:"outbox_id"`
	Row           bool               `json:"in_outbox"` // its row is still in the outbox
	AggregateType string             `json:"aggregate_type,omitempty"`
	AggregateID   string             `json:"aggregate_id,omitempty"`
	EventType     string             `json:"event_type,omitempty"`
	CreatedAt     *time.Time         `json:"created_at,omitempty"`
	ProcessedAt   *time.Time         `json:"processed_at,omitempty"`
	Deliveries    []Delivery         `json:"deliveries"`
	Letters       []deadletter.Entry `json:"dead_letters"`
}

// Delivery is a row of the delivery log.
type Delivery struct {
	Destination string    `json:"destination"`
	CommitLSN   string    `json:"commit_lsn"`
	Index       int64     `json:"tx_index"`
	DeliveredAt time.Time `json:"delivered_at"`
	Attempts    int       `json:"attempts"`
	StatusCode  int       `json:"status_code"`
	LatencyMS   float64   `json:"latency_ms"` // from the row's commit to the receiver's answer
	ReplayID    string    `json:"replay_id,omitempty"`
}

// ErrTooSlow says that a search was broken off, since it would have cost too much.
var ErrTooSlow = errors.New("the search took too long")

// searchTime is how long a search may take. Without an index it reads whole tables.
const searchTime = 5 * time.Second

// Journey looks for one event by its outbox id. It is found also when its row is gone,
// as long as the delivery log or the dead letters know it; nil when nothing does.
func (d *Desk) Journey(ctx context.Context, outboxID string) (*Journey, error) {
	found, err := d.journeys(ctx, d.o.Provision.Columns.ID, outboxID, 1)
	if err != nil {
		return nil, err
	}
	j := Journey{OutboxID: outboxID}
	if len(found) == 1 {
		j = found[0]
	}
	if err := d.follow(ctx, []*Journey{&j}); err != nil {
		return nil, err
	}
	if !j.Row && len(j.Deliveries)+len(j.Letters) == 0 {
		return nil, nil
	}
	if len(j.Letters) > 0 && !j.Row {
		l := j.Letters[0]
		j.AggregateType, j.AggregateID, j.EventType = l.AggregateType, l.AggregateID, l.EventType
	}
	return &j, nil
}

// Journeys looks for the latest events of an aggregate whose rows are in the outbox.
// The error is ErrTooSlow where the outbox is long and has no index on the aggregate.
func (d *Desk) Journeys(ctx context.Context, aggregateID string, limit int) ([]Journey, error) {
	if d.o.Provision.Columns.AggregateID == "" {
		return nil, nil
	}
	found, err := d.journeys(ctx, d.o.Provision.Columns.AggregateID, aggregateID, limit)
	if err != nil {
		return nil, err
	}
	each := make([]*Journey, len(found))
	for i := range found {
		each[i] = &found[i]
	}
	return found, d.follow(ctx, each)
}

func (d *Desk) journeys(ctx context.Context, column, value string, limit int) (found []Journey, err error) {
	columns := d.o.Provision.Columns
	text := func(name, empty string) string {
		if name == "" {
			return empty
		}
		return pgx.Identifier{name}.Sanitize()
	}
	created := text(columns.CreatedAt, "NULL")
	order := ""
	if columns.CreatedAt != "" {
		order = " ORDER BY " + created + " DESC"
	}
	query := fmt.Sprintf(`SELECT %s::text, coalesce(%s::text, ''), coalesce(%s::text, ''), coalesce(%s::text, ''), %s::timestamptz, %s::timestamptz FROM %s WHERE %s = $1%s LIMIT %d`,
		pgx.Identifier{columns.ID}.Sanitize(), text(columns.AggregateType, "NULL"), text(columns.AggregateID, "NULL"), text(columns.EventType, "NULL"),
		created, text(columns.ProcessedAt, "NULL"), d.o.Provision.Outbox.Sanitize(), pgx.Identifier{column}.Sanitize(), order, limit)
	err = d.searching(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, query, pgx.QueryExecModeExec, value)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (j Journey, err error) {
			j.Row = true
			return j, row.Scan(&j.OutboxID, &j.AggregateType, &j.AggregateID, &j.EventType, &j.CreatedAt, &j.ProcessedAt)
		})
		return err
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "22P02" { // invalid text representation: no row can have it
		return nil, nil
	}
	return found, err
}

// follow adds what the delivery log and the dead letters know of the events.
func (d *Desk) follow(ctx context.Context, journeys []*Journey) error {
	byID := make(map[string]*Journey, len(journeys))
	ids := make([]string, len(journeys))
	for i, j := range journeys {
		ids[i], byID[j.OutboxID] = j.OutboxID, j
	}
	err := d.searching(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT outbox_id, destination, commit_lsn::text, tx_index, delivered_at, attempts, coalesce(status_code, 0),
			coalesce(latency_ms, 0), coalesce(replay_id, '') FROM `+d.deliveries+` WHERE outbox_id = ANY ($1) ORDER BY delivered_at`, ids)
		if err != nil {
			return err
		}
		var id string
		var e Delivery
		_, err = pgx.ForEachRow(rows, []any{&id, &e.Destination, &e.CommitLSN, &e.Index, &e.DeliveredAt, &e.Attempts, &e.StatusCode, &e.LatencyMS, &e.ReplayID}, func() error {
			byID[id].Deliveries = append(byID[id].Deliveries, e)
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	letters, err := d.o.Letters.List(ctx, deadletter.Filter{OutboxIDs: ids}, len(ids)*10)
	for _, l := range letters {
		byID[l.OutboxID].Letters = append(byID[l.OutboxID].Letters, l)
	}
	return err
}

// searching runs queries that may find no index, for a bounded time.
func (d *Desk) searching(ctx context.Context, search func(pgx.Tx) error) error {
	err := pgx.BeginTxFunc(ctx, d.o.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d`, searchTime.Milliseconds())); err != nil {
			return err
		}
		return search(tx)
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "57014" { // query canceled
		return fmt.Errorf("look for events: %w", ErrTooSlow)
	}
	if err != nil {
		return fmt.Errorf("look for events: %w", err)
	}
	return nil
}
