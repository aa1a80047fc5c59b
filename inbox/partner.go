package inbox

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"golang.org/x/time/rate"

	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// Partner is who sends webhooks, and how they are recognised.
type Partner struct {
	Name    string   // in the path: /webhooks/{name}
	Preset  string   // a provider's name, or "generic" with a Scheme
	Secrets []string // each is accepted, as while one is rotated
	Scheme  *Scheme  // for "generic"
	// Verify is "" or "none"; the latter takes what anybody sends.
	Verify    string
	MaxAge    time.Duration // of the signed time; 0 for the preset's own
	MaxFuture time.Duration // 0 for a minute
	MaxBody   int64         // bytes; 0 for the preset's own, or 1 MiB
	RateLimit float64       // requests a second, 0 for none

	// Where these stand, instead of where the preset has them: "header:Name" or
	// "json:path", several of one value joined by "+"; the first of a list that is there.
	EventID   []string
	EventType []string
	EntityKey []string
	Split     string // path of an array whose items are events of their own
	// MissingID is "reject" or "hash": what a request without an event id gets. "" is
	// the preset's way.
	MissingID string

	VerifyToken string   // of Meta's subscription
	Topics      []string // Amazon SNS topics that are accepted
}

// Scheme describes how a partner signs, where no preset does.
type Scheme struct {
	Header          string        // with the signature
	Form            string        // plain, pairs, list or token
	Prefix          string        // before a plain signature, as in "sha256="
	Separator       string        // between pairs
	TimestampKey    string        // of the pair with the time
	SignatureKey    string        // of a pair with a signature
	Version         string        // of a list's items
	Algorithm       string        // hmac-sha256, hmac-sha1 or ed25519
	Encoding        string        // of the signature: hex or base64
	SecretEncoding  string        // text, hex or base64
	Template        string        // what is signed, over {id} {timestamp} {method} {url} {body} {header:X} {json:path}
	TimestampHeader string        // where the time stands, if not in a pair
	TimestampUnit   string        // s, ms or rfc3339
	IDHeader        string        // for {id}
	MaxAge          time.Duration // of the time
}

// partner is a Partner ready for work.
type partner struct {
	Partner
	preset   preset
	verifier signature.Verifier // nil only where Verify is none
	limiter  *rate.Limiter      // nil for none
}

// partnerName fits the inbox's column and a path.
var partnerName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,50}$`)

func (p Partner) build(fetch signature.Fetch) (*partner, error) {
	if !partnerName.MatchString(p.Name) {
		return nil, fmt.Errorf("partner %q: its name is not made of 1 to 50 letters, digits, dots, - and _", p.Name)
	}
	built := &partner{Partner: p}
	var err error
	if built.preset, err = presetOf(p.Preset); err != nil {
		return nil, fmt.Errorf("partner %s: %w", p.Name, err)
	}
	if err := built.override(); err != nil {
		return nil, fmt.Errorf("partner %s: %w", p.Name, err)
	}
	switch p.Verify {
	case "none":
	case "":
		if built.verifier, err = p.verifierOf(fetch); err != nil {
			return nil, fmt.Errorf("partner %s: %w", p.Name, err)
		}
	default:
		return nil, fmt.Errorf("partner %s: verify is %q; there is none, or nothing", p.Name, p.Verify)
	}
	if p.RateLimit > 0 {
		built.limiter = rate.NewLimiter(rate.Limit(p.RateLimit), max(1, int(p.RateLimit)))
	}
	return built, nil
}

// override puts the partner's own sources before the preset's.
func (p *partner) override() error {
	set := &p.preset
	if len(p.EventID) > 0 {
		set.id = p.EventID
	}
	if len(p.EventType) > 0 {
		set.eventType = p.EventType
	}
	if p.Split != "" {
		set.split = p.Split
	}
	switch p.MissingID {
	case "":
	case "hash":
		set.hash = true
	case "reject":
		set.hash = false
	default:
		return fmt.Errorf("missing_id is %q; there are reject and hash", p.MissingID)
	}
	if p.MaxBody > 0 {
		set.maxBody = p.MaxBody
	}
	if set.maxBody == 0 {
		set.maxBody = 1 << 20
	}
	if len(set.id) == 0 && !set.hash {
		return errors.New("event_id says from where the event's id comes, or missing_id: hash")
	}
	for _, list := range [][]string{set.id, set.eventType, p.EntityKey} {
		if err := checkSources(list); err != nil {
			return err
		}
	}
	return nil
}

func (p *Partner) verifierOf(fetch signature.Fetch) (signature.Verifier, error) {
	limits := signature.Limits{MaxAge: p.MaxAge, MaxFuture: p.MaxFuture}
	switch p.Preset {
	case "twilio":
		return signature.NewTwilio(p.Secrets)
	case "adyen":
		return signature.NewAdyen(p.Secrets)
	case "cloudevents":
		return signature.NewBearer(p.Secrets)
	case "aws-sns":
		return signature.NewSNS(signature.SNSOptions{Topics: p.Topics, Limits: limits, Fetch: fetch})
	case "paypal":
		return signature.NewPayPal(p.Secrets, limits, fetch)
	case "generic":
		if p.Scheme == nil {
			return nil, errors.New("preset generic wants a scheme")
		}
		scheme, err := p.Scheme.signature()
		if err != nil {
			return nil, err
		}
		return signature.NewVerifier(scheme, p.Secrets, limits)
	}
	scheme, err := signature.Preset(p.Preset)
	if err != nil {
		return nil, err
	}
	return signature.NewVerifier(scheme, p.Secrets, limits)
}

// signature gives the scheme in the words of the signature package.
func (s *Scheme) signature() (signature.Scheme, error) {
	out := signature.Scheme{
		Name: "generic", Header: s.Header, Prefix: s.Prefix, Separator: s.Separator, TimeKey: s.TimestampKey, SignatureKey: s.SignatureKey,
		Version: s.Version, Template: s.Template, TimeHeader: s.TimestampHeader, IDHeader: s.IDHeader, MaxAge: s.MaxAge,
	}
	var err error
	choose := func(what, value string, choices map[string]func()) {
		set, ok := choices[value]
		if !ok && err == nil {
			err = fmt.Errorf("scheme: %s is %q, which there isn't", what, value)
		}
		if ok {
			set()
		}
	}
	choose("form", s.Form, map[string]func(){
		"": func() {}, "plain": func() {}, "pairs": func() { out.Form = signature.KeyValue }, "list": func() { out.Form = signature.List }, "token": func() { out.Form = signature.Token },
	})
	choose("algorithm", s.Algorithm, map[string]func(){
		"": func() {}, "hmac-sha256": func() {}, "hmac-sha1": func() { out.Algorithm = signature.HMACSHA1 }, "ed25519": func() { out.Algorithm = signature.Ed25519 },
	})
	choose("encoding", s.Encoding, map[string]func(){"": func() {}, "hex": func() {}, "base64": func() { out.Encoding = signature.Base64 }})
	choose("secret_encoding", s.SecretEncoding, map[string]func(){
		"": func() {}, "text": func() {}, "hex": func() { out.Secret = signature.SecretHex }, "base64": func() { out.Secret = signature.SecretBase64 },
	})
	choose("timestamp_unit", s.TimestampUnit, map[string]func(){
		"": func() {}, "s": func() {}, "ms": func() { out.TimeUnit = signature.Milliseconds }, "rfc3339": func() { out.TimeUnit = signature.RFC3339 },
	})
	switch {
	case err != nil:
	case s.Header == "":
		err = errors.New("scheme: header is empty")
	case out.Form != signature.Token && s.Template == "":
		err = errors.New("scheme: template is empty, so nothing would be signed")
	case out.Form == signature.KeyValue && (s.Separator == "" || s.TimestampKey == "" || s.SignatureKey == ""):
		err = errors.New("scheme: pairs want separator, timestamp_key and signature_key")
	}
	return out, err
}

// presetNames lists the presets in the order of the alphabet.
func presetNames() []string { return sortedKeys(presets()) }

// Presets lists the names of the providers that are known.
func Presets() []string { return presetNames() }

// keptHeader gives of a request's headers all but those whose value is itself a
// secret. A signature is none: it fits this one body.
func (p *partner) keptHeader(h http.Header) map[string]string {
	token := ""
	if p.Preset == "generic" && p.Scheme != nil && p.Scheme.Form == "token" {
		token = http.CanonicalHeaderKey(p.Scheme.Header)
	}
	kept := make(map[string]string)
	for name, values := range h {
		switch name {
		case "Authorization", "Cookie", "Proxy-Authorization", "X-Gitlab-Token", token:
			continue
		}
		if len(values) > 0 {
			kept[name] = values[0]
		}
	}
	return kept
}
