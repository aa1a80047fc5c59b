package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"
)

const secret = "whsec_YmVuY2ggc2VjcmV0IGJlbmNoIHNlY3JldA=="

// receiver takes everything and notes when it came.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	arrivals map[string]time.Time
	replayed []replayed
}

// replayed is a request of a replay.
type replayed struct{ id, aggregate, lsn string }

func newReceiver() *receiver {
	r := &receiver{arrivals: make(map[string]time.Time)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		io.Copy(io.Discard, h.Body)
		id, now := h.Header.Get("Idempotency-Key"), time.Now()
		r.mu.Lock()
		if _, known := r.arrivals[id]; !known {
			r.arrivals[id] = now
		}
		if h.Header.Get("Cdc-Relay-Replay") != "" {
			r.replayed = append(r.replayed, replayed{id, h.Header.Get("Cdc-Relay-Aggregate-Id"), h.Header.Get("Cdc-Relay-Lsn")})
		}
		r.mu.Unlock()
	}))
	return r
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.arrivals)
}

func (r *receiver) replays() []replayed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.replayed)
}

// latencies are the times from sending each commit to its receipt, sorted.
func (r *receiver) latencies(committed map[string]time.Time) []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []time.Duration
	for id, at := range committed {
		if arrived, ok := r.arrivals[id]; ok {
			all = append(all, arrived.Sub(at))
		}
	}
	slices.Sort(all)
	return all
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
