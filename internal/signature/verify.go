package signature

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// Received is an inbound request as it came, before anything was parsed.
type Received struct {
	Method string
	URL    string // the public one, under which the partner knows this service
	Header http.Header
	Body   []byte
	Now    time.Time
}

// Verifier tells whether a request comes from who holds the secret. Its error says
// which step failed; it is for the log, not for the partner, and holds no secret and
// no signature. It is safe for concurrent use.
type Verifier interface {
	Verify(r Received) error
}

// Limits are how far a message's time may be off. They are looked at when a message
// comes in, never when it is processed or replayed.
type Limits struct {
	MaxAge    time.Duration // 0 for the scheme's own
	MaxFuture time.Duration // 0 for a minute
}

// schemeVerifier verifies by a Scheme.
type schemeVerifier struct {
	scheme  Scheme
	content []part
	keys    []verifyingKey
	limits  Limits
	other   *schemeVerifier
}

// verifyingKey is a secret made ready.
type verifyingKey struct {
	algorithm Algorithm
	version   string // of form List
	secret    []byte // HMAC, or the token itself
	public    ed25519.PublicKey
	curve     *ecdsa.PublicKey
}

// String names the scheme, and shows no key.
func (v *schemeVerifier) String() string { return "verifier(" + v.scheme.Name + ")" }

// GoString names the scheme, so that %#v shows no key.
func (v *schemeVerifier) GoString() string { return v.String() }

// NewVerifier checks the scheme and its secrets, each of which is accepted.
func NewVerifier(scheme Scheme, secrets []string, limits Limits) (Verifier, error) {
	return newSchemeVerifier(scheme, secrets, limits)
}

func newSchemeVerifier(scheme Scheme, secrets []string, limits Limits) (*schemeVerifier, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no secret")
	}
	content, err := parseTemplate(scheme.Template)
	if err != nil {
		return nil, fmt.Errorf("signature scheme %s: %w", scheme.Name, err)
	}
	if limits.MaxAge == 0 {
		limits.MaxAge = scheme.MaxAge
	}
	if limits.MaxFuture == 0 {
		limits.MaxFuture = time.Minute
	}
	v := &schemeVerifier{scheme: scheme, content: content, limits: limits}
	for i, secret := range secrets {
		key, err := newVerifyingKey(scheme, secret)
		if err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		v.keys = append(v.keys, key)
	}
	if scheme.Other != nil {
		if v.other, err = newSchemeVerifier(*scheme.Other, secrets, limits); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// newVerifyingKey turns a configured secret into a key. Its errors never hold any of
// the secret.
func newVerifyingKey(scheme Scheme, secret string) (verifyingKey, error) {
	k := verifyingKey{algorithm: scheme.Algorithm, version: scheme.Version}
	public, isPublic := strings.CutPrefix(secret, "whpk_")
	switch {
	case secret == "":
		return k, errors.New("it is empty")
	case scheme.Secret == SecretStandard && isPublic:
		decoded, err := base64.StdEncoding.DecodeString(public)
		if err != nil || len(decoded) != ed25519.PublicKeySize {
			return k, errors.New("it has the prefix whpk_ but no base64 of an ed25519 public key after it")
		}
		k.algorithm, k.version, k.public = Ed25519, "v1a", decoded
	case scheme.Algorithm == Ed25519:
		decoded, err := hex.DecodeString(secret)
		if err != nil || len(decoded) != ed25519.PublicKeySize {
			return k, errors.New("it is not the hex digits of an ed25519 public key")
		}
		k.public = decoded
	case scheme.Algorithm == ECDSAP256:
		decoded, err := base64.StdEncoding.DecodeString(secret)
		if err != nil {
			return k, errors.New("it is not base64")
		}
		parsed, err := x509.ParsePKIXPublicKey(decoded)
		curve, ok := parsed.(*ecdsa.PublicKey)
		if err != nil || !ok || curve.Curve != elliptic.P256() {
			return k, errors.New("it is not a P-256 public key")
		}
		k.curve = curve
	default:
		key, err := signingKey(scheme, secret)
		if err != nil {
			return k, err
		}
		k.secret = key
	}
	return k, nil
}

// Verify implements Verifier.
func (v *schemeVerifier) Verify(r Received) error {
	if v.other != nil && len(r.Header.Values(v.scheme.Header)) == 0 && len(r.Header.Values(v.other.scheme.Header)) > 0 {
		return v.other.Verify(r)
	}
	value, err := v.signatureValue(r)
	if err != nil {
		return err
	}
	if v.scheme.Form == Token {
		return v.token(value)
	}
	timestamp, signatures, err := v.parse(value)
	if err != nil {
		return err
	}
	if timestamp == "" {
		if timestamp, err = v.timestamp(r); err != nil {
			return err
		}
	}
	m := Message{Method: r.Method, URL: r.URL, Body: r.Body, Header: r.Header}
	if strings.Contains(v.scheme.Template, "{id}") {
		if m.ID, err = one(r.Header, v.scheme.IDHeader); err != nil {
			return err
		}
	}
	if err := v.match(signatures, m, timestamp); err != nil {
		return err
	}
	return v.checkTime(timestamp, r.Now)
}

func (v *schemeVerifier) signatureValue(r Received) (string, error) {
	if v.scheme.SignatureJSON == "" {
		return one(r.Header, v.scheme.Header)
	}
	value := gjson.GetBytes(r.Body, v.scheme.SignatureJSON)
	if !gjson.ValidBytes(r.Body) || value.Type != gjson.String {
		return "", fmt.Errorf("the body has no %s", v.scheme.SignatureJSON)
	}
	return value.Str, nil
}

// one gives the value of a header that must be there exactly once.
func one(h http.Header, name string) (string, error) {
	values := h.Values(name)
	if len(values) == 1 && values[0] != "" {
		return values[0], nil
	}
	return "", fmt.Errorf("header %s is there %d times, or is empty", name, len(values))
}

func (v *schemeVerifier) token(value string) error {
	matched := false
	for _, k := range v.keys {
		// Of equal length, whatever the token's is.
		got, want := sha256.Sum256([]byte(value)), sha256.Sum256(k.secret)
		matched = hmac.Equal(got[:], want[:]) || matched
	}
	if !matched {
		return errors.New("the token is not one of the secrets")
	}
	return nil
}

// candidate is a signature that was sent, with the version that stands before it.
type candidate struct{ version, text string }

// parse takes the signatures out of their header, and the timestamp where it stands
// there too. Items of another version or key are passed over.
func (v *schemeVerifier) parse(value string) (timestamp string, found []candidate, err error) {
	switch v.scheme.Form {
	case KeyValue:
		return v.parsePairs(value)
	case List:
		for item := range strings.FieldsSeq(value) {
			if version, text, ok := strings.Cut(item, ","); ok {
				found = append(found, candidate{version, text})
			}
		}
	default:
		text, ok := strings.CutPrefix(value, v.scheme.Prefix)
		if !ok {
			return "", nil, fmt.Errorf("the signature does not begin with %s", v.scheme.Prefix)
		}
		found = []candidate{{v.scheme.Version, text}}
	}
	return "", found, nil
}

func (v *schemeVerifier) parsePairs(value string) (timestamp string, found []candidate, err error) {
	times := 0
	for pair := range strings.SplitSeq(value, v.scheme.Separator) {
		key, text, _ := strings.Cut(strings.TrimSpace(pair), "=")
		switch key {
		case v.scheme.TimeKey:
			timestamp = text
			times++
		case v.scheme.SignatureKey:
			found = append(found, candidate{v.scheme.Version, text})
		}
	}
	if times != 1 || timestamp == "" {
		return "", nil, fmt.Errorf("%s has %d timestamps", v.scheme.Header, times)
	}
	return timestamp, found, nil
}

// timestamp gives the time as received, "" for a scheme that has none.
func (v *schemeVerifier) timestamp(r Received) (string, error) {
	switch {
	case v.scheme.TimeHeader != "":
		return one(r.Header, v.scheme.TimeHeader)
	case v.scheme.TimeJSON != "":
		value := gjson.GetBytes(r.Body, v.scheme.TimeJSON)
		if !gjson.ValidBytes(r.Body) || !value.Exists() {
			return "", fmt.Errorf("the body has no %s", v.scheme.TimeJSON)
		}
		if value.Type == gjson.Number {
			return value.Raw, nil
		}
		return value.String(), nil
	}
	return "", nil
}

// match looks for a signature that one of the keys makes.
func (v *schemeVerifier) match(signatures []candidate, m Message, timestamp string) error {
	decoded, matched := false, false
	for _, s := range signatures {
		sum, err := v.scheme.Encoding.decode(s.text)
		if err != nil {
			continue
		}
		decoded = true
		for _, k := range v.keys {
			if k.version == s.version {
				matched = k.made(sum, v.content, m, timestamp) || matched
			}
		}
	}
	switch {
	case matched:
		return nil
	case !decoded:
		return errors.New("there is no signature that can be decoded")
	}
	return errors.New("no signature is made by one of the secrets")
}

func (e Encoding) decode(text string) ([]byte, error) {
	if e == Base64 {
		return base64.StdEncoding.DecodeString(text)
	}
	return hex.DecodeString(text)
}

// made tells whether the key has made a signature.
func (k *verifyingKey) made(sum []byte, content []part, m Message, timestamp string) bool {
	text := appendContent(make([]byte, 0, len(m.Body)+contentRoom), content, m, timestamp)
	var algorithm func() hash.Hash
	switch k.algorithm {
	case Ed25519:
		return len(sum) == ed25519.SignatureSize && ed25519.Verify(k.public, text, sum)
	case ECDSAP256:
		digest := sha256.Sum256(text)
		return ecdsa.VerifyASN1(k.curve, digest[:], sum)
	case HMACSHA1:
		algorithm = sha1.New
	default:
		algorithm = sha256.New
	}
	mac := hmac.New(algorithm, k.secret)
	mac.Write(text)
	return hmac.Equal(mac.Sum(nil), sum)
}

func (v *schemeVerifier) checkTime(timestamp string, now time.Time) error {
	if timestamp == "" {
		return nil
	}
	at, err := v.scheme.TimeUnit.parse(timestamp)
	if err != nil {
		return err
	}
	return v.limits.check(at, now)
}

func (l Limits) check(at, now time.Time) error {
	switch age := now.Sub(at); {
	case l.MaxAge > 0 && age > l.MaxAge:
		return fmt.Errorf("the message is %s old", age.Round(time.Second))
	case age < -l.MaxFuture:
		return fmt.Errorf("the message is %s ahead of this clock", (-age).Round(time.Second))
	}
	return nil
}

func (u TimeUnit) parse(text string) (time.Time, error) {
	if u == RFC3339 {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return at, errors.New("the timestamp is no RFC 3339 time")
		}
		return at, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, errors.New("the timestamp is no number")
	}
	if u == Milliseconds {
		return time.UnixMilli(n), nil
	}
	return time.Unix(n, 0), nil
}
