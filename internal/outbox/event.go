// Package outbox is the vocabulary that every other package speaks: what a
// committed outbox row is called (Event), what its name is (Position), what an
// exchange with a receiver left behind (Attempt) and how a delivery ended
// (Outcome). It holds no behaviour beyond that of its own words, does no I/O
// and starts no goroutine.
package outbox

import (
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
)

// LSN is a byte position in the write-ahead log.
// https://www.postgresql.org/docs/current/datatype-pg-lsn.html
type LSN = pglogrepl.LSN

// Position names one event on one timeline of one cluster: the LSN of the
// transaction's commit record and the event's place among the events of that
// transaction, counted from 0. It stays the same however often the server sends
// the transaction again. A message's own LSN does not: rows of one multi-row
// INSERT can share it.
type Position struct {
	Commit LSN
	Index  uint32
}

// String gives the position as it stands in the Cdc-Relay-Lsn header and in logs.
func (p Position) String() string {
	text := make([]byte, 0, 32)
	text = append(strconv.AppendUint(text, uint64(p.Commit>>32), 16), '/')
	text = append(strconv.AppendUint(text, uint64(uint32(p.Commit)), 16), '/')
	text = strconv.AppendUint(text, uint64(p.Index), 10)
	return strings.ToUpper(string(text))
}

// Compare orders positions as their events were committed: -1, 0 or +1.
func (p Position) Compare(q Position) int {
	switch {
	case p.Commit < q.Commit, p.Commit == q.Commit && p.Index < q.Index:
		return -1
	case p == q:
		return 0
	}
	return 1
}

// PayloadKind tells what the payload column holds, which decides the default
// Content-Type.
type PayloadKind uint8

// The kinds of payload column.
const (
	JSON   PayloadKind = iota // json and jsonb
	Text                      // text, varchar and every other type, by its text form
	Binary                    // bytea, decoded to its bytes
)

// ContentType is the Content-Type header of a payload of this kind.
func (k PayloadKind) ContentType() string {
	switch k {
	case JSON:
		return "application/json"
	case Binary:
		return "application/octet-stream"
	default:
		return "text/plain; charset=utf-8"
	}
}

// Event is one row inserted into the outbox by a committed transaction.
//
// It is immutable once the decoder has made it, so it may be shared between
// goroutines.
type Event struct {
	Position      Position
	ID            string // text of the id column; the idempotency key
	AggregateType string
	AggregateID   string
	HasAggregate  bool // false when the aggregate id is NULL or not configured: no order to keep
	EventType     string
	Payload       []byte // the column's text as Postgres sent it; the bytes themselves for bytea
	Kind          PayloadKind
	Headers       []byte // text of the headers column (a JSON object); nil when absent
	CommitTime    time.Time
	ReadAt        time.Time // when the stream had it decoded; zero for one that doesn't come from the stream

	// Defect says why the row can never be sent (a NULL payload, say). It is
	// dead-lettered with this reason by every destination that it matches.
	Defect string

	// Settled tells of destinations that are known to have settled this event
	// before, so that a restart does not repeat them. Usually nil.
	Settled []Settled

	// Replay is the job that sends the event once more; "" for an event of the stream,
	// whose settling alone counts for what may be confirmed.
	Replay string

	// InBacklog says that the row is sent from the backlog, so that this event of
	// the stream must not be.
	InBacklog bool
}

// Resend asks for an event to be sent once more, to one destination.
type Resend struct {
	Event       *Event
	Destination string
}

// Settled says that a destination has settled an event before.
type Settled struct {
	Destination string
	Parked      bool // it stands in the dead letters, and may hold back its lane
}

// SettledAt tells whether and how a destination has settled the event before.
func (e *Event) SettledAt(destination string) (s Settled, ok bool) {
	for _, known := range e.Settled {
		if known.Destination == destination {
			s = Settled{destination, s.Parked || known.Parked}
			ok = true
		}
	}
	return s, ok
}

// Size is the memory in bytes that the event holds in the window.
func (e *Event) Size() int {
	const overhead = 256
	return overhead + len(e.Payload) + len(e.Headers)
}

// Lane names the sequence whose order must be kept for one destination. ok is
// false for an event that has no order to keep. Should two aggregates ever have
// the same name, they share a lane, which costs them speed and nothing else.
func (e *Event) Lane() (key string, ok bool) {
	if !e.HasAggregate {
		return "", false
	}
	return e.AggregateType + "/" + e.AggregateID, true
}
