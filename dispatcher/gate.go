package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/time/rate"
)

// Breaker says when a destination counts as down: when, of at least MinRounds
// rounds within Window, the given share failed. It is then left alone for Pause,
// after which one delivery at a time probes it.
type Breaker struct {
	FailureShare float64 // 0 turns the breaker off
	MinRounds    int
	Window       time.Duration
	Pause        time.Duration
}

// gate stands between a destination's lanes and its sender. It is closed while a
// person has paused the destination, while the receiver has asked to be left
// alone, and while the circuit breaker is open.
type gate struct {
	settings Breaker
	breaker  *gobreaker.TwoStepCircuitBreaker[struct{}]
	limiter  *rate.Limiter // nil for none
	now      func() time.Time

	mu        sync.Mutex
	paused    bool
	heldUntil time.Time
	openUntil time.Time // when the breaker lets a probe through
}

func newGate(name string, settings Breaker, perSecond float64, now func() time.Time, changed func(from, to string)) *gate {
	g := &gate{settings: settings, now: now}
	if perSecond > 0 {
		g.limiter = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/10)))
	}
	if settings.FailureShare > 0 {
		g.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Name: name, MaxRequests: 1, Interval: settings.Window, Timeout: settings.Pause,
			ReadyToTrip: func(c gobreaker.Counts) bool {
				return int(c.Requests) >= settings.MinRounds && float64(c.TotalFailures) >= settings.FailureShare*float64(c.Requests)
			},
			OnStateChange: func(_ string, from, to gobreaker.State) {
				if to == gobreaker.StateOpen {
					g.mu.Lock()
					g.openUntil = now().Add(settings.Pause)
					g.mu.Unlock()
				}
				changed(from.String(), to.String())
			},
		})
	}
	return g
}

// pause closes the gate until it is opened again.
func (g *gate) pause(paused bool) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	changed = g.paused != paused
	g.paused = paused
	return changed
}

func (g *gate) isPaused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.paused
}

// hold closes the gate for a while, at the receiver's wish.
func (g *gate) hold(wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := g.now().Add(wait); until.After(g.heldUntil) {
		g.heldUntil = until
	}
}

// Reasons why a gate is closed, as they stand with a parked event.
const (
	reasonPaused  = "the destination is paused"
	reasonHeld    = "the receiver asked to be left alone"
	reasonCircuit = "the circuit breaker is open"
)

// enter asks to make a round. When the gate is closed, reason says why and wait
// for how long at least. Otherwise leave must be called with the round's result.
func (g *gate) enter() (leave func(alive bool), wait time.Duration, reason string) {
	if wait, reason := g.closed(); reason != "" {
		return nil, wait, reason
	}
	if g.breaker == nil {
		return func(bool) {}, 0, ""
	}
	done, err := g.breaker.Allow()
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		return nil, max(g.openUntil.Sub(g.now()), time.Second), reasonCircuit
	}
	return func(alive bool) {
		if alive {
			done(nil)
		} else {
			done(errRoundFailed)
		}
	}, 0, ""
}

type roundError struct{}

func (roundError) Error() string { return "round failed" }

var errRoundFailed error = roundError{}

func (g *gate) closed() (time.Duration, string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch wait := g.heldUntil.Sub(g.now()); {
	case g.paused:
		return time.Second, reasonPaused
	case wait > 0:
		return wait, reasonHeld
	}
	return 0, ""
}

// circuit names the state of the breaker, as Status does.
func (g *gate) circuit() string {
	if g.breaker == nil {
		return "off"
	}
	return g.breaker.State().String()
}

// held is until when the receiver asked to be left alone; the zero time when it didn't.
func (g *gate) held() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.heldUntil.After(g.now()) {
		return time.Time{}
	}
	return g.heldUntil
}

// readiness tells how many parked deliveries may be taken up: none, one to probe
// with, or any number.
func (g *gate) readiness() readiness {
	if _, reason := g.closed(); reason != "" {
		return shut
	}
	if g.breaker == nil {
		return open
	}
	switch g.breaker.State() {
	case gobreaker.StateOpen:
		return shut
	case gobreaker.StateHalfOpen:
		return probing
	default:
		return open
	}
}

type readiness int

const (
	shut readiness = iota
	probing
	open
)

// throttle waits for the rate limit.
func (g *gate) throttle(ctx context.Context) error {
	if g.limiter == nil {
		return nil
	}
	return g.limiter.Wait(ctx)
}
