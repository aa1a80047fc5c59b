package replication

import (
	"testing"
	"time"
)

// TestPace: the reader rests only while events come fast, and the first event after a
// silence ends the resting.
func TestPace(t *testing.T) {
	p, now := &pace{}, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	events := func(n int, apart time.Duration) {
		for range n {
			now = now.Add(apart)
			p.count(now)
		}
	}
	for _, step := range []struct {
		what  string
		n     int
		apart time.Duration
		rest  time.Duration
	}{
		{"500 a second", 200, 2 * time.Millisecond, 0},
		{"5,000 a second", 200, 200 * time.Microsecond, time.Millisecond},
		{"500 a second again", 200, 2 * time.Millisecond, 0},
		{"50,000 a second", 1000, 20 * time.Microsecond, time.Millisecond},
		{"one after a silence", 1, time.Second, 0},
	} {
		if events(step.n, step.apart); p.rest() != step.rest {
			t.Errorf("%s: the reader rests %s, want %s", step.what, p.rest(), step.rest)
		}
	}
}
