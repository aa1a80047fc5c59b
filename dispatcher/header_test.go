package dispatcher

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

func TestEventHeader(t *testing.T) {
	t.Parallel()
	event := &outbox.Event{
		Position: outbox.Position{Commit: 0x16B3748, Index: 3}, ID: "e-1",
		AggregateType: "order", AggregateID: "a\n1", HasAggregate: true, EventType: "naïve 100%",
		Headers: []byte(`{"traceparent": "00-ab", "X-Count": 3, "x-object": {"a": "é"}, "x-null": null, "bad name": " v ",
			"Idempotency-Key": "forged", "webhook-signature": "forged", "cdc-relay-lsn": "forged", "Content-Length": "1",
			"baggage": "k=%20v", "x-tab": "a\tb%"}`),
	}
	got, err := eventHeader(event, "", "cdc-relay/test")
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"cdc-relay/test"},
		"Idempotency-Key": {"e-1"}, "Cdc-Relay-Lsn": {"0/16B3748/3"},
		"Cdc-Relay-Event-Type": {"na%C3%AFve 100%25"}, "Cdc-Relay-Aggregate-Type": {"order"}, "Cdc-Relay-Aggregate-Id": {"a%0A1"},
		"Traceparent": {"00-ab"}, "X-Count": {"3"}, "X-Object": {`{"a": "%C3%A9"}`}, "Bad%20name": {"%20v%20"},
		"Baggage": {"k=%20v"}, "X-Tab": {"a%09b%25"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEventHeaderContentType(t *testing.T) {
	t.Parallel()
	row := []byte(`{"content-type": "application/cloudevents+json"}`)
	for _, c := range []struct{ configured, want string }{{"", "application/cloudevents+json"}, {"text/x", "text/x"}} {
		got, err := eventHeader(&outbox.Event{Headers: row}, c.configured, "")
		if err != nil || got.Get("Content-Type") != c.want {
			t.Errorf("configured %q: %q, %v, want %q", c.configured, got.Get("Content-Type"), err, c.want)
		}
	}
}

func TestEventHeaderRefusesWhatIsNoObject(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`[]`, `"x"`, `{`, `{"a": }`, `{} {}`, `nonsense`} {
		if _, err := eventHeader(&outbox.Event{Headers: []byte(text)}, "", ""); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

// TestEscapeValue holds that every text becomes a value that HTTP lets through
// and that percent-decoding gives back.
func TestEscapeValue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ -~]*`)).Draw(t, "text")
		escaped := escapeValue(text)
		if !standsInHeader(escaped) {
			t.Fatalf("%q can't stand in a header", escaped)
		}
		back, err := url.PathUnescape(escaped)
		if err != nil || back != text {
			t.Fatalf("%q is decoded to %q, %v", escaped, back, err)
		}
		if plain := standsInHeader(text) && !strings.Contains(text, "%"); plain && escaped != text {
			t.Fatalf("%q needs no escaping and became %q", text, escaped)
		}
	})
}
