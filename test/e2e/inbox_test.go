package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// inboxBundle is a bundle whose config has an inbox, and no relay unless the test adds
// one. Its partner "shop" signs by Standard Webhooks.
type inboxBundle struct {
	*bundle
	address string
}

// inboxSetup makes it; section is what the inbox's section has beside listen and the
// partner, rest what comes after it.
func inboxSetup(t *testing.T, section, rest string) *inboxBundle {
	t.Helper()
	b := &inboxBundle{bundle: &bundle{Database: database.New(t), receiver: newReceiver(t)}}
	b.configureInbox(t, section, rest)
	return b
}

func (b *inboxBundle) configureInbox(t *testing.T, section, rest string) {
	t.Helper()
	b.address = freeAddress(t)
	b.configure(t, fmt.Sprintf(`
inbox:
  listen: %q
  partners:
    - { name: shop, preset: standard, secrets: [ %s ], entity_key: [ "json:order" ] }
%s
%s`, b.address, secret, section, rest))
}

// second writes a config for another instance at an address of its own.
func (b *inboxBundle) second(t *testing.T) *inboxBundle {
	t.Helper()
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	other := &inboxBundle{bundle: &bundle{Database: b.Database, receiver: b.receiver}, address: freeAddress(t)}
	other.config = filepath.Join(t.TempDir(), "second.yaml")
	if err := os.WriteFile(other.config, []byte(strings.ReplaceAll(string(text), b.address, other.address)), 0o600); err != nil {
		t.Fatal(err)
	}
	return other
}

// startInbox starts the program and waits until it answers.
func (b *inboxBundle) startInbox(t *testing.T) *relay {
	t.Helper()
	r := b.start(t)
	eventually(t, "the inbox to listen", func() bool {
		response, err := http.Get("http://" + b.address + "/webhooks/nobody")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusNotFound
	})
	return r
}

// signed makes a webhook of partner shop, signed by the reference library.
func (b *inboxBundle) signed(t *testing.T, id, body string) *http.Request {
	t.Helper()
	signer, err := webhook.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := signer.Sign(id, now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequest(http.MethodPost, "http://"+b.address+"/webhooks/shop", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("webhook-id", id)
	request.Header.Set("webhook-timestamp", fmt.Sprint(now.Unix()))
	request.Header.Set("webhook-signature", signature)
	return request
}

// post sends a request and gives the answer's status; 0 without one.
func post(request *http.Request) (status int, body string, header http.Header) {
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(text)), response.Header
}

// deliver sends a webhook of partner shop and wants 200.
func (b *inboxBundle) deliver(t *testing.T, id, body string) {
	t.Helper()
	if status, text, _ := post(b.signed(t, id, body)); status != http.StatusOK {
		t.Fatalf("webhook %s got %d %q, want 200", id, status, text)
	}
}

// effects makes a SQL function that records what it was called with. An event whose
// body says so fails, is deferred, or is rejected.
func (b *inboxBundle) effects(t *testing.T) {
	t.Helper()
	if code, _, errs := b.run(t, "init"); code != 0 {
		t.Fatalf("init: exit code %d\n%s", code, errs)
	}
	b.Exec(t, `CREATE TABLE effects (n bigserial, event_id text, event_type text, entity text, at timestamptz DEFAULT clock_timestamp())`)
	b.Exec(t, `CREATE FUNCTION apply_webhook(e webhook_inbox) RETURNS text LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO effects (event_id, event_type, entity) VALUES (e.partner_event_id, e.event_type, e.entity_key);
			IF e.payload ? 'sleep' THEN PERFORM pg_sleep((e.payload->>'sleep')::float); END IF;
			IF e.payload ? 'fail' THEN RAISE EXCEPTION 'told to fail'; END IF;
			RETURN e.payload->>'answer';
		END $$`)
}

const effectsHandler = "  processing: { handler: { function: public.apply_webhook } }\n"

// inboxRow is what the tests look at.
type inboxRow struct {
	Status, Outcome, LastError string
	Attempts                   int
}

func (b *inboxBundle) row(t *testing.T, id string) inboxRow {
	t.Helper()
	return database.Row[inboxRow](t, b.Database, `SELECT status, coalesce(outcome, ''), coalesce(last_error, ''), attempts FROM webhook_inbox WHERE partner_event_id = $1`, id)
}

func (b *inboxBundle) becomes(t *testing.T, id, status, outcome string) {
	t.Helper()
	eventually(t, fmt.Sprintf("event %s to be %s %s", id, status, outcome), func() bool {
		row := b.row(t, id)
		return row.Status == status && row.Outcome == outcome
	})
}

// TestInboxOnceOverTwoInstances: one event posted a hundred times at once over two
// running instances gets 200 each time, has one row and one effect.
func TestInboxOnceOverTwoInstances(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, effectsHandler, "")
	b.effects(t)
	other := b.second(t)
	b.startInbox(t)
	other.startInbox(t)
	statuses := make(chan int, 100)
	var posting sync.WaitGroup
	for i := range 100 {
		target := []*inboxBundle{b, other}[i%2]
		request := target.signed(t, "evt-1", `{"type":"order.paid","order":"A"}`)
		posting.Go(func() {
			status, _, _ := post(request)
			statuses <- status
		})
	}
	posting.Wait()
	close(statuses)
	for status := range statuses {
		if status != http.StatusOK {
			t.Errorf("an answer was %d, want 200", status)
		}
	}
	b.becomes(t, "evt-1", "PROCESSED", "APPLIED")
	if n := database.One[int](t, b.Database, `SELECT count(*)::int FROM webhook_inbox`); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
	if n := database.One[int](t, b.Database, `SELECT count(*)::int FROM effects`); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// TestInboxAnswers: what each kind of request gets, and that nothing refused is stored.
func TestInboxAnswers(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, `    - { name: slow, preset: standard, secrets: [ `+secret+` ], rate_limit: 1 }
    - { name: small, preset: standard, secrets: [ `+secret+` ], max_body: 100 }
`, "")
	b.startInbox(t)
	change := func(change func(*http.Request)) *http.Request {
		request := b.signed(t, "evt", `{"type":"x"}`)
		change(request)
		return request
	}
	to := func(partner string) func(*http.Request) {
		return func(h *http.Request) { h.URL.Path = "/webhooks/" + partner }
	}
	for _, c := range []struct {
		what    string
		request *http.Request
		want    int
	}{
		{"an unknown partner", change(to("nobody")), http.StatusNotFound},
		{"another path", change(func(h *http.Request) { h.URL.Path = "/" }), http.StatusNotFound},
		{"GET", change(func(h *http.Request) { h.Method, h.Body, h.ContentLength = http.MethodGet, nil, 0 }), http.StatusMethodNotAllowed},
		{"an altered body", change(func(h *http.Request) {
			h.Body, h.ContentLength = io.NopCloser(strings.NewReader(`{"type":"y"}`)), 12
		}), http.StatusUnauthorized},
		{"an altered id", change(func(h *http.Request) { h.Header.Set("webhook-id", "other") }), http.StatusUnauthorized},
		{"no signature", change(func(h *http.Request) { h.Header.Del("webhook-signature") }), http.StatusUnauthorized},
		{"two timestamps", change(func(h *http.Request) {
			h.Header.Add("webhook-timestamp", h.Header.Get("webhook-timestamp"))
		}), http.StatusUnauthorized},
		{"a body that is not JSON", b.signed(t, "evt", `{"type":`), http.StatusBadRequest},
		{"a body over the limit", func() *http.Request {
			request := b.signed(t, "evt", `{"x":"`+strings.Repeat("x", 200)+`"}`)
			to("small")(request)
			return request
		}(), http.StatusRequestEntityTooLarge},
	} {
		if got, text, _ := post(c.request); got != c.want {
			t.Errorf("%s got %d %q, want %d", c.what, got, text, c.want)
		}
	}
	if n := database.One[int](t, b.Database, `SELECT count(*)::int FROM webhook_inbox`); n != 0 {
		t.Errorf("%d rows were stored of refused requests, want 0", n)
	}
	first, second := change(to("slow")), change(to("slow"))
	if got, _, _ := post(first); got != http.StatusOK {
		t.Errorf("the first request got %d, want 200", got)
	}
	if got, _, header := post(second); got != http.StatusTooManyRequests || header.Get("Retry-After") == "" {
		t.Errorf("a request above the rate got %d, Retry-After %q, want 429 and when to come again", got, header.Get("Retry-After"))
	}
}

// TestInboxKeepsTheRequest: raw bytes, headers without secrets, and what is known of
// duplicates.
func TestInboxKeepsTheRequest(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, "", "")
	b.startInbox(t)
	body := "{ \"type\" : \"order.paid\",\n \"order\":\"Ü\", \"n\": 1.50 }"
	request := b.signed(t, "evt-1", body)
	request.Header.Set("Authorization", "Bearer not to be kept")
	request.Header.Set("X-Trace", "kept")
	if status, _, _ := post(request); status != http.StatusOK {
		t.Fatalf("got %d, want 200", status)
	}
	type row struct {
		Body      []byte
		Trace     string
		Secret    bool
		EventType string
		Entity    string
		Verified  bool
		Status    string
	}
	got := database.Row[row](t, b.Database, `SELECT body, headers->>'X-Trace', headers ? 'Authorization', event_type, entity_key, signature_verified, status FROM webhook_inbox`)
	if string(got.Body) != body || got.Trace != "kept" || got.Secret || got.EventType != "order.paid" || got.Entity != "Ü" || !got.Verified || got.Status != "PENDING" {
		t.Errorf("stored %+v", got)
	}
	b.deliver(t, "evt-1", body)
	b.deliver(t, "evt-1", `{"type":"another"}`)
	type seen struct {
		Duplicates int
		Flagged    string
		Body       []byte
	}
	again := database.Row[seen](t, b.Database, `SELECT duplicate_count, coalesce(flagged, ''), body FROM webhook_inbox WHERE last_seen_at IS NOT NULL`)
	if again.Duplicates != 2 || again.Flagged == "" || string(again.Body) != body {
		t.Errorf("after two duplicates, one with another body: %+v", again)
	}
}

// shopMachine is the worked example: an order is paid, then shipped.
const shopMachine = `  machines:
    - name: order
      states: [ new, paid, shipped, refunded ]
      initial: new
      final: [ shipped, refunded ]
      transitions:
        - { event: order.paid, from: [ new ], to: paid }
        - { event: order.shipped, from: [ paid ], to: shipped }
        - { event: order.refunded, from: [ paid ], to: refunded }
`

// TestInboxShippedBeforePaid: both are applied, in the right order, as soon as the
// payment is there.
func TestInboxShippedBeforePaid(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, effectsHandler+shopMachine, "")
	b.effects(t)
	b.startInbox(t)
	b.deliver(t, "s-1", `{"type":"order.shipped","order":"A"}`)
	b.becomes(t, "s-1", "DEFERRED", "")
	b.deliver(t, "p-1", `{"type":"order.paid","order":"A"}`)
	b.becomes(t, "s-1", "PROCESSED", "APPLIED")
	// Within a second by the database's clock, of which the timer of a minute has no part.
	type result struct {
		Order string
		Took  float64
		State string
	}
	got := database.Row[result](t, b.Database, `SELECT string_agg(event_type, ' ' ORDER BY n), extract(epoch FROM max(at) - (SELECT received_at FROM webhook_inbox WHERE partner_event_id = 'p-1')::timestamptz)::float8,
		(SELECT state FROM cdc_relay.entity_states WHERE machine = 'order' AND entity_key = 'A') FROM effects`)
	if got.Order != "order.paid order.shipped" || got.State != "shipped" {
		t.Errorf("%+v, want paid and then shipped", got)
	}
	t.Logf("shipped was applied %.3f s after paid was stored", got.Took)
	// What comes late is stale, what can never be is rejected, what the machine doesn't know is applied.
	b.deliver(t, "p-2", `{"type":"order.paid","order":"A"}`)
	b.deliver(t, "r-1", `{"type":"order.refunded","order":"A"}`)
	b.deliver(t, "n-1", `{"type":"order.noted","order":"A"}`)
	b.becomes(t, "p-2", "PROCESSED", "STALE")
	b.becomes(t, "r-1", "PROCESSED", "REJECTED")
	b.becomes(t, "n-1", "PROCESSED", "APPLIED")
}

// TestInboxShippedAlone: without the payment it is quarantined after max_age, people
// are told, and after the payment a replay applies it.
func TestInboxShippedAlone(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, "", "")
	b.effects(t)
	alerts := newReceiver(t)
	b.configureInbox(t, "  processing: { handler: { function: public.apply_webhook }, defer: { max_age: 1s, every: 200ms } }\n"+shopMachine,
		fmt.Sprintf("alerts: { urls: [ { url: %q, secrets: [ %s ], allow_private_networks: true } ] }\n", alerts.URL, secret))
	b.startInbox(t)
	b.deliver(t, "s-1", `{"type":"order.shipped","order":"A"}`)
	b.becomes(t, "s-1", "QUARANTINED", "")
	told := alerts.await(1)[0]
	if !strings.Contains(told.body, "shop") || !strings.Contains(told.body, "s-1") || !strings.Contains(told.body, "quarantined") {
		t.Errorf("the alert was %s", told.body)
	}
	b.deliver(t, "p-1", `{"type":"order.paid","order":"A"}`)
	b.becomes(t, "p-1", "PROCESSED", "APPLIED")
	if code, out, errs := b.run(t, "inbox", "replay", "--partner", "shop", "--output", "json"); code != 0 || !strings.Contains(out, `"replayed": 1`) {
		t.Fatalf("replay: exit code %d, %s%s", code, out, errs)
	}
	b.becomes(t, "s-1", "PROCESSED", "APPLIED")
}

// TestInboxFailures: an event that fails again and again is quarantined, holds back
// only its own entity, and then not even that.
func TestInboxFailures(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, "", "")
	b.effects(t)
	b.configureInbox(t, "  processing: { workers: 2, handler: { function: public.apply_webhook }, schedule: [ 100ms, 100ms, 100ms ] }\n", "")
	b.startInbox(t)
	b.deliver(t, "bad", `{"type":"x","order":"A","fail":true}`)
	b.deliver(t, "follower", `{"type":"x","order":"A"}`)
	b.deliver(t, "other", `{"type":"x","order":"B"}`)
	b.deliver(t, "odd", `{"type":"x","order":"C","answer":"PERHAPS"}`)
	b.deliver(t, "no", `{"type":"x","order":"D","answer":"REJECTED: no such order"}`)
	b.becomes(t, "other", "PROCESSED", "APPLIED")
	b.becomes(t, "no", "PROCESSED", "REJECTED")
	b.becomes(t, "bad", "QUARANTINED", "")
	b.becomes(t, "odd", "QUARANTINED", "")
	b.becomes(t, "follower", "PROCESSED", "APPLIED")
	if row := b.row(t, "bad"); row.Attempts != 4 || !strings.Contains(row.LastError, "told to fail") {
		t.Errorf("the failing event has %+v, want 4 attempts and its error", row)
	}
	if got := database.One[string](t, b.Database, `SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM effects`); got != "follower other" {
		t.Errorf("effects of %q, want those of follower and other alone", got)
	}
	_, out, _ := b.run(t, "inbox", "list", "--status", "QUARANTINED", "--output", "json")
	var listed []struct{ ID, Status string }
	if err := json.Unmarshal([]byte(out), &listed); err != nil || len(listed) != 2 {
		t.Fatalf("list gives %s (%v), want two events", out, err)
	}
	_, out, _ = b.run(t, "inbox", "show", listed[0].ID, "--payload")
	for _, want := range []string{"QUARANTINED", "attempt 4", "told to fail", `"order"`} {
		if !strings.Contains(out, want) {
			t.Errorf("show lacks %q:\n%s", want, out)
		}
	}
	if code, out, _ := b.run(t, "inbox", "discard", "--all", "--reason", "known"); code != 0 || !strings.Contains(out, "2 discarded") {
		t.Errorf("discard: exit code %d, %s", code, out)
	}
	if row := b.row(t, "bad"); row.Status != "PROCESSED" || row.Outcome != "DISCARDED" || row.LastError != "known" {
		t.Errorf("the discarded event has %+v", row)
	}
	if code, _, _ := b.run(t, "inbox", "replay"); code != 2 {
		t.Errorf("a replay of nothing in particular has exit code %d, want 2", code)
	}
}

// TestInboxWorkerKilled between an effect and its status: the effect stands once.
func TestInboxWorkerKilled(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, effectsHandler, "")
	b.effects(t)
	first := b.startInbox(t)
	b.deliver(t, "evt-1", `{"type":"x","order":"A","sleep":2}`)
	eventually(t, "the function to sleep", func() bool {
		return database.One[bool](t, b.Database, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database())`)
	})
	first.kill()
	b.startInbox(t)
	b.becomes(t, "evt-1", "PROCESSED", "APPLIED")
	if n := database.One[int](t, b.Database, `SELECT count(*)::int FROM effects`); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}
