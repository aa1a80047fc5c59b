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
	"sync"
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
	macs    []*sync.Pool // of hash.Hash, for the key of the same place; nil where none is made
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
	// As they stand in a http.Header, so that nobody has to look for capitals again.
	for _, name := range []*string{&scheme.Header, &scheme.IDHeader, &scheme.TimeHeader} {
		*name = http.CanonicalHeaderKey(*name)
	}
	s := &Signer{scheme: scheme, content: content}
	for i, secret := range secrets {
		key, err := signingKey(scheme, secret)
		if err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		s.keys = append(s.keys, key)
		s.macs = append(s.macs, macsOf(scheme.Algorithm, key))
	}
	return s, nil
}

// macsOf keeps what a key is worked into, which costs more than signing a short text.
func macsOf(algorithm Algorithm, key []byte) *sync.Pool {
	switch algorithm {
	case Ed25519:
		return nil
	case HMACSHA1:
		return &sync.Pool{New: func() any { return hmac.New(sha1.New, key) }}
	}
	return &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }}
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
	if scheme.Form == Token {
		return string(s.keys[0])
	}
	content := appendContent(make([]byte, 0, len(m.Body)+contentRoom), s.content, m, timestamp)
	switch scheme.Form {
	case KeyValue:
		var b strings.Builder
		b.WriteString(scheme.TimeKey + "=" + timestamp)
		for i := range s.keys {
			b.WriteString(scheme.Separator + scheme.SignatureKey + "=" + s.signature(i, content))
		}
		return b.String()
	case List:
		var b strings.Builder
		for i := range s.keys {
			if i > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(scheme.Version)
			b.WriteByte(',')
			b.WriteString(s.signature(i, content))
		}
		return b.String()
	default:
		return scheme.Prefix + s.signature(0, content)
	}
}

// contentRoom is what the signed content has besides the body, in most schemes.
const contentRoom = 128

// signature signs with the secret of a place.
func (s *Signer) signature(place int, content []byte) string {
	var room [sha256.Size]byte
	sum := room[:0]
	if s.scheme.Algorithm == Ed25519 {
		sum = ed25519.Sign(s.keys[place], content)
	} else {
		mac := s.macs[place].Get().(hash.Hash)
		mac.Reset()
		mac.Write(content)
		sum = mac.Sum(sum)
		s.macs[place].Put(mac)
	}
	if s.scheme.Encoding == Base64 {
		return base64.StdEncoding.EncodeToString(sum)
	}
	return hex.EncodeToString(sum)
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
