package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// ask makes a request at the admin listener.
func (a *administered) ask(t *testing.T, method, path, token, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if strings.HasPrefix(body, "{") {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// TestG9AdminAccess: nothing but the probes without a token, nothing changed with the
// token that only looks, no form that isn't the page's own, and nobody else's site.
func TestG9AdminAccess(t *testing.T) {
	t.Parallel()
	a := setupAdmin(t, "")
	paths := []string{"/", "/dead-letters", "/metrics", "/api/v1/overview", "/api/v1/openapi.json", "/debug/pprof/", "/audit", "/nowhere"}
	for _, path := range paths {
		for _, token := range []string{"", "a guess", operatorToken + "x", " "} {
			if code, body := a.ask(t, "GET", path, token, ""); code != http.StatusUnauthorized && code != http.StatusSeeOther || strings.Contains(body, "slot") {
				t.Errorf("%s with token %q: %d", path, token, code)
			}
		}
		if code, _ := a.ask(t, "GET", path, operatorToken, ""); code != http.StatusOK && path != "/nowhere" {
			t.Errorf("%s with the operator's token: %d", path, code)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, _ := a.ask(t, "GET", path, "", ""); code != http.StatusOK {
			t.Errorf("%s: %d", path, code)
		}
	}
	basic := []string{"Authorization", "Basic " + "YWRhOnRoZSBvcGVyYXRvcidzIHRva2Vu"} // ada and the operator's token
	if code, _ := a.ask(t, "GET", "/api/v1/overview", "", "", basic...); code != http.StatusOK {
		t.Errorf("basic auth: %d", code)
	}

	actions := map[string]string{
		"/api/v1/destinations/main/pause": `{"reason": "test"}`, "/api/v1/dead-letters/replay": `{"all": true}`,
		"/api/v1/checkpoints": `{"name": "x"}`, "/api/v1/replays": `{"since": "2026-01-01T00:00:00Z"}`,
	}
	for path, body := range actions {
		if code, _ := a.ask(t, "POST", path, readerToken, body); code != http.StatusForbidden {
			t.Errorf("%s with the token that only looks: %d", path, code)
		}
		if code, _ := a.ask(t, "POST", path, operatorToken, body, "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site"); code != http.StatusForbidden {
			t.Errorf("%s from another site: %d", path, code)
		}
		if code, _ := a.ask(t, "POST", path, operatorToken, "all=true"); code != http.StatusBadRequest {
			t.Errorf("%s with a form's body: %d", path, code)
		}
	}
	if code, _ := a.ask(t, "GET", "/debug/pprof/", readerToken, ""); code != http.StatusForbidden {
		t.Errorf("pprof with the token that only looks: %d", code)
	}
	if code, _ := a.ask(t, "POST", "/destinations/act", operatorToken, "name=main&action=pause", "Content-Type", "application/x-www-form-urlencoded"); code != http.StatusForbidden {
		t.Errorf("a forged form: %d", code)
	}
	if n := database.One[int](t, a.Database, `SELECT (SELECT count(*) FROM cdc_relay.paused_destinations) + (SELECT count(*) FROM cdc_relay.audit)`); n != 0 {
		t.Errorf("%d traces of refused actions", n)
	}

	b := openBrowser(t, a.url)
	b.signIn("bob", readerToken)
	b.says("looks only", "main")
	if strings.Contains(b.text(), "Pause") && b.evaluate("document.querySelectorAll('button[value=pause]').length") != "0" {
		t.Error("who only looks is shown the buttons")
	}
	b.signIn("ada", operatorToken)
	b.evaluate(`(() => { document.querySelector('form[action="/destinations/act"] input[name=form_token]').value = 'forged'; return true })()`)
	b.press("Pause")
	b.says("This form did not come from this page")
	if n := database.One[int](t, a.Database, `SELECT count(*) FROM cdc_relay.paused_destinations`); n != 0 {
		t.Error("a forged form has paused the destination")
	}
	if logged := a.relay.log.String(); strings.Contains(logged, operatorToken) || strings.Contains(logged, readerToken) {
		t.Error("a token stands in the log")
	}
}

// TestAdminAPI: what the document of the API names is there, and what people do by the
// API is what they do by the commands.
func TestAdminAPI(t *testing.T) {
	t.Parallel()
	a := setupAdmin(t, "")
	var document struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	_, text := a.ask(t, "GET", "/api/v1/openapi.json", readerToken, "")
	if err := json.Unmarshal([]byte(text), &document); err != nil || len(document.Paths) < 15 {
		t.Fatalf("%v, %d paths", err, len(document.Paths))
	}
	for path, methods := range document.Paths {
		for method := range methods {
			path := strings.NewReplacer("{id}", "1", "{name}", "nobody").Replace(path)
			code, body := a.ask(t, strings.ToUpper(method), path, operatorToken, `{`)
			if code == http.StatusNotFound && strings.Contains(body, "no such resource") || code == http.StatusMethodNotAllowed {
				t.Errorf("%s %s is in the document and not there: %d %s", method, path, code, body)
			}
		}
	}

	gone := newToggle(1)
	a.receiver.answering(func(w http.ResponseWriter, _ request) {
		if gone.load() > 0 {
			w.WriteHeader(http.StatusGone)
		}
	})
	id := a.insert(t, "order.paid", `{"secret": "tell nobody", "open": 1}`)
	eventually(t, "a dead letter", func() bool {
		_, text := a.ask(t, "GET", "/api/v1/dead-letters?state=DEAD", readerToken, "")
		return strings.Contains(text, id)
	})
	letter := database.One[string](t, a.Database, `SELECT id::text FROM cdc_relay.dead_letters`)
	if _, text := a.ask(t, "GET", "/api/v1/dead-letters/"+letter, readerToken, ""); !strings.Contains(text, "redacted") || strings.Contains(text, "tell nobody") || !strings.Contains(text, `"status": 410`) {
		t.Errorf("the letter: %s", text)
	}
	if code, _ := a.ask(t, "POST", "/api/v1/dead-letters/replay", operatorToken, `{}`); code != http.StatusBadRequest {
		t.Errorf("replay without a choice: %d", code)
	}
	gone.store(0)
	if code, text := a.ask(t, "POST", "/api/v1/dead-letters/replay", operatorToken, fmt.Sprintf(`{"filter": {"ids": [%s]}}`, letter)); code != http.StatusOK || !strings.Contains(text, `"handed_on": 1`) {
		t.Errorf("replay: %d %s", code, text)
	}
	eventually(t, "the journey to end", func() bool {
		_, text := a.ask(t, "GET", "/api/v1/events/"+id, readerToken, "")
		return strings.Contains(text, `"status_code": 200`) && strings.Contains(text, `"in_outbox": true`)
	})
	for path, want := range map[string]int{
		"/api/v1/events/" + url.PathEscape("no such"): 404, "/api/v1/dead-letters/77": 404, "/api/v1/dead-letters?state=odd": 400,
		"/api/v1/dead-letters?limit=0": 400, "/api/v1/replays/none": 404, "/api/v1/inbox": 404, "/api/v1/nothing": 404,
	} {
		if code, text := a.ask(t, "GET", path, operatorToken, ""); code != want || !strings.Contains(text, `"error"`) {
			t.Errorf("%s: %d %s, want %d", path, code, text, want)
		}
	}
	if code, text := a.ask(t, "POST", "/api/v1/replays", operatorToken, `{"from_lsn": "FFFF/0"}`); code != http.StatusBadRequest || !strings.Contains(text, "in the future") {
		t.Errorf("replay from the future: %d %s", code, text)
	}
	if code, text := a.ask(t, "POST", "/api/v1/replays", operatorToken, fmt.Sprintf(`{"from_lsn": %q, "dry_run": true}`, database.One[string](t, a.Database, `SELECT min(commit_lsn)::text FROM cdc_relay.deliveries`))); code != http.StatusOK || !strings.Contains(text, `"total": 1`) {
		t.Errorf("dry run: %d %s", code, text)
	}
	if code, _ := a.ask(t, "POST", "/api/v1/destinations/nobody/pause", operatorToken, `{}`); code != http.StatusNotFound {
		t.Errorf("an unknown destination: %d", code)
	}
	a.run(t, "destination", "pause", "main", "--reason", "by hand")
	eventually(t, "the relay to have told of itself, and the overview of the pause", func() bool {
		_, text := a.ask(t, "GET", "/api/v1/overview", readerToken, "")
		return strings.Contains(text, "by hand") && strings.Contains(text, `"state": "streaming"`) && strings.Contains(text, `"circuit": "closed"`)
	})
	_, status, _ := a.run(t, "status")
	for _, want := range []string{"instance     streaming on", "PAUSED since", "by hand"} {
		if !strings.Contains(status, want) {
			t.Errorf("status doesn't say %q:\n%s", want, status)
		}
	}
	if _, text := a.ask(t, "GET", "/api/v1/audit", readerToken, ""); !strings.Contains(text, "bearer (admin, 127.0.0.1)") || !strings.Contains(text, "cli ") {
		t.Errorf("the audit log: %s", text)
	}
}

// TestHostilePayloads: scripts, right-to-left text, five megabytes and bytes that are no
// text are shown without harm.
func TestHostilePayloads(t *testing.T) {
	t.Parallel()
	a := setupAdmin(t, "")
	a.receiver.answering(func(w http.ResponseWriter, _ request) {
		w.WriteHeader(http.StatusGone)
		_, _ = w.Write([]byte("\xff\xfe\x00<img src=x onerror=\"document.title='harmed'\">\u202e"))
	})
	script := `</pre><script>document.title='harmed'</script>`
	a.insert(t, script, fmt.Sprintf(`{"html": %q, "rtl": "\u202e\u0645\u0631\u062d\u0628\u0627"}`, script))
	a.insert(t, "large", fmt.Sprintf(`{"text": %q, "list": [%s1]}`, strings.Repeat("x", 2<<20), strings.Repeat("12345678,", 360_000)))
	eventually(t, "two dead letters", func() bool {
		return database.One[int](t, a.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE state = 'DEAD'`) == 2
	})
	b := openBrowser(t, a.url)
	b.signIn("ada", operatorToken)
	harmless := func(page string) {
		if title := take(b, chromedp.Title()); title == "harmed" || !strings.HasSuffix(title, "cdc-relay") {
			t.Errorf("%s: the title is %q", page, title)
		}
		if n := b.evaluate("document.querySelectorAll('main script, main img').length"); n != "0" {
			t.Errorf("%s: %s foreign elements", page, n)
		}
	}
	b.open("/dead-letters")
	b.says(script)
	harmless("the list")
	for _, id := range []string{"1", "2"} {
		b.open("/dead-letters/" + id)
		b.says("410", "<img src=x onerror=")
		harmless("letter " + id)
	}
	b.says("MB", "Only the beginning is shown")
	if size := b.evaluate("document.documentElement.outerHTML.length > 3e6"); size != "false" {
		t.Error("the page of a large payload is as large as the payload")
	}
	code, whole := a.ask(t, "GET", "/dead-letters/2/payload", operatorToken, "")
	if code != http.StatusOK || len(whole) < 5<<20 {
		t.Errorf("the payload whole: %d, %d bytes", code, len(whole))
	}
}

// TestManyDeadLetters: with 100,000 dead letters each page comes whole, its parts by key,
// and one filter's worth can be replayed or discarded.
func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	a := setupAdmin(t, "")
	if _, err := a.Conn.Exec(t.Context(), `INSERT INTO cdc_relay.dead_letters
		(outbox_id, destination, state, reason, commit_lsn, tx_index, committed_at, lane, aggregate_type, aggregate_id, event_type, payload, payload_kind, attempts, attempt_count)
		SELECT gen_random_uuid()::text, 'main', CASE WHEN n % 10 = 0 THEN 'SCHEDULED' ELSE 'DEAD' END, 'attempts are spent', '0/1'::pg_lsn + n, 0, now(), 'order/' || n % 1000, 'order', (n % 1000)::text,
			CASE WHEN n % 5000 = 0 THEN 'order.rare' ELSE 'order.paid' END, '{"a": 1}', 'json',
			jsonb_build_array(jsonb_build_object('at', now(), 'duration_ns', 1000, 'status', 500, 'answer', CASE WHEN n = 77 THEN 'the needle' ELSE 'oops' END)), 1
		FROM generate_series(1, 100000) n; `); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Conn.Exec(t.Context(), `ANALYZE cdc_relay.dead_letters`); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/": "Dead letters", "/dead-letters": "100000", "/dead-letters?state=DEAD&after=50000": "49999", "/dead-letters?event_type=order.rare": "order.rare",
		"/dead-letters?aggregate_id=7": "99007", "/dead-letters?destination=main&state=SCHEDULED": "100000", "/dead-letters?error=needle": ">77<",
		"/dead-letters/confirm?action=discard&event_type=order.rare": "order.rare", "/dead-letters/confirm?action=replay": "DEAD", "/dead-letters/5": "order.paid",
		"/dead-letters?event_type=nothing": "No dead letters fit.", "/api/v1/dead-letters?limit=1000": `"next"`,
	} {
		quickest := time.Hour
		for range 3 {
			began := time.Now()
			code, text := a.ask(t, "GET", path, operatorToken, "")
			quickest = min(quickest, time.Since(began))
			if code != http.StatusOK || !strings.Contains(text, want) {
				t.Errorf("%s: %d, without %q", path, code, want)
			}
			if len(text) > 1<<20 {
				t.Errorf("%s has %d bytes", path, len(text))
			}
		}
		t.Logf("%-60s %s", path, quickest.Round(time.Millisecond))
	}
	if code, text := a.ask(t, "POST", "/api/v1/dead-letters/discard", operatorToken, `{"filter": {"event_type": "order.rare"}, "reason": "rare"}`); code != http.StatusOK || !strings.Contains(text, `"discarded": 20`) {
		t.Errorf("discard: %d %s", code, text)
	}
}
