package operations

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Action is something that a person did, or wanted to.
type Action struct {
	ID      int64           `json:"id"`
	At      time.Time       `json:"at"`
	Actor   string          `json:"actor"`
	Action  string          `json:"action"`
	Subject string          `json:"subject,omitempty"`
	Detail  json.RawMessage `json:"detail"`
	Outcome *string         `json:"outcome"` // null while under way, and for what was broken off
}

// intent is an action before it is done.
type intent struct {
	actor, action, subject string
	detail                 any
}

// audited does something and leaves a record of it. Nothing is done of which no record
// could be written first.
func (d *Desk) audited(ctx context.Context, i intent, do func() (outcome string, err error)) error {
	detail, err := json.Marshal(i.detail)
	if err != nil {
		return fmt.Errorf("record %s: %w", i.action, err)
	}
	var id int64
	err = d.o.Pool.QueryRow(ctx, `INSERT INTO `+d.audits+` (actor, action, subject, detail) VALUES ($1, $2, $3, $4::text::jsonb) RETURNING id`,
		i.actor, i.action, i.subject, string(detail)).Scan(&id)
	if err != nil {
		return fmt.Errorf("record %s, which is not done therefore: %w", i.action, err)
	}
	outcome, err := do()
	if err != nil {
		outcome = "failed: " + err.Error()
	}
	// Also when the person has gone away meanwhile.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, unwritten := d.o.Pool.Exec(ctx, `UPDATE `+d.audits+` SET outcome = $2 WHERE id = $1`, id, outcome); unwritten != nil && err == nil {
		err = fmt.Errorf("%s is done (%s), but its record isn't complete: %w", i.action, outcome, unwritten)
	}
	return err
}

// Actions gives the records of actions, the latest first; before is the id of the last
// one of the page before, 0 for the first page.
func (d *Desk) Actions(ctx context.Context, before int64, limit int) ([]Action, error) {
	rows, err := d.o.Pool.Query(ctx, `SELECT id, at, actor, action, subject, detail, outcome FROM `+d.audits+`
		WHERE $1 = 0 OR id < $1 ORDER BY id DESC LIMIT $2`, before, limit)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	actions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Action, err error) {
		return a, row.Scan(&a.ID, &a.At, &a.Actor, &a.Action, &a.Subject, &a.Detail, &a.Outcome)
	})
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return actions, nil
}
