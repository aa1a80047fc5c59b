package inbox

import (
	"fmt"
	"net/http"
	"strings"
)

// preset is what is known of a provider beyond its signature: where the event's id
// and type stand, how a batch is split, and how it wants to be answered.
//
// A source is "header:Name" or "json:path"; several joined by "+" make one value,
// and of several in a list the first that is there counts.
type preset struct {
	id         []string
	unsigned   bool // the id is not covered by the signature
	eventType  []string
	split      string // path of the array whose items are events; "@this" for the body itself
	unwrap     string // path within each item
	hash       bool   // without an id the body's hash is one
	answer     int    // status of the acknowledgement; 200 unless set
	answerBody string
	maxBody    int64
	handshake  handshake
	ignore     func(http.Header) bool // acknowledged and not stored
}

// handshake is how a provider asks whether somebody is there.
type handshake int

const (
	noHandshake handshake = iota
	slackChallenge
	zoomChallenge
	discordPing
	metaChallenge
	snsConfirmation
	cloudEventsOptions
)

func presets() map[string]preset {
	return map[string]preset{
		"standard":         {id: []string{"header:webhook-id", "header:svix-id"}, eventType: []string{"json:type", "header:Cdc-Relay-Event-Type"}},
		"standard-ed25519": {id: []string{"header:webhook-id"}, eventType: []string{"json:type"}},
		"stripe":           {id: []string{"json:id"}, eventType: []string{"json:type"}},
		"github": {
			id: []string{"header:X-GitHub-Delivery"}, unsigned: true, eventType: []string{"header:X-GitHub-Event"}, maxBody: 25 << 20,
			ignore: func(h http.Header) bool { return h.Get("X-GitHub-Event") == "ping" },
		},
		"bitbucket": {id: []string{"header:X-Request-UUID"}, unsigned: true, eventType: []string{"header:X-Event-Key"}},
		"jira":      {id: []string{"header:X-Atlassian-Webhook-Identifier"}, unsigned: true, eventType: []string{"json:webhookEvent"}},
		"shopify":   {id: []string{"header:X-Shopify-Webhook-Id"}, unsigned: true, eventType: []string{"header:X-Shopify-Topic"}},
		"slack":     {id: []string{"json:event_id"}, eventType: []string{"json:event.type", "json:type"}, handshake: slackChallenge},
		"zoom":      {id: []string{"json:event+json:event_ts+json:payload.object.uuid", "json:event+json:event_ts"}, eventType: []string{"json:event"}, handshake: zoomChallenge},
		"square":    {id: []string{"json:event_id"}, eventType: []string{"json:type"}},
		"paddle":    {id: []string{"json:event_id"}, eventType: []string{"json:event_type"}},
		"zendesk":   {id: []string{"json:id", "header:X-Zendesk-Webhook-Invocation-Id"}, eventType: []string{"json:type"}},
		"linear":    {id: []string{"header:Linear-Delivery"}, unsigned: true, eventType: []string{"json:type+json:action", "json:type"}},
		"intercom":  {id: []string{"json:id"}, eventType: []string{"json:topic", "json:type"}},
		"hubspot":   {id: []string{"json:subscriptionId+json:eventId+json:objectId+json:occurredAt"}, eventType: []string{"json:subscriptionType"}, split: "@this"},
		"meta": {
			id: []string{"json:id+json:time+body:sha256"}, eventType: []string{"json:changes.0.field"}, split: "entry", handshake: metaChallenge,
		},
		"adyen-platform": {id: []string{"json:type+json:data.id"}, eventType: []string{"json:type"}, answer: http.StatusAccepted},
		"discord":        {hash: true, eventType: []string{"json:event.type", "json:type"}, handshake: discordPing},
		"sendgrid":       {id: []string{"json:sg_event_id"}, eventType: []string{"json:event"}, split: "@this"},
		"gitlab-token":   {id: []string{"header:Idempotency-Key", "header:X-Gitlab-Event-UUID"}, unsigned: true, eventType: []string{"header:X-Gitlab-Event"}},
		"mailgun":        {id: []string{"json:event-data.id"}, eventType: []string{"json:event-data.event"}},
		"twilio": {
			id: []string{"header:I-Twilio-Idempotency-Token"}, unsigned: true, hash: true,
			eventType: []string{"json:MessageStatus", "json:SmsStatus", "json:CallStatus", "json:EventType"},
		},
		"adyen": {
			id: []string{"json:pspReference+json:eventCode+json:success"}, eventType: []string{"json:eventCode"},
			split: "notificationItems", unwrap: "NotificationRequestItem", answerBody: "[accepted]",
		},
		"aws-sns":     {id: []string{"json:MessageId"}, eventType: []string{"json:Subject", "json:Type"}, handshake: snsConfirmation},
		"paypal":      {id: []string{"header:Paypal-Transmission-Id"}, eventType: []string{"json:event_type"}},
		"cloudevents": {id: []string{"header:ce-source+header:ce-id", "json:source+json:id"}, eventType: []string{"header:ce-type", "json:type"}, handshake: cloudEventsOptions},
		"generic":     {},
	}
}

// presetOf gives the preset of a name.
func presetOf(name string) (preset, error) {
	all := presets()
	p, ok := all[name]
	if !ok {
		return p, fmt.Errorf("no partner preset is called %q; there are %s", name, strings.Join(presetNames(), ", "))
	}
	if p.answer == 0 {
		p.answer = http.StatusOK
	}
	return p, nil
}
