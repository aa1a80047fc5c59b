// Package signature holds the schemes by which webhooks are signed, as data: one
// description signs on the way out and verifies on the way in.
//
// It is pure: no I/O, no goroutine, no clock. The time of signing is an argument.
package signature

import (
	"fmt"
	"strings"
	"time"
)

// Scheme describes how a message is signed.
type Scheme struct {
	Name string

	// Where the signature stands, and in which form.
	Header string
	Form   Form
	Prefix string // before each signature of form Plain, as in "sha256="

	// For form KeyValue: "t=1700000000,v1=…".
	Separator    string
	TimeKey      string
	SignatureKey string

	// For form List: "v1,… v1,…".
	Version string

	Algorithm Algorithm
	Encoding  Encoding
	Secret    SecretForm

	// Template is the signed content, over {id}, {timestamp}, {method}, {url}, {body},
	// {header:Name} and {json:path}; the last two only on the way in.
	Template string

	// TimeHeader carries the timestamp where the signature's own header doesn't.
	TimeHeader string
	TimeUnit   TimeUnit

	// For what comes in only. SignatureJSON and TimeJSON are paths into the body, for
	// schemes without a header; MaxAge is how old a message may be, 0 for any age.
	SignatureJSON string
	TimeJSON      string
	MaxAge        time.Duration
	// Other is tried where the signature's header is missing: the same scheme under
	// other headers.
	Other *Scheme

	// IDHeader carries the message's id. Empty where the scheme has none.
	IDHeader string
}

// Form is how signatures stand in their header.
type Form uint8

// The forms of a signature header.
const (
	Plain    Form = iota // one signature, perhaps after a prefix
	KeyValue             // key=value pairs, timestamp among them
	List                 // version,signature items, space separated
	Token                // the secret itself
)

// Algorithm makes a signature from a secret and the signed content.
type Algorithm uint8

// The algorithms.
const (
	HMACSHA256 Algorithm = iota
	HMACSHA1
	Ed25519
	ECDSAP256 // over SHA-256, ASN.1; on the way in only
)

// Encoding is how a signature's bytes are written.
type Encoding uint8

// The encodings.
const (
	Hex Encoding = iota
	Base64
)

// TimeUnit is how a timestamp is written.
type TimeUnit uint8

// The forms of a timestamp.
const (
	Seconds TimeUnit = iota // since 1970-01-01 00:00 UTC
	Milliseconds
	RFC3339
)

// SecretForm is how the configured secret becomes key bytes.
type SecretForm uint8

// The forms of a secret.
const (
	SecretText     SecretForm = iota // its own bytes
	SecretHex                        // hex digits
	SecretBase64                     // base64
	SecretSPKI                       // base64 of a public key's SubjectPublicKeyInfo
	SecretStandard                   // base64 after "whsec_" (or "whsk_" for ed25519); its own bytes without the prefix
)

// Standard is the scheme of https://www.standardwebhooks.com, which is signed
// with unless a destination names another.
func Standard() Scheme {
	return Scheme{
		Name:   "standard",
		Header: "webhook-signature", Form: List, Version: "v1",
		Algorithm: HMACSHA256, Encoding: Base64, Secret: SecretStandard,
		Template:   "{id}.{timestamp}.{body}",
		TimeHeader: "webhook-timestamp", IDHeader: "webhook-id", MaxAge: usualAge,
	}
}

// usualAge is the tolerance that most providers name.
const usualAge = 5 * time.Minute

// withSvix adds the names under which the same headers came first.
func withSvix(s Scheme) Scheme {
	other := s
	other.Header, other.TimeHeader, other.IDHeader = "svix-signature", "svix-timestamp", "svix-id"
	s.Other = &other
	return s
}

// presets are the providers' schemes that are one HMAC or ed25519 signature over
// a template, from the providers' own documentation.
func presets() []Scheme {
	return []Scheme{
		withSvix(Standard()),
		{Name: "standard-ed25519", Header: "webhook-signature", Form: List, Version: "v1a", Algorithm: Ed25519, Encoding: Base64, Secret: SecretStandard, Template: "{id}.{timestamp}.{body}", TimeHeader: "webhook-timestamp", IDHeader: "webhook-id", MaxAge: usualAge},
		{Name: "stripe", Header: "Stripe-Signature", Form: KeyValue, Separator: ",", TimeKey: "t", SignatureKey: "v1", Template: "{timestamp}.{body}", MaxAge: usualAge},
		{Name: "github", Header: "X-Hub-Signature-256", Prefix: "sha256=", Template: "{body}", IDHeader: "X-GitHub-Delivery"},
		{Name: "bitbucket", Header: "X-Hub-Signature", Prefix: "sha256=", Template: "{body}", IDHeader: "X-Request-UUID"},
		{Name: "jira", Header: "X-Hub-Signature", Prefix: "sha256=", Template: "{body}", IDHeader: "X-Atlassian-Webhook-Identifier"},
		{Name: "shopify", Header: "X-Shopify-Hmac-Sha256", Encoding: Base64, Template: "{body}", IDHeader: "X-Shopify-Webhook-Id"},
		{Name: "slack", Header: "X-Slack-Signature", Prefix: "v0=", Template: "v0:{timestamp}:{body}", TimeHeader: "X-Slack-Request-Timestamp", MaxAge: usualAge},
		{Name: "zoom", Header: "x-zm-signature", Prefix: "v0=", Template: "v0:{timestamp}:{body}", TimeHeader: "x-zm-request-timestamp", MaxAge: usualAge},
		{Name: "square", Header: "x-square-hmacsha256-signature", Encoding: Base64, Template: "{url}{body}"},
		{Name: "paddle", Header: "Paddle-Signature", Form: KeyValue, Separator: ";", TimeKey: "ts", SignatureKey: "h1", Template: "{timestamp}:{body}", MaxAge: usualAge},
		{Name: "zendesk", Header: "X-Zendesk-Webhook-Signature", Encoding: Base64, Template: "{timestamp}{body}", TimeHeader: "X-Zendesk-Webhook-Signature-Timestamp", TimeUnit: RFC3339, IDHeader: "X-Zendesk-Webhook-Invocation-Id", MaxAge: usualAge},
		{Name: "linear", Header: "Linear-Signature", Template: "{body}", IDHeader: "Linear-Delivery", TimeJSON: "webhookTimestamp", TimeUnit: Milliseconds, MaxAge: usualAge},
		{Name: "intercom", Header: "X-Hub-Signature", Prefix: "sha1=", Algorithm: HMACSHA1, Template: "{body}"},
		{Name: "hubspot", Header: "X-HubSpot-Signature-v3", Encoding: Base64, Template: "{method}{url}{body}{timestamp}", TimeHeader: "X-HubSpot-Request-Timestamp", TimeUnit: Milliseconds, MaxAge: usualAge},
		{Name: "meta", Header: "X-Hub-Signature-256", Prefix: "sha256=", Template: "{body}"},
		{Name: "adyen-platform", Header: "hmacsignature", Encoding: Base64, Secret: SecretHex, Template: "{body}"},
		{Name: "discord", Header: "X-Signature-Ed25519", Algorithm: Ed25519, Secret: SecretHex, Template: "{timestamp}{body}", TimeHeader: "X-Signature-Timestamp", MaxAge: usualAge},
		{Name: "sendgrid", Header: "X-Twilio-Email-Event-Webhook-Signature", Algorithm: ECDSAP256, Encoding: Base64, Secret: SecretSPKI, Template: "{timestamp}{body}", TimeHeader: "X-Twilio-Email-Event-Webhook-Timestamp", MaxAge: 2 * usualAge},
		// The body is not covered, and a retry keeps its timestamp.
		{Name: "mailgun", SignatureJSON: "signature.signature", Template: "{json:signature.timestamp}{json:signature.token}", TimeJSON: "signature.timestamp", MaxAge: 24 * time.Hour},
		{Name: "gitlab-token", Header: "X-Gitlab-Token", Form: Token, IDHeader: "X-Gitlab-Event-UUID"},
	}
}

// Preset returns the scheme of that name.
func Preset(name string) (Scheme, error) {
	names := make([]string, 0, 20)
	for _, s := range presets() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Scheme{}, fmt.Errorf("no signature scheme is called %q; there are %s", name, strings.Join(names, ", "))
}
