package alert

import (
	"encoding/json"
	"fmt"
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

// details are what every form tells.
type details struct {
	Destination string    `json:"destination"`
	DeadLetters int       `json:"dead_letters"`
	Since       time.Time `json:"since"`
	EventID     string    `json:"last_event_id"`
	EventType   string    `json:"last_event_type"`
	Reason      string    `json:"last_reason"`
	Status      int       `json:"last_status,omitempty"`
}

func (t Target) body(g Group, now time.Time) ([]byte, error) {
	d := details{
		Destination: g.Subject, DeadLetters: g.Count, Since: g.Since.UTC(),
		EventID: g.Last.EventID, EventType: g.Last.EventType, Reason: g.Last.Reason, Status: g.Last.Status,
	}
	var content any
	switch t.Type {
	case Slack:
		content = map[string]string{"text": g.Summary()}
	case PagerDuty:
		content = map[string]any{
			"routing_key": t.RoutingKey, "event_action": "trigger", "dedup_key": "cdc-relay/dead-letters/" + g.Subject,
			"payload": map[string]any{
				"summary": g.Summary(), "source": "cdc-relay", "severity": "error", "component": g.Subject,
				"timestamp": now.UTC().Format(time.RFC3339), "custom_details": d,
			},
		}
	case Alertmanager:
		content = []map[string]any{{
			"labels":      map[string]string{"alertname": "CdcRelayDeadLetters", "destination": g.Subject, "severity": "warning"},
			"annotations": map[string]string{"summary": g.Summary(), "last_event_id": g.Last.EventID},
			"startsAt":    g.Since.UTC().Format(time.RFC3339),
		}}
	default:
		content = map[string]any{"type": "cdc-relay.dead_letters", "timestamp": now.UTC().Format(time.RFC3339), "data": d}
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode alert: %w", err)
	}
	return body, nil
}
