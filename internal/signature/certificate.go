package signature

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
)

// Here are the schemes whose key is a certificate that the message points to. The
// address is pinned to the provider's own: else anybody could sign.

// Fetch gets the body of an address, within the time and size that the caller of
// this package sets.
type Fetch func(ctx context.Context, address string) ([]byte, error)

// certificates keeps what was fetched.
type certificates struct {
	fetch   Fetch
	allowed func(*url.URL) bool

	mu    sync.Mutex
	known map[string]*rsa.PublicKey
}

const mostCertificates = 16

func (c *certificates) key(address string) (*rsa.PublicKey, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Port() != "" || !c.allowed(u) {
		return nil, errors.New("the certificate's address is not one of the provider")
	}
	if key := c.cached(address); key != nil {
		return key, nil
	}
	// Without the lock: one that can't be had must not keep the others waiting.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	text, err := c.fetch(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the certificate is not PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, errors.New("the certificate can't be read")
	}
	key, ok := certificate.PublicKey.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("the certificate's key is not RSA")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) < mostCertificates {
		c.known[address] = key
	}
	return key, nil
}

func (c *certificates) cached(address string) *rsa.PublicKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[address]
}

// ErrUnavailable says that a message could not be verified at present, through no
// fault of its sender.
var ErrUnavailable = errors.New("the provider's certificate can't be had at present")

// SNSOptions are what Amazon SNS messages are held against.
type SNSOptions struct {
	Topics []string // ARNs; messages of others are refused
	Limits Limits
	Fetch  Fetch
}

type sns struct {
	o            SNSOptions
	certificates certificates
}

var (
	snsHost = regexp.MustCompile(`^sns\.[a-z0-9-]{3,}\.amazonaws\.com(\.cn)?$`)
	snsPath = regexp.MustCompile(`^/SimpleNotificationService-[A-Za-z0-9]+\.pem$`)
)

// NewSNS returns the verifier of Amazon SNS messages, of signature versions 1 and 2.
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
func NewSNS(o SNSOptions) (Verifier, error) {
	if len(o.Topics) == 0 {
		return nil, errors.New("no topic: without the ARNs of yours anybody's topic would verify")
	}
	if o.Limits.MaxAge == 0 {
		o.Limits.MaxAge = time.Hour // what SNS retries bears its first time
	}
	if o.Limits.MaxFuture == 0 {
		o.Limits.MaxFuture = time.Minute
	}
	return &sns{o, certificates{
		fetch: o.Fetch, known: make(map[string]*rsa.PublicKey),
		allowed: func(u *url.URL) bool { return snsHost.MatchString(u.Host) && snsPath.MatchString(u.Path) },
	}}, nil
}

// Verify implements Verifier.
func (s *sns) Verify(r Received) error {
	if err := unambiguous(r.Body); err != nil {
		return err
	}
	message := gjson.ParseBytes(r.Body)
	if !slices.Contains(s.o.Topics, message.Get("TopicArn").String()) {
		return errors.New("the topic is not one of the config's")
	}
	fields := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	if kind := message.Get("Type").String(); kind == "SubscriptionConfirmation" || kind == "UnsubscribeConfirmation" {
		fields = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	var content strings.Builder
	for _, name := range fields {
		if value := message.Get(name); value.Exists() {
			content.WriteString(name + "\n" + value.String() + "\n")
		}
	}
	key, err := s.certificates.key(message.Get("SigningCertURL").String())
	if err != nil {
		return err
	}
	algorithm := crypto.SHA1
	if message.Get("SignatureVersion").String() == "2" {
		algorithm = crypto.SHA256
	}
	if err := rsaVerify(key, algorithm, content.String(), message.Get("Signature").String()); err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339, message.Get("Timestamp").String())
	if err != nil {
		return errors.New("the timestamp is no RFC 3339 time")
	}
	return s.o.Limits.check(at, r.Now)
}

func rsaVerify(key *rsa.PublicKey, algorithm crypto.Hash, content, encoded string) error {
	sum, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(sum) == 0 {
		return errors.New("there is no signature that can be decoded")
	}
	var digest []byte
	if algorithm == crypto.SHA256 {
		d := sha256.Sum256([]byte(content))
		digest = d[:]
	} else {
		d := sha1.Sum([]byte(content))
		digest = d[:]
	}
	if rsa.VerifyPKCS1v15(key, algorithm, digest, sum) != nil {
		return errors.New("the signature is not made by the certificate's key")
	}
	return nil
}

type paypal struct {
	webhookIDs   []string
	limits       Limits
	certificates certificates
}

// NewPayPal returns the verifier of PayPal's webhooks; the secrets are webhook ids.
// The signature covers a CRC of the body only, so another body with the same CRC
// fits: what is signed beyond doubt is the transmission id.
// https://developer.paypal.com/api/rest/webhooks/rest/
func NewPayPal(webhookIDs []string, limits Limits, fetch Fetch) (Verifier, error) {
	if _, err := textKeys(webhookIDs); err != nil {
		return nil, err
	}
	if limits.MaxFuture == 0 {
		limits.MaxFuture = time.Minute
	}
	return &paypal{webhookIDs, limits, certificates{
		fetch: fetch, known: make(map[string]*rsa.PublicKey),
		allowed: func(u *url.URL) bool {
			return (u.Host == "api.paypal.com" || u.Host == "api.sandbox.paypal.com") && strings.HasPrefix(u.Path, "/v1/notifications/certs/")
		},
	}}, nil
}

// Verify implements Verifier.
func (p *paypal) Verify(r Received) error {
	var values [4]string
	for i, name := range []string{"Paypal-Transmission-Id", "Paypal-Transmission-Time", "Paypal-Transmission-Sig", "Paypal-Cert-Url"} {
		value, err := one(r.Header, name)
		if err != nil {
			return err
		}
		values[i] = value
	}
	if algorithm, err := one(r.Header, "Paypal-Auth-Algo"); err != nil || !strings.EqualFold(algorithm, "SHA256withRSA") {
		return errors.New("the algorithm is not SHA256withRSA")
	}
	key, err := p.certificates.key(values[3])
	if err != nil {
		return err
	}
	err = errors.New("no webhook id")
	for _, id := range p.webhookIDs {
		content := fmt.Sprintf("%s|%s|%s|%d", values[0], values[1], id, crc32.ChecksumIEEE(r.Body))
		if err = rsaVerify(key, crypto.SHA256, content, values[2]); err == nil {
			break
		}
	}
	if err != nil || p.limits.MaxAge == 0 {
		return err
	}
	at, err := time.Parse(time.RFC3339, values[1])
	if err != nil {
		return errors.New("the timestamp is no RFC 3339 time")
	}
	return p.limits.check(at, r.Now)
}
