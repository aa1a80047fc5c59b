package inbox

import (
	"fmt"
	"slices"
)

// Machine says which events move an entity from which state to which. Events are
// proposals: one that comes before its turn waits, one whose time is over is stale,
// and one that no further event can make possible is rejected.
type Machine struct {
	Name        string
	Partners    []string // whose events it judges; empty for all
	States      []string
	Initial     string
	Final       []string
	Transitions []Transition
}

// Transition is one move.
type Transition struct {
	Event string // type
	From  []string
	To    string
}

// proposal is what a machine makes of an event.
type proposal int

const (
	unjudged   proposal = iota // the machine says nothing of this type
	move                       // it is the event's turn
	early                      // others have to come first
	stale                      // the entity is past it
	impossible                 // no further event leads there
)

// machine is a Machine that was checked.
type machine struct {
	Machine
	reaches map[string]map[string]bool // which states can follow a state, itself aside
}

func (m Machine) build() (*machine, error) {
	if m.Name == "" || m.Initial == "" || len(m.Transitions) == 0 {
		return nil, fmt.Errorf("machine %q: name, initial and transitions are needed", m.Name)
	}
	known := func(what, state string) error {
		if !slices.Contains(m.States, state) {
			return fmt.Errorf("machine %s: %s %q is not one of its states", m.Name, what, state)
		}
		return nil
	}
	if err := known("initial", m.Initial); err != nil {
		return nil, err
	}
	next := make(map[string][]string)
	for _, t := range m.Transitions {
		if t.Event == "" || len(t.From) == 0 {
			return nil, fmt.Errorf("machine %s: a transition wants event and from", m.Name)
		}
		for _, state := range append([]string{t.To}, t.From...) {
			if err := known("the state of transition "+t.Event, state); err != nil {
				return nil, err
			}
		}
		for _, from := range t.From {
			if slices.Contains(m.Final, from) {
				return nil, fmt.Errorf("machine %s: transition %s leaves the final state %s", m.Name, t.Event, from)
			}
			next[from] = append(next[from], t.To)
		}
	}
	for _, state := range m.Final {
		if err := known("final", state); err != nil {
			return nil, err
		}
	}
	built := &machine{Machine: m, reaches: make(map[string]map[string]bool)}
	for _, state := range m.States {
		built.reaches[state] = reachable(next, state)
	}
	return built, nil
}

// reachable gives what can follow a state.
func reachable(next map[string][]string, from string) map[string]bool {
	found := make(map[string]bool)
	queue := next[from]
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		if !found[state] {
			found[state] = true
			queue = append(queue, next[state]...)
		}
	}
	return found
}

// judges tells whether the machine concerns a partner's events.
func (m *machine) judges(partner string) bool {
	return len(m.Partners) == 0 || slices.Contains(m.Partners, partner)
}

// propose judges an event of an entity that is in a state. to is the state to move
// to; the reason is for people.
func (m *machine) propose(state, event string) (p proposal, to, reason string) {
	comesLater, isPast := false, false
	for _, t := range m.Transitions {
		if t.Event != event {
			continue
		}
		if slices.Contains(t.From, state) {
			return move, t.To, ""
		}
		p = impossible
		comesLater = comesLater || slices.ContainsFunc(t.From, func(from string) bool { return m.reaches[state][from] })
		isPast = isPast || t.To == state || m.reaches[t.To][state]
	}
	switch {
	case p == unjudged:
		return unjudged, "", ""
	case comesLater:
		return early, "", fmt.Sprintf("the entity is still %s", state)
	case isPast:
		return stale, "", fmt.Sprintf("the entity is %s already", state)
	}
	return impossible, "", fmt.Sprintf("nothing leads from %s to where %s would apply", state, event)
}
