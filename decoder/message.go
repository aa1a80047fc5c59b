package decoder

import (
	"time"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Message is what the relay needs of a pgoutput message: one of Begin, Insert
// or Commit. The messages that it does not need decode to nil.
type Message interface{ message() }

// Begin opens a transaction. The server sends only transactions that committed,
// so the LSN of the commit record is known from the start.
type Begin struct {
	FinalLSN   outbox.LSN // equals the CommitLSN of the Commit that follows
	CommitTime time.Time
}

// Insert is one row inserted into the outbox.
type Insert struct {
	Event *outbox.Event
}

// Commit closes the transaction.
type Commit struct {
	CommitLSN         outbox.LSN
	TransactionEndLSN outbox.LSN // what may be confirmed once every event is settled
}

func (Begin) message()  {}
func (Insert) message() {}
func (Commit) message() {}
