package checkpoint

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// ProcessedColumn sets processed_at on the outbox rows that every matching
// destination has: a Recorder.
type ProcessedColumn struct {
	o    ProcessedOptions
	mark string // the statement for the id's type; "" until it is known
	gone string // which of some ids it doesn't find
	open string // which of some events have open dead letters

	// late holds ids that were not found, and until when they are looked for. The
	// stream can bring a row before the transaction that inserted it has become
	// visible to others, by much when a synchronous standby has yet to answer.
	late    map[string]time.Time
	recent  map[string]time.Time // what late becomes when the transaction commits
	patient time.Duration
}

// ProcessedOptions say where to mark. The names are unquoted.
type ProcessedOptions struct {
	Table       pgx.Identifier
	IDColumn    string
	Column      string
	DeadLetters pgx.Identifier
}

// NewProcessedColumn returns the marker of one outbox.
func NewProcessedColumn(o ProcessedOptions) *ProcessedColumn {
	// The LATERAL with its LIMIT makes one look-up in dead_letters_outbox_id of each id,
	// and the OFFSET keeps the state out of it: in an outage the table grows faster than
	// its statistics, and the planner would read the index on state too, which then is
	// most of the table, for each id.
	return &ProcessedColumn{o: o, patient: time.Minute, open: `SELECT u.id FROM unnest($1::text[]) AS u (id) CROSS JOIN LATERAL
		(SELECT FROM (SELECT d.state FROM ` + o.DeadLetters.Sanitize() + ` d WHERE d.outbox_id = u.id OFFSET 0) of WHERE of.state IN ('SCHEDULED', 'DEAD') LIMIT 1) found`}
}

// Record marks the events that the batch completes.
func (p *ProcessedColumn) Record(ctx context.Context, tx pgx.Tx, batch []outbox.Outcome) error {
	var ids, unsure []string
	for _, o := range batch {
		switch {
		case !o.Completes || o.Event.ID == "":
		case o.Unsure:
			unsure = append(unsure, o.Event.ID)
		default:
			ids = append(ids, o.Event.ID)
		}
	}
	if len(unsure) > 0 {
		complete, err := p.withoutOpenLetters(ctx, tx, unsure)
		if err != nil {
			return err
		}
		ids = append(ids, complete...)
	}
	now := time.Now()
	p.recent = make(map[string]time.Time)
	for _, id := range ids {
		p.recent[id] = now.Add(p.patient)
	}
	for id, until := range p.late {
		if now.Before(until) {
			ids = append(ids, id)
			p.recent[id] = until
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return p.markAll(ctx, tx, ids)
}

// markAll marks the rows, and keeps in recent those that it doesn't find.
func (p *ProcessedColumn) markAll(ctx context.Context, tx pgx.Tx, ids []string) error {
	if p.mark == "" {
		if err := p.prepare(ctx, tx); err != nil {
			return err
		}
	}
	tag, err := tx.Exec(ctx, p.mark, ids)
	if err != nil {
		p.mark = "" // the column may have another type by now: look again
		return fmt.Errorf("mark rows of %s as processed: %w", p.o.Table.Sanitize(), err)
	}
	if tag.RowsAffected() >= int64(len(ids)) {
		clear(p.recent)
		return nil
	}
	rows, err := tx.Query(ctx, p.gone, ids)
	if err != nil {
		return fmt.Errorf("look for rows of %s that were not found: %w", p.o.Table.Sanitize(), err)
	}
	gone, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for rows of %s that were not found: %w", p.o.Table.Sanitize(), err)
	}
	// An application that deletes its rows at once has more and more that are not
	// found, which would be looked for in vain.
	gone = gone[:min(len(gone), maxLate)]
	missing := make(map[string]time.Time, len(gone))
	for _, id := range gone {
		missing[id] = p.recent[id]
	}
	p.recent = missing
	return nil
}

// maxLate is the most rows that are looked for once more.
const maxLate = 1000

// Committed takes note that the last batch was committed. again tells that there
// are rows to look for once more, though no further batch may come.
func (p *ProcessedColumn) Committed() (again bool) {
	p.late, p.recent = p.recent, nil
	return len(p.late) > 0
}

func (p *ProcessedColumn) withoutOpenLetters(ctx context.Context, tx pgx.Tx, ids []string) ([]string, error) {
	rows, err := tx.Query(ctx, p.open, ids)
	if err != nil {
		return nil, fmt.Errorf("look for open dead letters: %w", err)
	}
	open, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for open dead letters: %w", err)
	}
	return slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(open, id) }), nil
}

// prepare makes the statement for the type that the id has at present, so that
// the comparison is with the indexed column itself.
func (p *ProcessedColumn) prepare(ctx context.Context, tx pgx.Tx) error {
	var kind string
	err := tx.QueryRow(ctx, `SELECT format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = $1::text::regclass AND attname = $2 AND NOT attisdropped`,
		p.o.Table.Sanitize(), p.o.IDColumn).Scan(&kind)
	if err != nil {
		return fmt.Errorf("look up the type of %s.%s: %w", p.o.Table.Sanitize(), p.o.IDColumn, err)
	}
	p.gone = fmt.Sprintf(`SELECT u.id FROM unnest($1::text[]) AS u (id) WHERE NOT EXISTS (SELECT FROM %s o WHERE o.%s = u.id::%s AND o.%s IS NOT NULL)`,
		p.o.Table.Sanitize(), pgx.Identifier{p.o.IDColumn}.Sanitize(), kind, pgx.Identifier{p.o.Column}.Sanitize())
	p.mark = fmt.Sprintf(`UPDATE %[1]s SET %[2]s = now() WHERE %[3]s = ANY ($1::text[]::%[4]s[]) AND %[2]s IS NULL`, p.o.Table.Sanitize(),
		pgx.Identifier{p.o.Column}.Sanitize(), pgx.Identifier{p.o.IDColumn}.Sanitize(), kind)
	return nil
}
