package decoder

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// value is one column of a tuple, in Postgres' text form. Its text lies in the
// message's buffer and must be copied to outlive it.
type value struct {
	text []byte
	kind byte // kindText, kindNull, kindUnchanged or kindBinary
}

// The kinds of column value in TupleData.
const (
	kindNull      = 'n'
	kindUnchanged = 'u' // a TOASTed value that an UPDATE left alone; never in an Insert of today's servers
	kindText      = 't'
	kindBinary    = 'b'
)

// readTuple fills d.tuple with one value for each of the relation's columns.
// Columns that the tuple doesn't have count as NULL; more than the relation has
// are an error.
func (d *Decoder) readTuple(r *reader, columns int) error {
	count := int(r.uint16("number of columns"))
	if count > columns {
		return fmt.Errorf("the row has %d columns, its relation %d", count, columns)
	}
	d.tuple = d.tuple[:0]
	for i := range count {
		v := value{kind: r.uint8("column kind")}
		switch v.kind {
		case kindNull, kindUnchanged:
		case kindText, kindBinary:
			v.text = r.take(int(int32(r.uint32("column length"))), "column value")
		default:
			if r.err == nil {
				return fmt.Errorf("column %d has unknown kind %q", i, v.kind)
			}
		}
		d.tuple = append(d.tuple, v)
	}
	for range columns - count {
		d.tuple = append(d.tuple, value{kind: kindNull})
	}
	return r.err
}

// event makes the Event of the row in d.tuple.
func (d *Decoder) event(rel *relation) *outbox.Event {
	e := &outbox.Event{
		AggregateType: d.text(rel.at.aggregateType),
		EventType:     d.text(rel.at.eventType),
	}
	if v := d.at(rel.at.aggregateID); v.kind == kindText {
		e.AggregateID, e.HasAggregate = string(v.text), true
	}
	if v := d.at(rel.at.headers); v.kind == kindText {
		e.Headers = bytes.Clone(v.text)
	}
	if v := d.at(rel.at.id); v.kind == kindText && len(v.text) > 0 {
		e.ID = string(v.text)
	} else {
		e.Defect = "column " + d.table.Columns.ID + " is " + describe(v)
	}
	d.payload(e, rel)
	return e
}

func (d *Decoder) payload(e *outbox.Event, rel *relation) {
	oid := rel.columns[rel.at.payload].oid
	switch oid {
	case oidJSON, oidJSONB:
		e.Kind = outbox.JSON
	case oidBytea:
		e.Kind = outbox.Binary
	default:
		e.Kind = outbox.Text
	}
	v := d.at(rel.at.payload)
	switch {
	case v.kind != kindText:
		e.Payload = nil
		e.Defect = "column " + d.table.Columns.Payload + " is " + describe(v)
	case oid == oidBytea:
		payload, err := decodeBytea(v.text)
		if err != nil {
			payload = bytes.Clone(v.text)
			e.Defect = "column " + d.table.Columns.Payload + ": " + err.Error()
		}
		e.Payload = payload
	default:
		e.Payload = append(make([]byte, 0, len(v.text)), v.text...)
	}
}

// at gives the value of a configured column, NULL for one that is not configured.
func (d *Decoder) at(i int) value {
	if i < 0 || i >= len(d.tuple) {
		return value{kind: kindNull}
	}
	return d.tuple[i]
}

func (d *Decoder) text(i int) string { return string(d.at(i).text) }

func describe(v value) string {
	switch v.kind {
	case kindNull:
		return "NULL"
	case kindUnchanged:
		return "not in the row (unchanged TOAST)"
	case kindBinary:
		return "in binary form"
	default:
		return "empty"
	}
}

// decodeBytea decodes the hex form of bytea, which the stream asks for by
// setting bytea_output on its connection.
// https://www.postgresql.org/docs/current/datatype-binary.html
func decodeBytea(text []byte) ([]byte, error) {
	digits, isHex := bytes.CutPrefix(text, []byte(`\x`))
	if !isHex {
		return nil, fmt.Errorf("bytea is not in hex form")
	}
	decoded := make([]byte, hex.DecodedLen(len(digits)))
	if _, err := hex.Decode(decoded, digits); err != nil {
		return nil, fmt.Errorf("bytea in hex form: %w", err)
	}
	return decoded, nil
}
