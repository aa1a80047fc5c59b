package checkpoint

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// ProcessedColumn sets processed_at on the outbox rows that every matching
// destination has: a Recorder.
type ProcessedColumn struct {
	o       ProcessedOptions
	plain   string // statements for the id's type; "" until it is known
	guarded string
}

// ProcessedOptions say where to mark. The names are unquoted.
type ProcessedOptions struct {
	Table       pgx.Identifier
	IDColumn    string
	Column      string
	DeadLetters pgx.Identifier
}

// NewProcessedColumn returns the marker of one outbox.
func NewProcessedColumn(o ProcessedOptions) *ProcessedColumn { return &ProcessedColumn{o: o} }

// Record marks the events that the batch completes.
func (p *ProcessedColumn) Record(ctx context.Context, tx pgx.Tx, batch []outbox.Outcome) error {
	var plain, guarded []string
	for _, o := range batch {
		switch {
		case !o.Last || o.Event.ID == "":
		case o.Guarded:
			guarded = append(guarded, o.Event.ID)
		default:
			plain = append(plain, o.Event.ID)
		}
	}
	if p.plain == "" {
		if err := p.prepare(ctx, tx); err != nil {
			return err
		}
	}
	if err := p.mark(ctx, tx, p.plain, plain); err != nil {
		return err
	}
	return p.mark(ctx, tx, p.guarded, guarded)
}

func (p *ProcessedColumn) mark(ctx context.Context, tx pgx.Tx, statement string, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, statement, ids); err != nil {
		p.plain = "" // the column may have another type by now: look again
		return fmt.Errorf("mark rows of %s as processed: %w", p.o.Table.Sanitize(), err)
	}
	return nil
}

// prepare makes the statements for the type that the id has at present, so that
// the comparison is with the indexed column itself.
func (p *ProcessedColumn) prepare(ctx context.Context, tx pgx.Tx) error {
	var kind string
	err := tx.QueryRow(ctx, `SELECT format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = $1::text::regclass AND attname = $2 AND NOT attisdropped`,
		p.o.Table.Sanitize(), p.o.IDColumn).Scan(&kind)
	if err != nil {
		return fmt.Errorf("look up the type of %s.%s: %w", p.o.Table.Sanitize(), p.o.IDColumn, err)
	}
	id := pgx.Identifier{p.o.IDColumn}.Sanitize()
	p.plain = fmt.Sprintf(`UPDATE %s AS o SET %s = now() WHERE o.%s = ANY ($1::text[]::%s[])`,
		p.o.Table.Sanitize(), pgx.Identifier{p.o.Column}.Sanitize(), id, kind)
	p.guarded = p.plain + fmt.Sprintf(` AND NOT EXISTS (SELECT FROM %s d
		WHERE d.outbox_id = o.%s::text AND d.state IN ('SCHEDULED', 'DEAD'))`,
		p.o.DeadLetters.Sanitize(), id)
	return nil
}
