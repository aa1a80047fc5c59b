package replication

import "time"

// pace tells when events come so fast that the reader does better to wait a moment
// before each read: the server then fills the connection's buffer, and one read brings
// many. Else each change that the server sends wakes the reader, and on a machine, or a
// processor, that they share the server has to wait after each until the reader and all
// that it woke sleep again: at some thousands a second it falls behind, and stays so.
type pace struct {
	since  time.Time // when the counting began
	events int       // since then
	fast   bool
}

const (
	paceOver = 10 * time.Millisecond // what the rate is told from
	paceFast = 10                    // events in that time
	paceRest = time.Millisecond      // the most that waiting costs an event
)

// count takes note of an event.
func (p *pace) count(now time.Time) {
	if p.events++; now.Sub(p.since) < paceOver {
		return
	}
	// After a silence too few were counted for their time, as it should be.
	p.fast = float64(p.events)/now.Sub(p.since).Seconds() >= paceFast/paceOver.Seconds()
	p.since, p.events = now, 0
}

// rest tells how long to wait before the next read.
func (p *pace) rest() time.Duration {
	if p.fast {
		return paceRest
	}
	return 0
}
