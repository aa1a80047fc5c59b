package decoder

import "fmt"

// Table says which relation is the outbox and what its columns are called.
// Names are exact, as they stand in the catalog.
type Table struct {
	Schema  string
	Name    string
	OID     uint32 // under which it stays the outbox whatever it is called; 0 when not known
	Columns Columns
}

// Columns names the columns that make an Event. ID and Payload are needed; an
// empty name among the others means that the table has no such column. A name
// that is set must be there: going on without it would silently lose order,
// routing or headers.
type Columns struct {
	ID            string
	AggregateType string
	AggregateID   string
	EventType     string
	Payload       string
	Headers       string
}

// MissingColumnError is returned when the outbox stops having a column that the
// configuration names. Nothing of the transaction may be confirmed.
type MissingColumnError struct {
	Schema, Table, Column string
}

func (e *MissingColumnError) Error() string {
	return fmt.Sprintf("table %q.%q has no column %q any more", e.Schema, e.Table, e.Column)
}

// Object identifiers of the types that a payload column is told apart by.
// https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat
const (
	oidBytea = 17
	oidJSON  = 114
	oidJSONB = 3802
)

// relation is what a Relation message said of one table.
type relation struct {
	outbox  bool
	columns []column
	at      places
}

type column struct {
	name string
	oid  uint32
}

// places holds the index of each of the outbox's columns, -1 when not configured.
type places struct {
	id, aggregateType, aggregateID, eventType, payload, headers int
}

// locate finds each configured column among those of the relation.
func (t Table) locate(columns []column) (places, error) {
	var missing error
	find := func(name string) int {
		if name == "" {
			return -1
		}
		for i, c := range columns {
			if c.name == name {
				return i
			}
		}
		if missing == nil {
			missing = &MissingColumnError{Schema: t.Schema, Table: t.Name, Column: name}
		}
		return -1
	}
	at := places{
		id:            find(t.Columns.ID),
		aggregateType: find(t.Columns.AggregateType),
		aggregateID:   find(t.Columns.AggregateID),
		eventType:     find(t.Columns.EventType),
		payload:       find(t.Columns.Payload),
		headers:       find(t.Columns.Headers),
	}
	return at, missing
}
