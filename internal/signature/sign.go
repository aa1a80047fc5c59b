package signature

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Message is what a signature covers.
type Message struct {
	ID     string // already escaped by EscapeID
	Time   time.Time
	Method string
	URL    string
	Body   []byte
	Header http.Header // on the way in only
}

// Header is one header that a signed request carries.
type Header struct{ Name, Value string }

// Signer signs messages by one scheme with each of its secrets. It is safe for
// concurrent use. It never shows its keys: formatting it prints its scheme only.
type Signer struct {
	scheme  Scheme
	content []part
	keys    [][]byte
}

// String names the scheme.
func (s *Signer) String() string { return "signer(" + s.scheme.Name + ")" }

// GoString names the scheme, so that %#v shows no key.
func (s *Signer) GoString() string { return s.String() }

// NewSigner checks the scheme and its secrets. The first secret signs first; a
// scheme whose header holds one signature signs with the first only.
func NewSigner(scheme Scheme, secrets []string) (*Signer, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no secret")
	}
	if scheme.Algorithm == ECDSAP256 || scheme.SignatureJSON != "" || strings.Contains(scheme.Template, "{header:") || strings.Contains(scheme.Template, "{json:") {
		return nil, fmt.Errorf("signature scheme %s is for inbound webhooks only", scheme.Name)
	}
	content, err := parseTemplate(scheme.Template)
	if err != nil {
		return nil, fmt.Errorf("signature scheme %s: %w", scheme.Name, err)
	}
	s := &Signer{scheme: scheme, content: content}
	for i, secret := range secrets {
		key, err := signingKey(scheme, secret)
		if err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		s.keys = append(s.keys, key)
	}
	return s, nil
}

// signingKey turns a configured secret into key bytes. Its errors never hold
// any of the secret.
func signingKey(scheme Scheme, secret string) ([]byte, error) {
	if secret == "" {
		return nil, errors.New("it is empty")
	}
	key := []byte(secret)
	switch scheme.Secret {
	case SecretHex:
		decoded, err := hex.DecodeString(secret)
		if err != nil {
			return nil, errors.New("it is not hex digits, which its scheme wants")
		}
		key = decoded
	case SecretBase64:
		decoded, err := base64.StdEncoding.DecodeString(secret)
		if err != nil {
			return nil, errors.New("it is not base64, which its scheme wants")
		}
		key = decoded
	case SecretStandard:
		prefix := "whsec_"
		if scheme.Algorithm == Ed25519 {
			prefix = "whsk_"
		}
		if encoded, ok := strings.CutPrefix(secret, prefix); ok {
			decoded, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				return nil, fmt.Errorf("it has the prefix %s but no base64 after it", prefix)
			}
			key = decoded
		}
	}
	if len(key) == 0 {
		return nil, errors.New("it is empty")
	}
	if scheme.Algorithm == Ed25519 {
		switch len(key) {
		case ed25519.SeedSize:
			key = ed25519.NewKeyFromSeed(key)
		case ed25519.PrivateKeySize:
		default:
			return nil, fmt.Errorf("an ed25519 private key has %d or %d bytes, not %d", ed25519.SeedSize, ed25519.PrivateKeySize, len(key))
		}
	}
	return key, nil
}

// Sign returns the headers that carry the message's id, timestamp and
// signatures, in that order.
func (s *Signer) Sign(m Message) []Header {
	timestamp := s.scheme.TimeUnit.format(m.Time)
	headers := make([]Header, 0, 3)
	if s.scheme.IDHeader != "" {
		headers = append(headers, Header{s.scheme.IDHeader, m.ID})
	}
	if s.scheme.TimeHeader != "" {
		headers = append(headers, Header{s.scheme.TimeHeader, timestamp})
	}
	return append(headers, Header{s.scheme.Header, s.headerValue(m, timestamp)})
}

func (s *Signer) headerValue(m Message, timestamp string) string {
	scheme := s.scheme
	switch scheme.Form {
	case Token:
		return string(s.keys[0])
	case KeyValue:
		var b strings.Builder
		b.WriteString(scheme.TimeKey + "=" + timestamp)
		for _, key := range s.keys {
			b.WriteString(scheme.Separator + scheme.SignatureKey + "=" + s.signature(key, m, timestamp))
		}
		return b.String()
	case List:
		var b strings.Builder
		for i, key := range s.keys {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(scheme.Version + "," + s.signature(key, m, timestamp))
		}
		return b.String()
	default:
		return scheme.Prefix + s.signature(s.keys[0], m, timestamp)
	}
}

func (s *Signer) signature(key []byte, m Message, timestamp string) string {
	var sum []byte
	switch s.scheme.Algorithm {
	case Ed25519:
		var content strings.Builder
		writeContent(&content, s.content, m, timestamp)
		sum = ed25519.Sign(key, []byte(content.String()))
	case HMACSHA1:
		sum = s.mac(sha1.New, key, m, timestamp)
	default:
		sum = s.mac(sha256.New, key, m, timestamp)
	}
	if s.scheme.Encoding == Base64 {
		return base64.StdEncoding.EncodeToString(sum)
	}
	return hex.EncodeToString(sum)
}

func (s *Signer) mac(algorithm func() hash.Hash, key []byte, m Message, timestamp string) []byte {
	mac := hmac.New(algorithm, key)
	writeContent(mac, s.content, m, timestamp)
	return mac.Sum(nil)
}

func (u TimeUnit) format(t time.Time) string {
	switch u {
	case Milliseconds:
		return strconv.FormatInt(t.UnixMilli(), 10)
	case RFC3339:
		return t.UTC().Format(time.RFC3339)
	default:
		return strconv.FormatInt(t.Unix(), 10)
	}
}

// EscapeID writes an id so that it can't be taken for another part of the signed
// content "id.timestamp.body": a dot within it would let two different messages
// sign alike. Ids without "." and "%" stay as they are.
func EscapeID(id string) string {
	if !strings.ContainsAny(id, ".%") {
		return id
	}
	return strings.NewReplacer("%", "%25", ".", "%2E").Replace(id)
}
