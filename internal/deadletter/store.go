// Package deadletter keeps, in Postgres, the deliveries that failed: those given
// up, which wait for a person, and those parked for a later attempt.
//
// Parked events of one lane (an aggregate at a destination) stand in the order of
// their positions. Only the first of them has a time for its next attempt; the
// others wait behind it, and the end of each makes the next one due.
//
// A parked event is taken up only once the slot has confirmed past its commit:
// then every earlier event is settled, so none of its lane can still come from
// the stream and be overtaken.
//
// The package starts no goroutine. A Store is safe for concurrent use.
package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// State is where a dead letter stands.
type State string

// The states of a dead letter.
const (
	Scheduled State = "SCHEDULED" // parked: a further attempt follows
	Dead      State = "DEAD"      // given up
	Delivered State = "DELIVERED" // a later attempt, or a replay, reached the receiver
	Discarded State = "DISCARDED" // somebody decided that it shall not be sent
)

// States lists all states.
func States() []State { return []State{Scheduled, Dead, Delivered, Discarded} }

// Database is what the store reads and writes with outside of settle batches. A
// *pgxpool.Pool is one.
type Database interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Options are what a Store is made of.
type Options struct {
	Database Database
	Schema   string
	Slot     string // whose confirmed position tells what may be taken up
	// Blocking names the destinations at which a DEAD event keeps the later ones
	// of its lane waiting, until it is replayed or discarded.
	Blocking []string
	Now      func() time.Time
}

// Store is the dead_letters table.
type Store struct {
	db       Database
	table    string // quoted
	pauses   string // quoted name of paused_destinations
	slot     string
	blocking []string
	now      func() time.Time
}

// NewStore returns the store in the given schema.
func NewStore(o Options) *Store {
	return &Store{
		db: o.Database, slot: o.Slot,
		table:    pgx.Identifier{o.Schema, "dead_letters"}.Sanitize(),
		pauses:   pgx.Identifier{o.Schema, "paused_destinations"}.Sanitize(),
		blocking: append([]string{}, o.Blocking...), now: o.Now,
	}
}

// Letter is a parked delivery that was taken up.
type Letter struct {
	ID          int64
	Event       *outbox.Event
	Destination string
	Ordered     bool
	Rounds      int // goes at it so far
	Tries       int // attempts so far
	ReplayID    string
	Lease       time.Time // until when nobody else takes it up
}

// Lane names a sequence of parked events.
type Lane struct {
	Destination string
	Key         string
}

// holdsBack is the condition by which row e keeps later rows of its lane from
// being sent. $blocking stands for the parameter with the blocking destinations.
const holdsBack = `(%[1]s.state = 'SCHEDULED' OR %[1]s.state = 'DEAD' AND %[1]s.destination = ANY (%[2]s::text[]))`

func holds(alias, blocking string) string { return fmt.Sprintf(holdsBack, alias, blocking) }

func kindName(k outbox.PayloadKind) string {
	switch k {
	case outbox.JSON:
		return "json"
	case outbox.Binary:
		return "binary"
	default:
		return "text"
	}
}

func kindOf(name string) outbox.PayloadKind {
	switch name {
	case "json":
		return outbox.JSON
	case "binary":
		return outbox.Binary
	default:
		return outbox.Text
	}
}
