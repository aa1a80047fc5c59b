package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const secret = "whsec_YmVuY2ggc2VjcmV0IGJlbmNoIHNlY3JldA=="

// receiver verifies each signature and notes when an event came first.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	arrivals map[string]time.Time
	replayed []replayed
	first    time.Time
	last     time.Time

	takes   atomic.Int64 // nanoseconds that it spends on each
	refuses atomic.Bool  // everything
}

// replayed is a request of a replay.
type replayed struct{ id, aggregate, lsn string }

func newReceiver() *receiver {
	verifier, err := webhook.NewWebhook(secret)
	if err != nil {
		panic(err) // the secret stands above
	}
	r := &receiver{arrivals: make(map[string]time.Time)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		now := time.Now()
		body, err := io.ReadAll(h.Body)
		if err == nil {
			err = verifier.Verify(body, h.Header)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		if !r.answer(w) {
			return
		}
		id := h.Header.Get("Idempotency-Key")
		r.mu.Lock()
		if _, known := r.arrivals[id]; !known {
			r.arrivals[id] = now
			if r.first.IsZero() {
				r.first = now
			}
			r.last = now
		}
		if h.Header.Get("Cdc-Relay-Replay") != "" {
			r.replayed = append(r.replayed, replayed{id, h.Header.Get("Cdc-Relay-Aggregate-Id"), h.Header.Get("Cdc-Relay-Lsn")})
		}
		r.mu.Unlock()
	}))
	return r
}

// answer makes the receiver take its time, or refuse.
func (r *receiver) answer(w http.ResponseWriter) (taken bool) {
	if r.refuses.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return false
	}
	if takes := time.Duration(r.takes.Load()); takes > 0 {
		pause(takes)
	}
	return true
}

// span is when the first and the last event came.
func (r *receiver) span() (first, last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.last
}

// forget makes it count from the beginning.
func (r *receiver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.arrivals)
	r.first, r.last = time.Time{}, time.Time{}
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
