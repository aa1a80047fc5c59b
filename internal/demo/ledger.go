package demo

import (
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Ledger sets what was committed against what arrived. It is safe for concurrent
// use, and its memory grows with what is under way and with the number of orders
// only.
type Ledger struct {
	mu        sync.Mutex
	underWay  map[string]time.Time // by outbox id: when its commit was sent
	last      map[uuid.UUID]int64  // by order: the last change that arrived
	latencies []time.Duration      // of the latest arrivals, a ring
	next      int
	figures   Figures
}

// Figures are the ledger's counts.
type Figures struct {
	Committed    int `json:"committed"`
	Delivered    int `json:"delivered"`
	Missing      int `json:"missing"`
	RolledBack   int `json:"rolled_back"`   // rows that must never arrive
	Invented     int `json:"invented"`      // and did
	Duplicates   int `json:"duplicates"`    // arrivals of what had arrived
	OutOfOrder   int `json:"out_of_order"`  // arrivals before an earlier change of their order
	BadSignature int `json:"bad_signature"` // arrivals that don't verify

	P50 time.Duration `json:"p50_ns"` // from sending the commit to the receipt
	P99 time.Duration `json:"p99_ns"`
}

// Clean tells whether everything committed arrived once, in order, signed, and
// nothing else did.
func (f Figures) Clean() bool {
	return f.Committed == f.Delivered && f.Missing == 0 && f.Invented == 0 &&
		f.Duplicates == 0 && f.OutOfOrder == 0 && f.BadSignature == 0
}

const latenciesKept = 1 << 16

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{underWay: make(map[string]time.Time), last: make(map[uuid.UUID]int64)}
}

func (l *Ledger) committing(ids []uuid.UUID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.underWay[id.String()] = now
	}
	l.figures.Committed += len(ids)
}

func (l *Ledger) rolledBack(rows int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.figures.RolledBack += rows
}

func (l *Ledger) badSignature() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.figures.BadSignature++
}

func (l *Ledger) arrived(id string, p payload, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	committed, expected := l.underWay[id]
	last := l.last[p.Order]
	switch {
	case p.RolledBack:
		l.figures.Invented++
		return
	case !expected:
		l.figures.Duplicates++
		return
	case p.Change != last+1:
		l.figures.OutOfOrder++
	}
	delete(l.underWay, id)
	l.last[p.Order] = max(last, p.Change)
	l.figures.Delivered++
	l.measure(now.Sub(committed))
}

func (l *Ledger) measure(latency time.Duration) {
	if len(l.latencies) < latenciesKept {
		l.latencies = append(l.latencies, latency)
		return
	}
	l.latencies[l.next] = latency
	l.next = (l.next + 1) % latenciesKept
}

// Figures gives the counts of this moment.
func (l *Ledger) Figures() Figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.figures
	f.Missing = len(l.underWay)
	if n := len(l.latencies); n > 0 {
		sorted := slices.Sorted(slices.Values(l.latencies))
		f.P50, f.P99 = sorted[n/2], sorted[n*99/100]
	}
	return f
}
