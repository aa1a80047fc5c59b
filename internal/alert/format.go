package alert

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Type is the form of an alert's body.
type Type string

// The types of target.
const (
	Generic      Type = "generic"      // type, timestamp and data, as Standard Webhooks recommends
	Slack        Type = "slack"        // an incoming webhook of Slack, or of what takes the same
	PagerDuty    Type = "pagerduty"    // Events API v2
	Alertmanager Type = "alertmanager" // /api/v2/alerts
)

// ParseType reads a type; "" is Generic.
func ParseType(name string) (Type, error) {
	switch t := Type(name); t {
	case "":
		return Generic, nil
	case Generic, Slack, PagerDuty, Alertmanager:
		return t, nil
	default:
		return "", fmt.Errorf("is %q; there are generic, slack, pagerduty and alertmanager", name)
	}
}

// Kind is what a notice is about.
type Kind int

// The kinds of notice.
const (
	DeadLetters Kind = iota
	Quarantined      // inbound events
	Released         // checkpoints whose held WAL was let go
)

// words are how alerts speak of a kind.
type words struct {
	noun      string // for people
	name      string // of the type, and of the count
	subject   string // what the subject is
	alertname string
}

func (k Kind) words() words {
	switch k {
	case Quarantined:
		return words{"quarantined inbound event(s)", "quarantined", "partner", "CdcRelayQuarantined"}
	case Released:
		return words{"held checkpoint(s) let go", "released_checkpoints", "slot", "CdcRelayReleasedCheckpoints"}
	default:
		return words{"dead letter(s)", "dead_letters", "destination", "CdcRelayDeadLetters"}
	}
}

// details are what the forms with room for it tell.
func (g Group) details() map[string]any {
	w := g.Last.Kind.words()
	d := map[string]any{
		w.subject: g.Subject, w.name: g.Count, "since": g.Since.UTC(),
		"last_event_id": g.Last.EventID, "last_event_type": g.Last.EventType, "last_reason": g.Last.Reason,
	}
	if g.Last.Status != 0 {
		d["last_status"] = g.Last.Status
	}
	return d
}

func (t Target) body(g Group, now time.Time) ([]byte, error) {
	w := g.Last.Kind.words()
	var content any
	switch t.Type {
	case Slack:
		content = map[string]string{"text": g.Summary()}
	case PagerDuty:
		content = map[string]any{
			"routing_key": t.RoutingKey, "event_action": "trigger", "dedup_key": "cdc-relay/" + strings.ReplaceAll(w.name, "_", "-") + "/" + g.Subject,
			"payload": map[string]any{
				"summary": g.Summary(), "source": "cdc-relay", "severity": "error", "component": g.Subject,
				"timestamp": now.UTC().Format(time.RFC3339), "custom_details": g.details(),
			},
		}
	case Alertmanager:
		content = []map[string]any{{
			"labels":      map[string]string{"alertname": w.alertname, w.subject: g.Subject, "severity": "warning"},
			"annotations": map[string]string{"summary": g.Summary(), "last_event_id": g.Last.EventID},
			"startsAt":    g.Since.UTC().Format(time.RFC3339),
		}}
	default:
		content = map[string]any{"type": "cdc-relay." + w.name, "timestamp": now.UTC().Format(time.RFC3339), "data": g.details()}
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode alert: %w", err)
	}
	return body, nil
}
