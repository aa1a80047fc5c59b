package inbox

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/test/database"
)

func TestMain(m *testing.M) { os.Exit(database.Run(m)) }

// desk is a Receiver over a real database, at a time that the test says.
type desk struct {
	*database.Database
	receiver *Receiver
	now      time.Time
	fetched  []string
}

const deskURL = "https://hooks.example.com"

func newDesk(t *testing.T, partners ...Partner) *desk {
	t.Helper()
	d := &desk{Database: database.New(t), now: time.Unix(1_700_000_000, 0)}
	pool, err := pgxpool.New(t.Context(), d.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	tables := Tables{Inbox: pgx.Identifier{"public", "webhook_inbox"}, Schema: "cdc_relay"}
	if err := Migrate(t.Context(), pool, tables); err != nil {
		t.Fatal(err)
	}
	d.receiver, err = NewHandler(Options{
		Database: pool, Tables: tables, Partners: partners, PublicURL: deskURL + "/", Now: func() time.Time { return d.now }, Log: zerolog.Nop(),
		Fetch: func(_ context.Context, address string) ([]byte, error) {
			d.fetched = append(d.fetched, address)
			return nil, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ask sends one request.
func (d *desk) ask(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	recorder := httptest.NewRecorder()
	d.receiver.ServeHTTP(recorder, request)
	return recorder
}

// ids are those of the stored events, in the order of their arrival.
func (d *desk) ids(t *testing.T) string {
	t.Helper()
	return database.One[string](t, d.Database, `SELECT coalesce(string_agg(partner_event_id, ' ' ORDER BY seq), '') FROM webhook_inbox`)
}

func wants(t *testing.T, r *httptest.ResponseRecorder, status int, body string) {
	t.Helper()
	if r.Code != status || body != "" && strings.TrimSpace(r.Body.String()) != body {
		t.Errorf("got %d %q, want %d %q", r.Code, r.Body.String(), status, body)
	}
}

// TestChallenges are answered after verifying, where there is something to verify, and
// not stored.
func TestChallenges(t *testing.T) {
	t.Parallel()
	d := newDesk(t,
		Partner{Name: "slack", Preset: "slack", Secrets: []string{"s"}}, Partner{Name: "zoom", Preset: "zoom", Secrets: []string{"s"}},
		Partner{Name: "meta", Preset: "meta", Secrets: []string{"s"}, VerifyToken: "token"}, Partner{Name: "github", Preset: "github", Secrets: []string{"s"}},
		Partner{Name: "ce", Preset: "cloudevents", Secrets: []string{"s"}},
	)
	v0 := func(body string) string { return "v0=" + hex.EncodeToString(sum256("s", "v0:1700000000:"+body)) }
	challenge := `{"type":"url_verification","challenge":"c-1"}`
	wants(t, d.ask("POST", "/webhooks/slack", challenge, "X-Slack-Request-Timestamp", "1700000000", "X-Slack-Signature", v0(challenge)), 200, "c-1")
	wants(t, d.ask("POST", "/webhooks/slack", challenge, "X-Slack-Request-Timestamp", "1700000000", "X-Slack-Signature", v0("other")), 401, "")
	validation := `{"event":"endpoint.url_validation","payload":{"plainToken":"p"}}`
	wants(t, d.ask("POST", "/webhooks/zoom", validation, "x-zm-request-timestamp", "1700000000", "x-zm-signature", v0(validation)), 200,
		fmt.Sprintf(`{"encryptedToken":"%s","plainToken":"p"}`, hex.EncodeToString(sum256("s", "p"))))
	wants(t, d.ask("GET", "/webhooks/meta?hub.mode=subscribe&hub.verify_token=token&hub.challenge=42", ""), 200, "42")
	wants(t, d.ask("GET", "/webhooks/meta?hub.mode=subscribe&hub.verify_token=guess&hub.challenge=42", ""), 403, "")
	ping := `{"zen":"x"}`
	wants(t, d.ask("POST", "/webhooks/github", ping, "X-GitHub-Event", "ping", "X-GitHub-Delivery", "1", "X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum256("s", ping))), 200, "")
	options := d.ask("OPTIONS", "/webhooks/ce", "", "WebHook-Request-Origin", "events.example.com")
	if options.Code != 200 || options.Header().Get("WebHook-Allowed-Origin") != "events.example.com" {
		t.Errorf("OPTIONS got %d %v", options.Code, options.Header())
	}
	wants(t, d.ask("GET", "/webhooks/slack", ""), 405, "")
	if got := d.ids(t); got != "" {
		t.Errorf("stored %q, want nothing", got)
	}
}

// TestSNSConfirmation: a subscription is confirmed at Amazon's address alone, after
// verifying.
func TestSNSConfirmation(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Partner{Name: "sns", Preset: "aws-sns", Topics: []string{"arn:mine"}, Verify: "none"})
	message := func(address string) string {
		return fmt.Sprintf(`{"Type":"SubscriptionConfirmation","TopicArn":"arn:mine","SubscribeURL":%q}`, address)
	}
	wants(t, d.ask("POST", "/webhooks/sns", message("https://evil.example/?x")), 400, "")
	wants(t, d.ask("POST", "/webhooks/sns", message("http://sns.eu-west-1.amazonaws.com/?x")), 400, "")
	if len(d.fetched) != 0 {
		t.Errorf("fetched %v", d.fetched)
	}
	wants(t, d.ask("POST", "/webhooks/sns", message("https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription")), 200, "")
	if len(d.fetched) != 1 {
		t.Errorf("fetched %v, want the subscribe URL", d.fetched)
	}
}

// TestBatches become one row an item, all or none.
func TestBatches(t *testing.T) {
	t.Parallel()
	d := newDesk(t,
		Partner{Name: "hubspot", Preset: "hubspot", Secrets: []string{"s"}},
		Partner{Name: "adyen", Preset: "adyen", Secrets: []string{"00"}, Verify: "none"}, Partner{Name: "sendgrid", Preset: "sendgrid", Verify: "none"},
	)
	sign := func(body string) []string {
		content := "POST" + deskURL + "/webhooks/hubspot" + body + "1700000000000"
		return []string{"X-HubSpot-Request-Timestamp", "1700000000000", "X-HubSpot-Signature-v3", base64.StdEncoding.EncodeToString(sum256("s", content))}
	}
	item := func(event int) string {
		return fmt.Sprintf(`{"subscriptionId":1,"eventId":%d,"objectId":3,"occurredAt":4,"subscriptionType":"contact.creation","attemptNumber":0}`, event)
	}
	body := "[" + item(1) + "," + item(2) + "," + item(1) + "]"
	wants(t, d.ask("POST", "/webhooks/hubspot", body, sign(body)...), 200, "")
	if got := d.ids(t); got != "1.1.3.4 1.2.3.4" {
		t.Errorf("stored %q", got)
	}
	bad := "[" + item(5) + `,{"no":"id"}]`
	wants(t, d.ask("POST", "/webhooks/hubspot", bad, sign(bad)...), 400, "")
	wants(t, d.ask("POST", "/webhooks/hubspot", `{}`, sign(`{}`)...), 400, "")
	if got := d.ids(t); got != "1.1.3.4 1.2.3.4" {
		t.Errorf("after a batch with a mistake %q is stored", got)
	}
	wants(t, d.ask("POST", "/webhooks/adyen", `{"notificationItems":[{"NotificationRequestItem":{"pspReference":"P","eventCode":"AUTHORISATION","success":"true"}}]}`), 200, "[accepted]")
	wants(t, d.ask("POST", "/webhooks/sendgrid", `[{"sg_event_id":"a","event":"open"},{"sg_event_id":"b","event":"click"}]`), 200, "")
	if got := d.ids(t); got != "1.1.3.4 1.2.3.4 P.AUTHORISATION.true a b" {
		t.Errorf("stored %q", got)
	}
}

// TestStored: odd bodies and ids.
func TestStored(t *testing.T) {
	t.Parallel()
	open := func(name string, change func(*Partner)) Partner {
		p := Partner{Name: name, Preset: "generic", Verify: "none", EventID: []string{"header:X-Id", "json:id"}, EventType: []string{"json:type"}}
		change(&p)
		return p
	}
	d := newDesk(t,
		open("plain", func(*Partner) {}), open("hash", func(p *Partner) { p.MissingID = "hash" }),
		Partner{Name: "shopify", Preset: "shopify", Secrets: []string{"s"}}, Partner{Name: "discord", Preset: "discord", Verify: "none"},
	)
	row := func(id, columns string) string {
		t.Helper()
		return database.One[string](t, d.Database, `SELECT `+columns+` FROM webhook_inbox WHERE partner_event_id = $1`, id)
	}
	wants(t, d.ask("POST", "/webhooks/plain", `{"type":"x"}`), 400, "")
	wants(t, d.ask("POST", "/webhooks/plain", ""), 400, "")
	wants(t, d.ask("POST", "/webhooks/plain", `{"id":"form is not json"`), 400, "")
	wants(t, d.ask("POST", "/webhooks/plain", `{"id":"b","type":"first"}`, "X-Id", "a"), 200, "")
	if got := row("a", `event_type`); got != "first" {
		t.Errorf("type %q", got)
	}
	wants(t, d.ask("POST", "/webhooks/plain", "id=f-1&type=t&type=u", "Content-Type", "application/x-www-form-urlencoded"), 200, "")
	if got := row("f-1", `payload::text`); got != `{"id": "f-1", "type": ["t", "u"]}` {
		t.Errorf("a form is stored as %s", got)
	}
	wants(t, d.ask("POST", "/webhooks/plain", "payload="+url.QueryEscape(`{"id":"f-2"}`), "Content-Type", "application/x-www-form-urlencoded"), 200, "")
	if got := row("f-2", `payload::text`); got != `{"id": "f-2"}` {
		t.Errorf("a form with a payload is stored as %s", got)
	}
	wants(t, d.ask("POST", "/webhooks/plain", `{"id":"zero","v":"a\u0000b"}`), 200, "")
	wants(t, d.ask("POST", "/webhooks/plain", `{"id":"huge","v":1e400000}`), 200, "")
	for _, id := range []string{"zero", "huge"} {
		if got := row(id, `jsonb_typeof(payload) || ' ' || convert_from(body, 'UTF8')`); !strings.HasPrefix(got, `string {"id":"`+id) {
			t.Errorf("what jsonb can't hold is stored as %s", got)
		}
	}
	long := strings.Repeat("x", 300)
	wants(t, d.ask("POST", "/webhooks/plain", `{"id":"`+long+`"}`), 200, "")
	wants(t, d.ask("POST", "/webhooks/plain", `{"id":"`+long+`"}`), 200, "")
	if n := database.One[int](t, d.Database, `SELECT count(*)::int FROM webhook_inbox WHERE partner_event_id LIKE 'sha256:%' AND duplicate_count = 1`); n != 1 {
		t.Errorf("a long id has %d rows that are known to have come twice, want 1", n)
	}
	wants(t, d.ask("POST", "/webhooks/hash", `{"n":1}`), 200, "")
	wants(t, d.ask("POST", "/webhooks/hash", `{"n":1}`), 200, "")
	wants(t, d.ask("POST", "/webhooks/hash", `{"n":2}`), 200, "")
	if n := database.One[int](t, d.Database, `SELECT count(*)::int FROM webhook_inbox WHERE partner_name = 'hash'`); n != 2 {
		t.Errorf("%d rows, want one for each body", n)
	}
	// An unsigned id: the same body under another one may be a replay by somebody else.
	body := `{"order":1}`
	sum := base64.StdEncoding.EncodeToString(sum256("s", body))
	for _, id := range []string{"w-1", "w-2"} {
		wants(t, d.ask("POST", "/webhooks/shopify", body, "X-Shopify-Hmac-Sha256", sum, "X-Shopify-Webhook-Id", id, "X-Shopify-Topic", "orders/paid"), 200, "")
	}
	if got := row("w-2", `flagged`); got == "" {
		t.Error("the same body under another id is not flagged")
	}
	if got := row("w-1", `coalesce(flagged, '')`); got != "" {
		t.Errorf("the first is flagged: %s", got)
	}
	wants(t, d.ask("POST", "/webhooks/discord", `{"type":0}`), 204, "")
	wants(t, d.ask("POST", "/webhooks/discord", `{"type":1}`), 200, `{"type":1}`)
}

// TestRefusedAtStart: what can't be verified, or identified, does not start.
func TestRefusedAtStart(t *testing.T) {
	t.Parallel()
	for what, p := range map[string]Partner{
		"no secret":           {Name: "p", Preset: "github"},
		"an empty secret":     {Name: "p", Preset: "github", Secrets: []string{""}},
		"an unknown preset":   {Name: "p", Preset: "githab", Secrets: []string{"s"}},
		"verify spelled none": {Name: "p", Preset: "github", Verify: "no"},
		"a name with a slash": {Name: "p/q", Preset: "github", Secrets: []string{"s"}},
		"no id":               {Name: "p", Preset: "generic", Secrets: []string{"s"}, Scheme: &Scheme{Header: "X", Template: "{body}"}},
		"no template":         {Name: "p", Preset: "generic", Secrets: []string{"s"}, Scheme: &Scheme{Header: "X"}, MissingID: "hash"},
		"a source of nothing": {Name: "p", Preset: "github", Secrets: []string{"s"}, EventID: []string{"cookie:x"}},
		"no topic":            {Name: "p", Preset: "aws-sns"},
	} {
		if _, err := NewHandler(Options{Tables: Tables{Inbox: pgx.Identifier{"public", "x"}, Schema: "s"}, Partners: []Partner{p}}); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	same := Partner{Name: "p", Preset: "github", Secrets: []string{"s"}}
	if _, err := NewHandler(Options{Tables: Tables{Inbox: pgx.Identifier{"public", "x"}, Schema: "s"}, Partners: []Partner{same, same}}); err == nil {
		t.Error("two partners of one name are taken")
	}
}

// TestGenericScheme: what no preset knows is described.
func TestGenericScheme(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Partner{Name: "own", Preset: "generic", Secrets: []string{"old", "new"}, EventID: []string{"header:X-Id"}, Scheme: &Scheme{
		Header: "X-Sign", Form: "pairs", Separator: ",", TimestampKey: "t", SignatureKey: "s", Template: "{timestamp}.{method}.{url}.{header:X-Id}.{body}", MaxAge: time.Minute,
	}})
	ask := func(secret, stamp, id string) *httptest.ResponseRecorder {
		sum := hex.EncodeToString(sum256(secret, stamp+".POST."+deskURL+"/webhooks/own?a=1.i-1.{}"))
		return d.ask(http.MethodPost, "/webhooks/own?a=1", "{}", "X-Sign", "t="+stamp+",s="+sum+",v=9", "X-Id", id, "X-Forwarded-Host", "evil.example")
	}
	wants(t, ask("new", "1700000000", "i-1"), 200, "")
	wants(t, ask("old", "1700000000", "i-1"), 200, "")
	wants(t, ask("other", "1700000000", "i-1"), 401, "the signature does not verify")
	wants(t, ask("new", "1700000000", "i-2"), 401, "the signature does not verify")
	wants(t, ask("new", "1699999000", "i-1"), 401, "the signature does not verify")
	wants(t, ask("new", "1700000200", "i-1"), 401, "the signature does not verify")
	if got := d.ids(t); got != "i-1" {
		t.Errorf("stored %q", got)
	}
}
