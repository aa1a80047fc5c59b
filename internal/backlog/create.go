package backlog

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Create makes the slot, and lists its backlog by the snapshot that the slot
// begins with. It waits for the transactions that are under way on the server,
// since the slot can't begin before they end.
//
// It is noted beforehand that the slot is being made: one whose making was broken
// off can't be told from one that lost its backlog, and has to be made again.
//
// https://www.postgresql.org/docs/current/protocol-replication.html
func (b *Backlog) Create(ctx context.Context, replication *pgconn.Config, failover bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.announce(ctx); err != nil {
		return err
	}
	config := replication.Copy()
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open replication connection: %w", err)
	}
	// The snapshot lives until this connection does anything else.
	defer conn.Close(context.WithoutCancel(ctx))
	statement := fmt.Sprintf(`CREATE_REPLICATION_SLOT "%s" LOGICAL pgoutput EXPORT_SNAPSHOT`, b.o.Slot)
	if failover {
		statement = fmt.Sprintf(`CREATE_REPLICATION_SLOT "%s" LOGICAL pgoutput (SNAPSHOT 'export', FAILOVER)`, b.o.Slot)
	}
	results, err := conn.Exec(ctx, statement).ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 3 {
		return errors.New("the server tells no snapshot")
	}
	row := results[0].Rows[0] // slot_name, consistent_point, snapshot_name, output_plugin
	return b.takeAt(ctx, string(row[1]), string(row[2]))
}

func (b *Backlog) announce(ctx context.Context) error {
	tx, err := b.o.Database.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	if _, err := tx.Exec(ctx, `DELETE FROM `+b.table); err != nil {
		return fmt.Errorf("clear the backlog: %w", err)
	}
	if _, err := tx.Exec(ctx, `INSERT INTO `+b.state+` (slot_name, making) VALUES ($1, true)
		ON CONFLICT (slot_name) DO UPDATE SET making = true, finished_at = NULL`, b.o.Slot); err != nil {
		return fmt.Errorf("note that the slot is being made: %w", err)
	}
	return tx.Commit(ctx)
}

// takeAt lists what the slot's own snapshot sees.
func (b *Backlog) takeAt(ctx context.Context, consistent, snapshot string) error {
	point, err := pglogrepl.ParseLSN(consistent)
	if err != nil {
		return fmt.Errorf("the slot's first position: %w", err)
	}
	base := (point - 1).String()
	room, err := b.o.Database.Begin(ctx)
	if err != nil {
		return err
	}
	defer room.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	if err := b.makeRoom(ctx, room, base); err != nil {
		return err
	}
	if err := room.Commit(ctx); err != nil {
		return err
	}
	tx, err := b.o.Database.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	for _, statement := range []string{
		`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`,
		`SET TRANSACTION SNAPSHOT '` + strings.ReplaceAll(snapshot, "'", "''") + `'`,
	} {
		if _, err := tx.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("take over the slot's snapshot: %w", err)
		}
	}
	if err := b.fill(ctx, tx); err != nil {
		return err
	}
	if err := b.note(ctx, tx, base, base); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return b.setBounds(base, base)
}
