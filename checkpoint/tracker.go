// Package checkpoint answers which LSN is safe to confirm, and makes what was
// done durable before it is confirmed.
//
// Tracker is the pure heart: it is told what the stream read and what was
// settled, in whatever order settling happens, and gives the Watermark, which
// moves in commit order only. Settler is its waiting half: it collects outcomes
// and records each batch of them in one transaction, after which their
// positions count as settled.
//
//	Stream ──Begin/Track/Commit──► Tracker ──Watermark──► Stream.confirm
//	                                  ▲
//	Outcome ──► Settler ──one transaction──► Settle(Position)
//
// Nothing outside this package does arithmetic on LSNs.
package checkpoint

import (
	"fmt"
	"sort"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Tracker knows the transactions that were read and not confirmed, and how much
// of each is settled. It belongs to one goroutine.
//
// It outlives connections: what the server sends again after a reconnect is
// recognised by its Position and not handed on a second time.
type Tracker struct {
	// watermark is the highest LSN below which everything is settled. It never
	// falls.
	watermark outbox.LSN

	// transactions that are not behind the watermark, in commit order. Only the
	// last can be incomplete (end 0), when reading it is under way or broke off.
	transactions []*transaction

	// open is the transaction being read, nil between transactions. It stands in
	// transactions too, unless it was wholly settled before and is being sent
	// again.
	open *transaction

	// inFlight holds the size of each event that was handed on and isn't settled.
	inFlight map[outbox.Position]int
	bytes    int
}

// transaction counts what became of one transaction's events. Invariant:
// settled <= handed <= seen.
type transaction struct {
	commit  outbox.LSN
	at      time.Time  // of the commit, by the server's clock
	end     outbox.LSN // what its being settled makes safe; 0 until its Commit was read
	read    uint32     // the least index that may come next in the current reading
	seen    uint32     // the least index that was in no reading so far
	handed  uint32     // events handed on, over all readings
	settled uint32
}

func (t *transaction) done() bool { return t.end != 0 && t.settled == t.handed }

// NewTracker returns a Tracker that has read nothing.
func NewTracker() *Tracker {
	return &Tracker{inFlight: make(map[outbox.Position]int)}
}

// Begin starts the reading of the transaction that ends with the given commit LSN, and
// was committed at the given time.
func (t *Tracker) Begin(commit outbox.LSN, at time.Time) error {
	if t.open != nil {
		return fmt.Errorf("transaction %s begins within transaction %s", commit, t.open.commit)
	}
	if i, found := t.find(commit); found {
		t.open = t.transactions[i]
		t.open.read = 0
		return nil
	}
	if commit < t.watermark {
		// Settled before and sent again, because the server didn't get to know.
		t.open = &transaction{commit: commit, seen: ^uint32(0)}
		return nil
	}
	if n := len(t.transactions); n > 0 && t.transactions[n-1].commit > commit {
		return fmt.Errorf("transaction %s comes after transaction %s", commit, t.transactions[n-1].commit)
	}
	t.open = &transaction{commit: commit, at: at}
	t.transactions = append(t.transactions, t.open)
	return nil
}

// Track takes note of the next event of the open transaction; indexes rise, and
// may leave gaps. It returns false when the event was handed on before and must
// not be again.
func (t *Tracker) Track(position outbox.Position, size int) (fresh bool, err error) {
	if t.open == nil || t.open.commit != position.Commit || position.Index < t.open.read {
		return false, fmt.Errorf("event %s is not the next of the open transaction", position)
	}
	t.open.read = position.Index + 1
	if position.Index < t.open.seen {
		return false, nil
	}
	t.open.seen = position.Index + 1
	t.open.handed++
	t.inFlight[position] = size
	t.bytes += size
	return true, nil
}

// Commit ends the reading of the open transaction.
func (t *Tracker) Commit(end outbox.LSN) error {
	if t.open == nil {
		return fmt.Errorf("commit that ends at %s without a transaction", end)
	}
	t.open.end = max(t.open.end, end)
	t.open = nil
	t.advance()
	return nil
}

// Keepalive takes note of how far the server has read: everything committed
// before walEnd has been sent. Within a transaction that says nothing. Behind a
// complete one it becomes safe as soon as that one is settled, since nothing
// lies between.
func (t *Tracker) Keepalive(walEnd outbox.LSN) {
	if t.open != nil {
		return
	}
	if n := len(t.transactions); n > 0 {
		if last := t.transactions[n-1]; last.end != 0 {
			last.end = max(last.end, walEnd)
		}
		return
	}
	t.watermark = max(t.watermark, walEnd)
}

// Disconnect forgets the reading under way. What it handed on stays in flight,
// and the server will send the transaction again from its start.
func (t *Tracker) Disconnect() { t.open = nil }

// Settle takes note that an event is settled. A position that isn't in flight
// is ignored.
func (t *Tracker) Settle(position outbox.Position) {
	size, ok := t.inFlight[position]
	if !ok {
		return
	}
	delete(t.inFlight, position)
	t.bytes -= size
	if i, found := t.find(position.Commit); found {
		t.transactions[i].settled++
		t.advance()
	}
}

// Watermark is the LSN that may be confirmed: every event that was committed
// before it is settled. It is 0 until something is known.
func (t *Tracker) Watermark() outbox.LSN { return t.watermark }

// InFlight tells how many events, and bytes of them, were handed on and are not
// settled.
func (t *Tracker) InFlight() (events, bytes int) { return len(t.inFlight), t.bytes }

// Oldest is when the first transaction that isn't settled whole was committed; the zero
// time when there is none.
func (t *Tracker) Oldest() time.Time {
	if len(t.transactions) == 0 {
		return time.Time{}
	}
	return t.transactions[0].at
}

// Open tells whether a transaction is being read.
func (t *Tracker) Open() bool { return t.open != nil }

func (t *Tracker) find(commit outbox.LSN) (int, bool) {
	n := len(t.transactions)
	i := sort.Search(n, func(i int) bool { return t.transactions[i].commit >= commit })
	return i, i < n && t.transactions[i].commit == commit
}

// advance moves the watermark over the settled transactions at the front.
func (t *Tracker) advance() {
	n := 0
	for n < len(t.transactions) && t.transactions[n].done() {
		t.watermark = max(t.watermark, t.transactions[n].end)
		t.transactions[n] = nil
		n++
	}
	t.transactions = t.transactions[n:]
}
