package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// misbehave answers in one of the ways that are no acknowledgement.
func misbehave(w http.ResponseWriter, way int) {
	answer := w.(*answerWriter)
	answer.spoiled = true
	raw := func(speak func(net.Conn, *bufio.ReadWriter)) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		speak(conn, buffer)
	}
	switch way % 9 {
	case 0:
		w.WriteHeader(http.StatusInternalServerError)
	case 1:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	case 2:
		raw(func(net.Conn, *bufio.ReadWriter) {}) // closes early
	case 3:
		raw(func(conn net.Conn, _ *bufio.ReadWriter) { // hangs until the relay gives up
			conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			conn.Read(make([]byte, 1))
		})
	case 4:
		raw(func(conn net.Conn, _ *bufio.ReadWriter) { // drips
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
			for range 100 {
				if _, err := fmt.Fprint(conn, "x"); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	case 5:
		w.Write(bytes.Repeat([]byte("megabytes"), 1<<20))
	case 6:
		raw(func(conn net.Conn, _ *bufio.ReadWriter) { fmt.Fprint(conn, "SMTP 2.0 no idea\r\n\r\n") })
	case 7:
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
	case 8:
		w.Header().Set("Retry-After", time.Now().Add(time.Second).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// TestG4ReceiverThatFailsInEveryWay: every seventh request is answered in one of
// the ways of misbehaving; all events are delivered all the same, in order.
func TestG4ReceiverThatFailsInEveryWay(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.configure(t, strings.Replace(b.destination("main", b.receiver.URL), "secrets:", "timeout: 1s\n    secrets:", 1)+`
retry: { inline: { attempts: 2, min_wait: 20ms, max_wait: 100ms }, schedule: [ 1s, 1s, 2s, 2s, 2s, 2s, 2s, 2s ] }
circuit_breaker: { failure_share: 0.9, min_rounds: 50, pause: 1s }
`)
	var requests, misbehaved atomic.Int64
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		if requests.Add(1)%7 == 0 {
			misbehave(w, int(misbehaved.Add(1)))
		}
	})
	b.run(t, "init")
	b.start(t)
	committed := write(t, b, 2000, 100)
	eventually(t, "all to be accepted", func() bool { return distinct(b.receiver.accepted()) >= len(committed) })
	b.confirmed(t)
	judge(t, committed, b.receiver.accepted())
	if bad := b.receiver.badSignatures(); len(bad) > 0 {
		t.Errorf("%d signatures don't verify, the first: %s", len(bad), bad[0])
	}
	eventually(t, "no row to be left in another state than DELIVERED", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE state <> 'DELIVERED'`) == 0
	})
	eventually(t, "all rows to be marked", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NULL`) == 0
	})
	if misbehaved.Load() < 9*3 {
		t.Errorf("only %d requests were answered badly", misbehaved.Load())
	}
}

func distinct(requests []request) int {
	ids := make(map[string]bool)
	for _, r := range requests {
		ids[r.id()] = true
	}
	return len(ids)
}

// TestSelfSignedCertificate is refused, with the reason in the dead letter, unless
// its authority is configured.
func TestSelfSignedCertificate(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	server := httptest.NewTLSServer(b.receiver)
	t.Cleanup(server.Close)
	ca := t.TempDir() + "/ca.pem"
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	b.configure(t, fmt.Sprintf(`
destinations:
  - { name: unknown, url: %q, secrets: [ %s ], allow_private_networks: true }
  - { name: known, url: %q, secrets: [ %s ], allow_private_networks: true, tls: { ca_file: %q } }
`, server.URL, secret, server.URL, secret, ca)+quickRetries)
	b.run(t, "init")
	b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), '1')`)
	b.receiver.await(1)
	b.confirmed(t)
	var destination, attempts string
	if err := b.Conn.QueryRow(t.Context(), `SELECT destination, attempts::text FROM cdc_relay.dead_letters WHERE state = 'DEAD'`).Scan(&destination, &attempts); err != nil {
		t.Fatal(err)
	}
	if destination != "unknown" || !strings.Contains(attempts, "certificate") {
		t.Errorf("%s: %s", destination, attempts)
	}
}

// TestG9PrivateNetworkRefused: without allow_private_networks nothing reaches a
// loopback receiver, and the dead letter says why.
func TestG9PrivateNetworkRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.configure(t, strings.Replace(b.destination("main", strings.Replace(b.receiver.URL, "127.0.0.1", "localhost", 1)), "allow_private_networks: true", "", 1)+quickRetries)
	b.run(t, "init")
	b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), '1')`)
	eventually(t, "the dead letter", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE state = 'DEAD' AND attempts::text LIKE '%allow_private_networks is false%'`) == 1
	})
	if n := len(b.receiver.requests()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// TestStrictForm: with parking off the schedule runs in place, the position waits,
// and order is kept.
func TestStrictForm(t *testing.T) {
	t.Parallel()
	b := setup(t, `
parking: { enabled: false }
retry: { inline: { attempts: 1, min_wait: 10ms, max_wait: 10ms }, schedule: [ 300ms, 300ms ] }
`)
	var failing atomic.Bool
	failing.Store(true)
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		if r.body == "1" && failing.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	b.run(t, "init")
	b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload) SELECT gen_random_uuid(), 'a', '11111111-1111-1111-1111-111111111111', to_jsonb(n) FROM generate_series(1, 3) n`)
	b.receiver.await(2) // two attempts of the first, nothing else
	for _, body := range bodies(b.receiver.requests()) {
		if body != "1" {
			t.Errorf("%s overtook the first", body)
		}
	}
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters`); n != 0 {
		t.Errorf("%d rows were parked", n)
	}
	failing.Store(false)
	b.confirmed(t)
	if got := strings.Join(bodies(b.receiver.accepted()), " "); got != "1 2 3" {
		t.Errorf("accepted: %s", got)
	}
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.deliveries WHERE attempts = 3`); n != 1 {
		t.Error("the delivery log doesn't count three attempts of the first")
	}
}

// TestPauseAndResume: a paused destination gets nothing, another goes on, and
// after the resume what was parked comes first, in order.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	second := newReceiver(t)
	b.configure(t, fmt.Sprintf(`
destinations:
  - { name: one, url: %q, secrets: [ %s ], allow_private_networks: true }
  - { name: two, url: %q, secrets: [ %s ], allow_private_networks: true }
`, b.receiver.URL, secret, second.URL, secret))
	b.run(t, "init")
	if code, _, stderr := b.run(t, "destination", "pause", "one", "--reason", "maintenance"); code != 0 {
		t.Fatal(stderr)
	}
	relay := b.start(t)
	eventually(t, "the pause to be noticed", func() bool { return strings.Contains(relay.log.String(), `"paused":true`) })
	insert := func(from, to int) {
		for n := from; n <= to; n++ {
			b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload) VALUES (gen_random_uuid(), 'a', '11111111-1111-1111-1111-111111111111', to_jsonb($1::int))`, n)
		}
	}
	insert(1, 20)
	second.await(20)
	b.confirmed(t)
	if n := len(b.receiver.requests()); n != 0 {
		t.Errorf("%d requests reached the paused destination", n)
	}
	if code, _, stderr := b.run(t, "destination", "resume", "one"); code != 0 {
		t.Fatal(stderr)
	}
	insert(21, 40)
	b.receiver.await(40)
	for i, body := range bodies(b.receiver.requests()) {
		if body != fmt.Sprint(i+1) {
			t.Fatalf("arrival %d is %s", i+1, body)
		}
	}
	if code, _, stderr := b.run(t, "destination", "pause", "nobody"); code != 2 {
		t.Errorf("an unknown destination: exit code %d: %s", code, stderr)
	}
}

// TestCircuitBreaker: a destination that is down is soon left alone, its events
// parked, and found again when it is back.
func TestCircuitBreaker(t *testing.T) {
	t.Parallel()
	b := setup(t, `
retry: { inline: { attempts: 1, min_wait: 10ms, max_wait: 10ms }, schedule: [ 500ms, 500ms, 500ms, 500ms, 500ms, 500ms, 500ms, 500ms, 500ms ] }
circuit_breaker: { failure_share: 0.5, min_rounds: 10, window: 10s, pause: 1s }
`)
	var down atomic.Bool
	down.Store(true)
	b.receiver.answering(func(w http.ResponseWriter, _ request) {
		if down.Load() {
			w.WriteHeader(http.StatusBadGateway)
		}
	})
	b.run(t, "init")
	relay := b.start(t)
	committed := write(t, b, 2000, 200)
	b.confirmed(t) // all are parked or delivered
	attempts := len(b.receiver.requests())
	if attempts > 500 {
		t.Errorf("%d attempts at a destination that is down", attempts)
	}
	if !strings.Contains(relay.log.String(), `"to":"open"`) {
		t.Error("the log doesn't tell of the circuit breaker")
	}
	down.Store(false)
	eventually(t, "all to be accepted", func() bool { return distinct(b.receiver.accepted()) >= len(committed) })
	judge(t, committed, b.receiver.accepted())
}

// TestRotation: while two secrets are configured, receivers with either verify;
// SIGHUP brings the second in without a restart, and a config with a mistake
// changes nothing.
func TestRotation(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	old, err := webhook.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := webhook.NewWebhookRaw([]byte("a new secret"))
	if err != nil {
		t.Fatal(err)
	}
	b.run(t, "init")
	relay := b.start(t)
	send := func(n int) http.Header {
		b.Exec(t, `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), '{}')`)
		return b.receiver.await(n)[n-1].header
	}
	reload := func(text, logged string) {
		t.Helper()
		if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		before := strings.Count(relay.log.String(), logged)
		relay.cmd.Process.Signal(syscall.SIGHUP)
		eventually(t, logged, func() bool { return strings.Count(relay.log.String(), logged) > before })
	}
	check := func(header http.Header, byOld, byNew bool) {
		t.Helper()
		if err := old.Verify([]byte("{}"), header); (err == nil) != byOld {
			t.Errorf("the old secret: %v", err)
		}
		if err := fresh.Verify([]byte("{}"), header); (err == nil) != byNew {
			t.Errorf("the new secret: %v", err)
		}
	}
	check(send(1), true, false)
	original, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	both := strings.Replace(string(original), "[ "+secret+" ]", "[ a new secret, "+secret+" ]", 1)
	reload(both, "config reloaded")
	check(send(2), true, true)
	reload(strings.Replace(both, "secrets:", "sekrets:", 1), "reloaded config refused")
	check(send(3), true, true)
	reload(strings.Replace(both, "[ a new secret, "+secret+" ]", "[ a new secret ]", 1), "config reloaded")
	check(send(4), false, true)
	if strings.Contains(relay.log.String(), "a new secret") {
		t.Error("the log shows a secret")
	}
}

// TestG8DeadLettersRaiseAlerts: a dead letter is told of, signed, once for many.
func TestG8DeadLettersRaiseAlerts(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	alerts := newReceiver(t)
	b.configure(t, b.destination("main", b.receiver.URL)+fmt.Sprintf(`
alerts: { urls: [ { url: %q, secrets: [ %s ], allow_private_networks: true }, { url: %q, type: slack, secrets: [ %s ], allow_private_networks: true } ] }
`, alerts.URL, secret, alerts.URL, secret)+quickRetries)
	b.receiver.answering(func(w http.ResponseWriter, _ request) { w.WriteHeader(http.StatusGone) })
	b.run(t, "init")
	b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, event_type, payload) SELECT gen_random_uuid(), 'e', '{}' FROM generate_series(1, 50)`)
	got := alerts.await(2)
	b.confirmed(t)
	time.Sleep(1500 * time.Millisecond) // longer than the notifier's own second
	if n := len(alerts.requests()); n != 2 {
		t.Errorf("%d alerts within a minute, want one at each URL", n)
	}
	forms := map[string]bool{}
	for _, r := range got {
		var body map[string]any
		if err := json.Unmarshal([]byte(r.body), &body); err != nil {
			t.Fatal(err)
		}
		_, slack := body["text"]
		forms[fmt.Sprint(slack)] = true
		if !strings.Contains(r.body, "main") {
			t.Errorf("the alert doesn't name the destination: %s", r.body)
		}
	}
	if len(forms) != 2 {
		t.Errorf("forms %v", forms)
	}
	if bad := alerts.badSignatures(); len(bad) > 0 {
		t.Errorf("signatures that don't verify: %v", bad)
	}
}

// TestOnDeadBlock: after a dead head its followers wait until it is replayed.
func TestOnDeadBlock(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.configure(t, strings.Replace(b.destination("main", b.receiver.URL), "secrets:", "on_dead: block\n    secrets:", 1)+quickRetries)
	var failing atomic.Bool
	failing.Store(true)
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		if r.body == "1" && failing.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	b.run(t, "init")
	relay := b.start(t)
	insert := func(n int) {
		b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload) VALUES (gen_random_uuid(), 'a', '11111111-1111-1111-1111-111111111111', to_jsonb($1::int))`, n)
	}
	insert(1)
	insert(2)
	b.confirmed(t)
	relay.stop(t)
	b.start(t) // a restart knows it
	insert(3)
	b.confirmed(t)
	if got := b.receiver.accepted(); len(got) != 0 {
		t.Fatalf("followers of a dead event arrived: %v", bodies(got))
	}
	failing.Store(false)
	if code, stdout, stderr := b.run(t, "dlq", "replay", "--all"); code != 0 {
		t.Fatalf("replay: exit code %d: %s%s", code, stdout, stderr)
	}
	eventually(t, "all to arrive", func() bool { return len(b.receiver.accepted()) == 3 })
	if got := strings.Join(bodies(b.receiver.accepted()), " "); got != "1 2 3" {
		t.Errorf("accepted: %s", got)
	}
	insert(4)
	eventually(t, "the lane to be free again", func() bool { return len(b.receiver.accepted()) == 4 })
}
