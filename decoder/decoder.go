// Package decoder turns the bytes of pgoutput messages into the few messages
// that the relay acts on: Begin, Insert with its Event, Commit.
//
// It is pure: no I/O, no goroutine, no clock. It keeps what Relation messages
// said, which the protocol sends before the first change of a table on each
// connection, so one Decoder belongs to one connection and to one goroutine.
//
// It does not judge whether a row can be delivered: a row that can't is an
// Event with a Defect, because the stream must go on past it. Bytes that don't
// follow the protocol are an error, because nothing after them can be trusted.
//
// https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
package decoder

import (
	"errors"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Decoder decodes the messages of one connection in the order they came in.
type Decoder struct {
	table     Table
	relations map[uint32]*relation

	// The transaction being decoded; commit is 0 between transactions.
	commit     outbox.LSN
	commitTime time.Time
	next       uint32 // index of the next event

	tuple []value // the row being decoded; kept to be filled again
}

// New returns a Decoder for the messages of a fresh connection.
func New(table Table) *Decoder {
	return &Decoder{table: table, relations: make(map[uint32]*relation)}
}

// Decode decodes one message of protocol version 1. It returns nil for messages
// that concern no insert into the outbox. The result shares no memory with data.
//
// The error is a *MissingColumnError when the outbox has lost a column, and
// otherwise says what the message lacks.
func (d *Decoder) Decode(data []byte) (Message, error) {
	r := &reader{rest: data}
	switch kind := r.uint8("message type"); {
	case r.err != nil:
		return nil, r.err
	case kind == 'B':
		return named("Begin")(d.begin(r))
	case kind == 'C':
		return named("Commit")(d.end(r))
	case kind == 'R':
		return named("Relation")(nil, d.relation(r))
	case kind == 'I':
		return named("Insert")(d.insert(r))
	case kind == 'U', kind == 'D', kind == 'T', kind == 'O', kind == 'Y', kind == 'M':
		// Update, Delete, Truncate, Origin, Type and Message make no delivery.
		return nil, nil
	default:
		return nil, fmt.Errorf("unknown pgoutput message type %q", kind)
	}
}

// named puts the message's name before an error that its parsing gave.
func named(name string) func(Message, error) (Message, error) {
	return func(m Message, err error) (Message, error) {
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return m, nil
	}
}

func (d *Decoder) begin(r *reader) (Message, error) {
	m := Begin{FinalLSN: r.lsn("final LSN"), CommitTime: r.timestamp("commit time")}
	r.uint32("transaction id")
	if r.err != nil {
		return nil, r.err
	}
	if d.commit != 0 {
		return nil, fmt.Errorf("transaction %s has not ended", d.commit)
	}
	if m.FinalLSN == 0 {
		return nil, errors.New("the final LSN is 0")
	}
	d.commit, d.commitTime, d.next = m.FinalLSN, m.CommitTime, 0
	return m, nil
}

func (d *Decoder) end(r *reader) (Message, error) {
	r.uint8("flags")
	m := Commit{CommitLSN: r.lsn("commit LSN"), TransactionEndLSN: r.lsn("end LSN")}
	r.timestamp("commit time")
	if r.err != nil {
		return nil, r.err
	}
	if m.CommitLSN != d.commit {
		return nil, fmt.Errorf("commit LSN %s ends the transaction that began with %s", m.CommitLSN, d.commit)
	}
	if m.TransactionEndLSN <= m.CommitLSN {
		return nil, fmt.Errorf("end LSN %s is not after commit LSN %s", m.TransactionEndLSN, m.CommitLSN)
	}
	d.commit = 0
	return m, nil
}

func (d *Decoder) relation(r *reader) error {
	id := r.uint32("relation id")
	schema := r.cstring("namespace")
	name := r.cstring("relation name")
	r.uint8("replica identity")
	count := int(r.uint16("number of columns"))
	columns := make([]column, 0, min(count, 1600)) // 1600 is Postgres' own limit
	for range count {
		if r.err != nil {
			return r.err
		}
		r.uint8("column flags")
		c := column{name: r.cstring("column name"), oid: r.uint32("column type")}
		r.uint32("column type modifier")
		columns = append(columns, c)
	}
	if r.err != nil {
		return r.err
	}
	rel := &relation{columns: columns, outbox: id == d.table.OID || schema == d.table.Schema && name == d.table.Name}
	if rel.outbox {
		at, err := d.table.locate(columns)
		if err != nil {
			return err
		}
		rel.at = at
	}
	d.relations[id] = rel
	return nil
}

func (d *Decoder) insert(r *reader) (Message, error) {
	id := r.uint32("relation id")
	if r.err != nil {
		return nil, r.err
	}
	rel := d.relations[id]
	if rel == nil {
		return nil, fmt.Errorf("relation %d was never described", id)
	}
	if !rel.outbox {
		return nil, nil
	}
	if d.commit == 0 {
		return nil, errors.New("row outside of a transaction")
	}
	if marker := r.uint8("tuple marker"); r.err == nil && marker != 'N' {
		return nil, fmt.Errorf("tuple marker is %q, not 'N'", marker)
	}
	if err := d.readTuple(r, len(rel.columns)); err != nil {
		return nil, err
	}
	event := d.event(rel)
	event.Position = outbox.Position{Commit: d.commit, Index: d.next}
	event.CommitTime = d.commitTime
	d.next++
	return Insert{Event: event}, nil
}
