package dispatcher

import "time"

// Status is what a destination looks like at the moment.
type Status struct {
	Name      string
	Circuit   string    // closed, open or half-open; off where there is no breaker
	Paused    bool      // by a person
	HeldUntil time.Time // when the receiver has asked to be left alone; zero when it hasn't
	Queued    int       // deliveries in hand, replays aside
	Busy      int       // of those and of replays, under way
	Limit     int       // the most that are under way at once
	RateLimit float64   // requests a second; 0 for none
}

// Status tells of each destination. It may be called from any goroutine.
func (d *Dispatcher) Status() []Status {
	all := d.all()
	status := make([]Status, 0, len(all))
	for _, destination := range all {
		set := destination.current.Load()
		if set.router.nothing {
			continue // a reload has taken it out
		}
		queued, _, _ := destination.lanes.load()
		status = append(status, Status{
			Name: destination.name, Circuit: set.gate.circuit(), Paused: set.gate.isPaused(), HeldUntil: set.gate.held(),
			Queued: queued, Busy: destination.lanes.busy(), Limit: set.Concurrency, RateLimit: set.RateLimit,
		})
	}
	return status
}
