package inbox

import (
	"sync"
	"time"
)

// health knows of partners whose events fail one after the other: most likely what
// their handler depends on is down. Then one event at a time is tried, so that not all
// of them spend their attempts and are quarantined.
type health struct {
	now func() time.Time

	mu       sync.Mutex
	failures map[string]int       // in a row
	next     map[string]time.Time // when a probe may be made
}

const (
	sickAfter  = 20 // failures in a row
	probeEvery = 5 * time.Second
)

func newHealth(now func() time.Time) *health {
	return &health{now: now, failures: make(map[string]int), next: make(map[string]time.Time)}
}

// split gives the partners of whom nothing, or one event only, may be taken up.
func (h *health) split() (held, probes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for partner, n := range h.failures {
		if n < sickAfter {
			continue
		}
		held = append(held, partner)
		if !now.Before(h.next[partner]) {
			probes = append(probes, partner)
		}
	}
	return held, probes
}

func (h *health) probing(partner string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.next[partner] = h.now().Add(probeEvery)
}

func (h *health) failed(partner string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures[partner]++
	if h.failures[partner] == sickAfter {
		h.next[partner] = h.now().Add(probeEvery)
	}
}

func (h *health) succeeded(partner string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.failures, partner)
	delete(h.next, partner)
}
