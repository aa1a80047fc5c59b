// Package demo is the two ends of `cdc-relay demo`: an application that writes
// orders and outbox rows in transactions of which some roll back, and a receiver
// that verifies what arrives. Between them they know what should have happened,
// so that the summary can say whether it did.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// Schema is the application's own table, beside the outbox.
const Schema = `CREATE TABLE IF NOT EXISTS orders (id uuid PRIMARY KEY, changes bigint NOT NULL, total_cents bigint NOT NULL)`

// Writer writes orders until its context ends.
type Writer struct {
	URL     string
	Rate    int // transactions a second, over all sessions
	Ledger  *Ledger
	Rolling float64 // share of transactions that roll back
}

const (
	sessions         = 4
	ordersPerSession = 50
)

// order is one aggregate, and payload what its events say.
type order struct {
	id      uuid.UUID
	changes int64
}

type payload struct {
	Order      uuid.UUID `json:"order"`
	Change     int64     `json:"change"` // counts the order's committed changes from 1
	TotalCents int64     `json:"total_cents"`
	RolledBack bool      `json:"rolled_back"`
	Note       string    `json:"note"`
}

// Run writes from several sessions, each with orders of its own. It returns when
// ctx ends and every session has.
func (w *Writer) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for range sessions {
		group.Go(func() error { return w.session(ctx) })
	}
	return group.Wait()
}

func (w *Writer) session(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.URL)
	if err != nil {
		return unlessOver(ctx, fmt.Errorf("connect: %w", err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	orders := make([]*order, ordersPerSession)
	for i := range orders {
		orders[i] = &order{id: uuid.New()}
	}
	pace := time.NewTicker(time.Second * sessions / time.Duration(max(1, w.Rate)))
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		// The transaction in hand is finished also when ctx ends meanwhile, so that
		// the ledger knows its end for certain.
		if err := w.transaction(context.WithoutCancel(ctx), conn, orders); err != nil {
			return err
		}
	}
}

func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// transaction changes a few orders, with an outbox row for each change.
func (w *Writer) transaction(ctx context.Context, conn *pgx.Conn, orders []*order) (err error) {
	rollBack := rand.Float64() < w.Rolling
	tx, err := conn.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { err = errors.Join(err, ignoreClosed(tx.Rollback(ctx))) }()
	changed := make(map[*order]int64)
	var ids []uuid.UUID
	for range 1 + rand.IntN(4) {
		o := orders[rand.IntN(len(orders))]
		if changed[o] == 0 {
			changed[o] = o.changes
		}
		changed[o]++
		id, err := w.change(ctx, tx, o, changed[o], rollBack)
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if rollBack {
		w.Ledger.rolledBack(len(ids))
		return nil
	}
	w.Ledger.committing(ids, time.Now())
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	for o, changes := range changed {
		o.changes = changes
	}
	return nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return err
}

func (w *Writer) change(ctx context.Context, tx pgx.Tx, o *order, change int64, rollBack bool) (uuid.UUID, error) {
	id := uuid.New()
	total := rand.Int64N(100_000)
	body, err := json.Marshal(payload{Order: o.id, Change: change, TotalCents: total, RolledBack: rollBack, Note: "naïve ☕ \"quoted\""})
	if err != nil {
		return id, fmt.Errorf("encode payload: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET changes = excluded.changes, total_cents = excluded.total_cents`, o.id, change, total); err != nil {
		return id, fmt.Errorf("write order: %w", err)
	}
	kind := "order.updated"
	if change == 1 {
		kind = "order.created"
	}
	if _, err := tx.Exec(ctx, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
		VALUES ($1, 'order', $2, $3, $4)`, id, o.id, kind, string(body)); err != nil {
		return id, fmt.Errorf("write outbox row: %w", err)
	}
	return id, nil
}
