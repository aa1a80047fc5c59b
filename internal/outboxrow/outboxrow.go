// Package outboxrow reads rows of the outbox table as the Events that the stream
// would have made of them: text for text, byte for byte. It starts no goroutine.
package outboxrow

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Columns are the outbox's columns; an empty name is a column that there isn't.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers, CreatedAt, ProcessedAt string
}

// Reader reads rows of one table, as the catalog described it.
type Reader struct {
	table   catalog.Table
	columns Columns
	kind    outbox.PayloadKind
}

// NewReader returns a Reader.
func NewReader(table catalog.Table, columns Columns) *Reader {
	r := &Reader{table: table, columns: columns, kind: outbox.Text}
	switch table.Columns[columns.Payload] {
	case "json", "jsonb":
		r.kind = outbox.JSON
	case "bytea":
		r.kind = outbox.Binary
	}
	return r
}

// ID gives the id column of alias o, and the type that a text has to be cast to
// for a comparison with it.
func (r *Reader) ID() (column, kind string) {
	return r.column(r.columns.ID, ""), r.table.Columns[r.columns.ID]
}

// Column gives a column of alias o in its text form, NULL where there is none.
func (r *Reader) Column(name string) string { return r.column(name, "::text") }

// List is what stands between SELECT and FROM, for the table under the alias o.
func (r *Reader) List() string {
	c := r.columns
	payload := r.column(c.Payload, "")
	if r.kind != outbox.Binary {
		// As bytes, so that they arrive as they are, NULL among them.
		payload = "convert_to(" + r.Column(c.Payload) + ", 'UTF8')"
	}
	return strings.Join([]string{
		r.Column(c.AggregateType), r.Column(c.AggregateID), r.Column(c.EventType), payload, r.Column(c.Headers), r.column(c.CreatedAt, "::timestamptz"),
	}, ", ")
}

func (r *Reader) column(name, cast string) string {
	if name == "" || r.table.Columns[name] == "" {
		return "NULL" + cast
	}
	return "o." + pgx.Identifier{name}.Sanitize() + cast
}

// Row takes what List asked for. Each is filled anew by a scan into Fields.
type Row struct {
	aggregateType, aggregateID, eventType, headers *string
	payload                                        []byte
	created                                        *time.Time
}

// Fields are what to scan into.
func (row *Row) Fields() []any {
	return []any{&row.aggregateType, &row.aggregateID, &row.eventType, &row.payload, &row.headers, &row.created}
}

// Event makes the event of a scanned row. Its position is left to the caller, and
// its commit time, for which the row's creation stands in.
func (r *Reader) Event(id string, row *Row) *outbox.Event {
	e := &outbox.Event{ID: id, Kind: r.kind, Payload: row.payload, AggregateType: text(row.aggregateType), EventType: text(row.eventType)}
	e.AggregateID, e.HasAggregate = text(row.aggregateID), row.aggregateID != nil
	if row.headers != nil {
		e.Headers = []byte(*row.headers)
	}
	if e.CommitTime = time.Now(); row.created != nil {
		e.CommitTime = *row.created
	}
	if e.Payload == nil {
		e.Defect = "column " + r.columns.Payload + " is NULL"
	}
	return e
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
