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
	again    int // requests for events that had come before
}

func newReceiver() *receiver {
	r := &receiver{arrivals: make(map[string]time.Time)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		io.Copy(io.Discard, h.Body)
		id, now := h.Header.Get("Idempotency-Key"), time.Now()
		r.mu.Lock()
		if _, known := r.arrivals[id]; !known {
			r.arrivals[id] = now
		} else {
			r.again++
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

func (r *receiver) repeats() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again
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
