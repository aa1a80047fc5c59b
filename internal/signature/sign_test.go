package signature

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func sign(t *testing.T, scheme string, m Message, secrets ...string) http.Header {
	t.Helper()
	s, err := Preset(scheme)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := NewSigner(s, secrets)
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{}
	for _, h := range signer.Sign(m) {
		header.Set(h.Name, h.Value)
	}
	return header
}

// TestStandardVerifies holds the signature against the library of the
// specification's authors, with one secret, with the second of two, and with a
// secret that isn't base64.
func TestStandardVerifies(t *testing.T) {
	t.Parallel()
	message := Message{ID: "e-1", Time: time.Now(), Body: []byte(`{"a": "é"}`)}
	first, second := "whsec_Zmlyc3Qgc2VjcmV0IG9mIHR3bw==", "plain text secret"
	header := sign(t, "standard", message, first, second)
	if n := len(strings.Split(header.Get("webhook-signature"), " ")); n != 2 {
		t.Errorf("%d signatures, want 2", n)
	}
	byPrefix, err := webhook.NewWebhook(first)
	if err != nil {
		t.Fatal(err)
	}
	byBytes, err := webhook.NewWebhookRaw([]byte(second))
	if err != nil {
		t.Fatal(err)
	}
	for i, verifier := range []*webhook.Webhook{byPrefix, byBytes} {
		if err := verifier.Verify(message.Body, header); err != nil {
			t.Errorf("secret %d: %v", i+1, err)
		}
	}
	if err := byPrefix.Verify([]byte(`{"a": "e"}`), header); err == nil {
		t.Error("another body verifies")
	}
}

func TestPresetHeaders(t *testing.T) {
	t.Parallel()
	message := Message{ID: "e-1", Time: time.Unix(1700000000, 0), Method: "POST", URL: "https://r.example/hook", Body: []byte("Hello, World!")}
	cases := []struct{ scheme, secret, header, want string }{
		// The value that the provider's documentation gives.
		{"github", "It's a Secret to Everybody", "X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
		{"github", "x", "X-GitHub-Delivery", "e-1"},
		{"slack", "x", "X-Slack-Request-Timestamp", "1700000000"},
		{"hubspot", "x", "X-HubSpot-Request-Timestamp", "1700000000000"},
		{"zendesk", "x", "X-Zendesk-Webhook-Signature-Timestamp", "2023-11-14T22:13:20Z"},
		{"gitlab-token", "tok", "X-Gitlab-Token", "tok"},
	}
	for _, c := range cases {
		if got := sign(t, c.scheme, message, c.secret).Get(c.header); got != c.want {
			t.Errorf("%s: %s is %q, want %q", c.scheme, c.header, got, c.want)
		}
	}
	if got := sign(t, "stripe", message, "a", "b").Get("Stripe-Signature"); strings.Count(got, ",v1=") != 2 || !strings.HasPrefix(got, "t=1700000000,") {
		t.Errorf("stripe with two secrets: %q", got)
	}
}

func TestNewSignerRefuses(t *testing.T) {
	t.Parallel()
	for scheme, secrets := range map[string][]string{
		"standard": {"whsec_not base64!"}, "adyen-platform": {"zz-secret-zz"}, "discord": {"00ff"},
		"stripe": {""}, "github": nil, "standard-ed25519": {"whsk_AAAA"},
	} {
		s, err := Preset(scheme)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewSigner(s, secrets); err == nil {
			t.Errorf("%s with %q: no error", scheme, secrets)
		} else if len(secrets) > 0 && secrets[0] != "" && strings.Contains(err.Error(), secrets[0]) {
			t.Errorf("%s: the error shows the secret: %v", scheme, err)
		}
	}
	if _, err := Preset("nobody"); err == nil {
		t.Error("an unknown scheme: no error")
	}
}

func TestSignerShowsNoKey(t *testing.T) {
	t.Parallel()
	signer, err := NewSigner(Standard(), []string{"hush hush"})
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if shown := fmt.Sprintf(verb, signer); shown != "signer(standard)" {
			t.Errorf("%s shows %q", verb, shown)
		}
	}
}

func TestEscapeIDKeepsMessagesApart(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{"plain-1": "plain-1", "a.b": "a%2Eb", "a%2Eb": "a%252Eb"} {
		if got := EscapeID(id); got != want {
			t.Errorf("%q becomes %q, want %q", id, got, want)
		}
	}
	// "a" at "1700000000" with body "b" and "a.1700000000" with an empty timestamp's
	// text would otherwise sign the same bytes.
	one := sign(t, "standard", Message{ID: EscapeID("a.1"), Time: time.Unix(2, 0), Body: []byte("b")}, "s").Get("webhook-signature")
	two := sign(t, "standard", Message{ID: EscapeID("a"), Time: time.Unix(1, 0), Body: []byte("2.b")}, "s").Get("webhook-signature")
	if one == two {
		t.Error("two different messages sign alike")
	}
}
