package inbox

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/big"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// vector is a request that a partner has signed.
type vector struct {
	Preset  string            `json:"preset"`
	Secret  string            `json:"secret"`
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	Body    string            `json:"body"`
	NowUnix *int64            `json:"now_unix"`

	topics []string
	fetch  signature.Fetch
}

func (v vector) received() signature.Received {
	h := make(http.Header)
	for name, value := range v.Headers {
		h.Set(name, value)
	}
	now := time.Unix(1_700_000_000, 0)
	if v.NowUnix != nil {
		now = time.Unix(*v.NowUnix, 0)
	}
	return signature.Received{Method: v.Method, URL: v.URL, Header: h, Body: []byte(v.Body), Now: now}
}

func (v vector) verifier(t *testing.T, secrets ...string) signature.Verifier {
	t.Helper()
	p := Partner{Name: "p", Preset: v.Preset, Secrets: append(secrets, v.Secret), Topics: v.topics}
	verifier, err := p.verifierOf(v.fetch)
	if err != nil {
		t.Fatal(err)
	}
	return verifier
}

// vectors are those that were published, and for each preset without one another that
// is made here, by the provider's description and not by the code under test.
func vectors(t *testing.T) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []vector
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	list = append(list, plainVectors()...)
	list = append(list, edVectors(t)...)
	return append(list, certificateVectors(t)...)
}

func sum256(key, content string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(content))
	return mac.Sum(nil)
}

func plainVectors() []vector {
	body := `{"type":"t","data":{"id":"1"},"webhookEvent":"e"}`
	hub := func(preset string) vector {
		return vector{Preset: preset, Secret: "s3cret", Headers: map[string]string{"X-Hub-Signature": "sha256=" + hex.EncodeToString(sum256("s3cret", body))}, Body: body}
	}
	return []vector{
		hub("bitbucket"), hub("jira"),
		{Preset: "adyen-platform", Secret: hex.EncodeToString([]byte("key")), Body: body, Headers: map[string]string{
			"hmacsignature": base64.StdEncoding.EncodeToString(sum256("key", body)),
		}},
		{Preset: "gitlab-token", Secret: "token", Body: body, Headers: map[string]string{"X-Gitlab-Token": "token"}},
		{Preset: "cloudevents", Secret: "token", Body: body, Headers: map[string]string{"Authorization": "Bearer token"}},
	}
}

func edVectors(t *testing.T) []vector {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now, body := int64(1_700_000_000), `{"type":2}`
	stamp := fmt.Sprint(now)
	return []vector{
		{Preset: "discord", Secret: hex.EncodeToString(public), Body: body, NowUnix: &now, Headers: map[string]string{
			"X-Signature-Timestamp": stamp, "X-Signature-Ed25519": hex.EncodeToString(ed25519.Sign(private, []byte(stamp+body))),
		}},
		{Preset: "standard-ed25519", Secret: "whpk_" + base64.StdEncoding.EncodeToString(public), Body: body, NowUnix: &now, Headers: map[string]string{
			"webhook-id": "m-1", "webhook-timestamp": stamp,
			"webhook-signature": "v1a," + base64.StdEncoding.EncodeToString(ed25519.Sign(private, []byte("m-1."+stamp+"."+body))),
		}},
	}
}

func certificateVectors(t *testing.T) []vector {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	fetch := func(_ context.Context, address string) ([]byte, error) {
		if !strings.HasPrefix(address, "https://sns.eu-west-1.amazonaws.com/") && !strings.HasPrefix(address, "https://api.paypal.com/") {
			return nil, errors.New("not to be fetched: " + address)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
	}
	sign := func(algorithm crypto.Hash, content string) string {
		digest := algorithm.New()
		digest.Write([]byte(content))
		sum, err := rsa.SignPKCS1v15(rand.Reader, key, algorithm, digest.Sum(nil))
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(sum)
	}
	now, at, topic := int64(1_700_000_000), time.Unix(1_700_000_000, 0).UTC().Format(time.RFC3339), "arn:aws:sns:eu-west-1:1:mine"
	sns := func(version string, algorithm crypto.Hash) vector {
		body, _ := json.Marshal(map[string]string{
			"Type": "Notification", "MessageId": "m-" + version, "TopicArn": topic, "Subject": "s", "Message": "hello", "Timestamp": at, "SignatureVersion": version,
			"Signature":      sign(algorithm, "Message\nhello\nMessageId\nm-"+version+"\nSubject\ns\nTimestamp\n"+at+"\nTopicArn\n"+topic+"\nType\nNotification\n"),
			"SigningCertURL": "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc.pem",
		})
		return vector{Preset: "aws-sns", Body: string(body), NowUnix: &now, topics: []string{topic}, fetch: fetch}
	}
	body := `{"event_type":"x"}`
	paypal := vector{Preset: "paypal", Secret: "webhook-id", Body: body, fetch: fetch, Headers: map[string]string{
		"Paypal-Transmission-Id": "t-1", "Paypal-Transmission-Time": at, "Paypal-Auth-Algo": "SHA256withRSA",
		"Paypal-Cert-Url":         "https://api.paypal.com/v1/notifications/certs/CERT-1",
		"Paypal-Transmission-Sig": sign(crypto.SHA256, fmt.Sprintf("t-1|%s|webhook-id|%d", at, crc32.ChecksumIEEE([]byte(body)))),
	}}
	return []vector{sns("1", crypto.SHA1), sns("2", crypto.SHA256), paypal}
}

// TestVectors: each verifies, and so does it while another secret is active too.
func TestVectors(t *testing.T) {
	t.Parallel()
	covered := make(map[string]bool)
	for i, v := range vectors(t) {
		covered[v.Preset] = true
		if err := v.verifier(t).Verify(v.received()); err != nil {
			t.Errorf("vector %d of %s: %v", i, v.Preset, err)
		}
	}
	for _, preset := range Presets() {
		if !covered[preset] && preset != "generic" {
			t.Errorf("preset %s has no vector", preset)
		}
	}
}

// bodySigned tells whether a scheme covers the body's bytes.
func bodySigned(preset string) bool {
	switch preset {
	case "gitlab-token", "cloudevents", "mailgun":
		return false
	}
	return true
}

// TestVectorsAltered: whatever is changed of a request, it does not verify.
func TestVectorsAltered(t *testing.T) {
	t.Parallel()
	for i, v := range vectors(t) {
		verifier := v.verifier(t)
		refused := func(what string, r signature.Received) {
			t.Helper()
			if err := verifier.Verify(r); err == nil {
				t.Errorf("vector %d of %s verifies with %s", i, v.Preset, what)
			} else if v.Secret != "" && strings.Contains(err.Error(), v.Secret) && len(v.Secret) > 5 {
				t.Errorf("vector %d of %s: the error shows the secret: %v", i, v.Preset, err)
			}
		}
		if bodySigned(v.Preset) {
			r := v.received()
			r.Body = []byte(strings.NewReplacer("hello", "hellO", "Hello", "hellO", `"`, `" `, "Digits=1", "Digits=9").Replace(v.Body))
			if v.Preset == "adyen" {
				r.Body = []byte(strings.Replace(v.Body, `"success"`, `"Success"`, 1))
			}
			refused("an altered body", r)
		}
		for name := range v.Headers {
			if unsigned(name) {
				continue
			}
			r := v.received()
			r.Header = maps.Clone(r.Header)
			r.Header.Del(name)
			refused("no "+name, r)
			r.Header[http.CanonicalHeaderKey(name)] = []string{v.Headers[name], v.Headers[name]}
			if name != "Content-Type" {
				refused("two of "+name, r)
			}
			r.Header[http.CanonicalHeaderKey(name)] = []string{flip(v.Headers[name])}
			if name != "Content-Type" && name != "Paypal-Cert-Url" && v.Headers[name] != "Bearer token" && v.Headers[name] != "token" {
				refused("another "+name, r)
			}
		}
		if timed(v.Preset) {
			for what, by := range map[string]time.Duration{"an old timestamp": 2 * time.Hour, "a timestamp of the future": -10 * time.Minute} {
				r := v.received()
				r.Now = r.Now.Add(by)
				refused(what, r)
			}
		}
	}
}

// timed tells whether a scheme signs a time that is looked at by itself.
func timed(preset string) bool {
	switch preset {
	case "standard", "standard-ed25519", "stripe", "slack", "zoom", "paddle", "hubspot", "discord", "sendgrid", "aws-sns":
		return true
	}
	return false
}

// unsigned tells whether a header is no part of what is signed.
func unsigned(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "X-Shopify-Webhook-Id", "X-Shopify-Topic", "Linear-Delivery":
		return true
	}
	return false
}

// flip changes every digit.
func flip(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return '0' + (r-'0'+1)%10
		}
		return r
	}, text)
}

// TestVectorsWrongSecret: with another secret none verifies; an empty one is refused
// when the service starts.
func TestVectorsWrongSecret(t *testing.T) {
	t.Parallel()
	others := map[string]bool{"aws-sns": true} // it has none
	for i, v := range vectors(t) {
		p := Partner{Name: "p", Preset: v.Preset, Topics: v.topics}
		if others[v.Preset] {
			continue
		}
		for _, secrets := range [][]string{nil, {""}, {v.Secret, ""}} {
			p.Secrets = secrets
			if _, err := p.verifierOf(v.fetch); err == nil {
				t.Errorf("vector %d of %s: secrets %q are taken", i, v.Preset, secrets)
			}
		}
		p.Secrets = []string{otherSecret(t, v)}
		verifier, err := p.verifierOf(v.fetch)
		if err != nil {
			t.Errorf("vector %d of %s: %v", i, v.Preset, err)
			continue
		}
		if verifier.Verify(v.received()) == nil {
			t.Errorf("vector %d of %s verifies with another secret", i, v.Preset)
		}
		if err := v.verifier(t, p.Secrets...).Verify(v.received()); err != nil {
			t.Errorf("vector %d of %s does not verify while a second secret is active: %v", i, v.Preset, err)
		}
	}
}

// otherSecret is of the same form and not the same.
func otherSecret(t *testing.T, v vector) string {
	t.Helper()
	switch v.Preset {
	case "sendgrid":
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(der)
	case "discord", "standard-ed25519", "standard":
		public, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if v.Preset == "discord" {
			return hex.EncodeToString(public)
		}
		if strings.HasPrefix(v.Secret, "whpk_") {
			return "whpk_" + base64.StdEncoding.EncodeToString(public)
		}
		return "whsec_" + base64.StdEncoding.EncodeToString(public[:24])
	case "adyen", "adyen-platform":
		return "00112233"
	}
	return v.Secret + "x"
}

// TestFieldsSignedTwice: where fields are signed and not the bytes, a key that stands
// twice could pass the signature with one value and be stored with the other.
func TestFieldsSignedTwice(t *testing.T) {
	t.Parallel()
	for _, v := range vectors(t) {
		switch v.Preset {
		case "aws-sns":
			v.Body = strings.TrimSuffix(v.Body, "}") + `,"Message":"another"}`
		case "adyen":
			v.Body = strings.Replace(v.Body, `"eventCode"`, `"pspReference":"another","eventCode"`, 1)
		default:
			continue
		}
		if v.verifier(t).Verify(v.received()) == nil {
			t.Errorf("%s verifies with a key twice", v.Preset)
		}
	}
}

// TestCertificateAddresses: a certificate is had from the provider alone.
func TestCertificateAddresses(t *testing.T) {
	t.Parallel()
	for _, v := range certificateVectors(t) {
		fetched := false
		fetch := v.fetch
		v.fetch = func(ctx context.Context, address string) ([]byte, error) {
			fetched = true
			return fetch(ctx, address)
		}
		for _, host := range []string{
			"http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc.pem", "https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-abc.pem",
			"https://evil.example/SimpleNotificationService-abc.pem", "https://sns.eu-west-1.amazonaws.com:8443/SimpleNotificationService-abc.pem",
			"https://x@sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc.pem", "https://sns.eu-west-1.amazonaws.com/other.pem",
			"https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1", "https://api.paypal.com/elsewhere",
		} {
			altered := v
			altered.Body = strings.Replace(v.Body, "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-abc.pem", host, 1)
			if v.Headers != nil {
				altered.Headers = maps.Clone(v.Headers)
				altered.Headers["Paypal-Cert-Url"] = host
			}
			if altered.verifier(t).Verify(altered.received()) == nil || fetched {
				t.Errorf("%s fetches the certificate from %s", v.Preset, host)
			}
		}
	}
}

// TestTwilioJSON: a JSON body is covered by its digest in the URL, which is signed.
func TestTwilioJSON(t *testing.T) {
	t.Parallel()
	body := `{"a":1}`
	digest := sha256.Sum256([]byte(body))
	v := vector{Preset: "twilio", Secret: "token", Method: http.MethodPost, Body: body, URL: "https://hooks.example.com/webhooks/t?bodySHA256=" + hex.EncodeToString(digest[:])}
	mac := hmac.New(sha1.New, []byte(v.Secret))
	mac.Write([]byte(v.URL))
	v.Headers = map[string]string{"Content-Type": "application/json", "X-Twilio-Signature": base64.StdEncoding.EncodeToString(mac.Sum(nil))}
	if err := v.verifier(t).Verify(v.received()); err != nil {
		t.Error(err)
	}
	v.Body = `{"a":2}`
	if v.verifier(t).Verify(v.received()) == nil {
		t.Error("another body verifies")
	}
}
