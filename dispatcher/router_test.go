package dispatcher

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

func TestRoute(t *testing.T) {
	t.Parallel()
	event := &outbox.Event{
		ID: "e", AggregateType: "order", AggregateID: "a-1", EventType: "order.paid.v2",
		Payload: []byte(`{"total": 250, "customer": {"country": "DE"}, "big": 12345678901234567890}`),
	}
	cases := []struct {
		match  Match
		wanted bool
	}{
		{Match{}, true},
		{Match{EventTypes: []string{"order.*"}}, true},
		{Match{EventTypes: []string{"invoice.*", "order.*.v2"}}, true},
		{Match{EventTypes: []string{"invoice.*"}}, false},
		{Match{EventTypes: []string{"*"}, AggregateTypes: []string{"customer"}}, false},
		{Match{EventTypes: []string{"order.{paid,sent}.v[0-9]"}}, true},
		{Match{Expression: `event.type.startsWith("order.") && payload.total > 100`}, true},
		{Match{Expression: `payload.total > 300`}, false},
		{Match{Expression: `has(payload.customer.country) && payload.customer.country == "DE"`}, true},
		{Match{Expression: `has(payload.missing) && payload.missing.x`}, false},
		{Match{EventTypes: []string{"invoice.*"}, Expression: `payload.nothing`}, false}, // not evaluated
	}
	for _, c := range cases {
		router, err := NewRouter(c.match)
		if err != nil {
			t.Errorf("%+v: %v", c.match, err)
			continue
		}
		if wanted, err := router.Route(event); err != nil || wanted != c.wanted {
			t.Errorf("%+v: %t, %v, want %t", c.match, wanted, err, c.wanted)
		}
	}
}

func TestRouteTellsWhatItCanNotDecide(t *testing.T) {
	t.Parallel()
	for expression, payload := range map[string]string{
		`payload.total > 100`: `{}`,
		`payload.total > 1`:   `not json`,
		`payload.total`:       `{"total": 3}`,
	} {
		router, err := NewRouter(Match{Expression: expression})
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if _, err := router.Route(&outbox.Event{Payload: []byte(payload)}); err == nil {
			t.Errorf("%s over %s: no error", expression, payload)
		}
	}
}

func TestNewRouterRefuses(t *testing.T) {
	t.Parallel()
	for _, m := range []Match{
		{EventTypes: []string{"[a"}},
		{AggregateTypes: []string{"{a"}},
		{Expression: `payload.`},
		{Expression: `unknown == 1`},
		{Expression: `1 + 1`},
	} {
		if _, err := NewRouter(m); err == nil {
			t.Errorf("%+v: no error", m)
		}
	}
}
