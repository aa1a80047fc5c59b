package dispatcher

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gobwas/glob"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// Match says which events a destination wants: those that fit one glob of each
// list that isn't empty, and for which the expression, when there is one, is
// true. The zero Match wants every event.
type Match struct {
	EventTypes     []string // globs: * any text, ? one character, [a-z], {a,b}
	AggregateTypes []string

	// Expression is a CEL expression over `event` (id, type, aggregate_type,
	// aggregate_id, committed_at) and `payload` (the parsed JSON).
	Expression string
}

// Router decides whether one destination wants an event. It is safe for
// concurrent use.
type Router struct {
	eventTypes     []*glob.Pattern
	aggregateTypes []*glob.Pattern
	program        cel.Program
	nothing        bool // wants no event
}

// NewRouter compiles a Match.
func NewRouter(m Match) (*Router, error) {
	r := &Router{}
	var err error
	if r.eventTypes, err = compileGlobs(m.EventTypes); err != nil {
		return nil, fmt.Errorf("event_types: %w", err)
	}
	if r.aggregateTypes, err = compileGlobs(m.AggregateTypes); err != nil {
		return nil, fmt.Errorf("aggregate_types: %w", err)
	}
	if m.Expression != "" {
		if r.program, err = compileExpression(m.Expression); err != nil {
			return nil, fmt.Errorf("expression: %w", err)
		}
	}
	return r, nil
}

func compileGlobs(patterns []string) ([]*glob.Pattern, error) {
	globs := make([]*glob.Pattern, 0, len(patterns))
	for _, pattern := range patterns {
		g, err := glob.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("glob %q: %w", pattern, err)
		}
		globs = append(globs, g)
	}
	return globs, nil
}

func compileExpression(expression string) (cel.Program, error) {
	env, err := cel.NewEnv(
		cel.Variable("event", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("payload", cel.DynType),
		cel.CrossTypeNumericComparisons(true),
		ext.Strings(),
	)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	if t := ast.OutputType(); t != cel.BoolType && t != cel.DynType {
		return nil, fmt.Errorf("gives %s, not true or false", t)
	}
	// The cost limit ends an expression that a large payload makes run away.
	return env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(1_000_000))
}

// Route tells whether the destination wants the event. The error says why the
// expression could not decide, as when the payload is no JSON or has no such
// field; use has(payload.field) for fields that may be absent.
func (r *Router) Route(e *outbox.Event) (bool, error) {
	if r.nothing || !matchesAny(r.eventTypes, e.EventType) || !matchesAny(r.aggregateTypes, e.AggregateType) {
		return false, nil
	}
	if r.program == nil {
		return true, nil
	}
	if e.Defect != "" {
		return true, nil // to be dead-lettered with its own reason
	}
	return r.evaluate(e)
}

func (r *Router) evaluate(e *outbox.Event) (bool, error) {
	var payload any
	if e.Kind == outbox.JSON {
		if err := json.Unmarshal(e.Payload, &payload); err != nil {
			return false, fmt.Errorf("match expression: the payload is not JSON: %w", err)
		}
	} else {
		payload = string(e.Payload)
	}
	result, _, err := r.program.Eval(map[string]any{
		"payload": payload,
		"event": map[string]any{
			"id": e.ID, "type": e.EventType,
			"aggregate_type": e.AggregateType, "aggregate_id": e.AggregateID,
			"committed_at": e.CommitTime.UTC().Format(time.RFC3339Nano),
		},
	})
	if err != nil {
		return false, fmt.Errorf("match expression: %w", err)
	}
	wanted, ok := result.Value().(bool)
	if !ok {
		return false, fmt.Errorf("match expression gives %v, not true or false", result.Type())
	}
	return wanted, nil
}

func matchesAny(globs []*glob.Pattern, text string) bool {
	for _, g := range globs {
		if g.Match(text) {
			return true
		}
	}
	return len(globs) == 0
}
