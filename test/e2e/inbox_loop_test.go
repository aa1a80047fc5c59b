package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
	"github.com/cdc-relay/cdc-relay/test/database"
)

// TestInboxLoop: this relay sends to this inbox, by way of a network that delivers much
// of it twice: each outbox row has exactly one effect.
func TestInboxLoop(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, effectsHandler, "")
	inboxURL, err := url.Parse("http://" + b.address)
	if err != nil {
		t.Fatal(err)
	}
	doubling := httptest.NewServer(doubler(t, inboxURL))
	t.Cleanup(doubling.Close)
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.config, append(text, b.destination("inbox", doubling.URL+"/webhooks/shop")...), 0o600); err != nil {
		t.Fatal(err)
	}
	b.effects(t)
	b.startInbox(t)
	const rows = 300
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
		SELECT gen_random_uuid(), 'order', md5((i % 7)::text)::uuid, 'order.created', jsonb_build_object('type', 'order.created', 'order', (i % 7)::text) FROM generate_series(1, $1) i`, rows)
	eventually(t, "every row's effect", func() bool {
		return database.One[int](t, b.Database, `SELECT count(DISTINCT event_id)::int FROM effects`) == rows
	})
	b.confirmed(t)
	type counts struct{ Rows, Effects, Matched, Duplicates int }
	got := database.Row[counts](t, b.Database, `SELECT (SELECT count(*)::int FROM webhook_inbox), (SELECT count(*)::int FROM effects),
		(SELECT count(*)::int FROM effects e JOIN outbox_events o ON o.id::text = e.event_id), (SELECT sum(duplicate_count)::int FROM webhook_inbox)`)
	if got.Rows != rows || got.Effects != rows || got.Matched != rows {
		t.Errorf("%+v, want %d of each", got, rows)
	}
	if got.Duplicates == 0 {
		t.Error("nothing came twice, so nothing was shown")
	}
}

// doubler forwards each request, every second one twice. Of every tenth event it says
// that it failed although it did not, once.
func doubler(t *testing.T, to *url.URL) http.Handler {
	var n atomic.Int64
	var known sync.Map
	return http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		body, err := io.ReadAll(h.Body)
		if err != nil {
			return
		}
		count := n.Add(1)
		var status int
		for range 1 + count%2 {
			request, err := http.NewRequest(h.Method, to.String()+h.URL.Path, strings.NewReader(string(body)))
			if err != nil {
				t.Error(err)
				return
			}
			request.Header = h.Header.Clone()
			status, _, _ = post(request)
		}
		_, again := known.LoadOrStore(h.Header.Get("webhook-id"), true)
		if status == 0 || count%10 == 0 && !again {
			status = http.StatusBadGateway
		}
		w.WriteHeader(status)
	})
}

// TestInboxForward: to the team's own service, signed, with an idempotency key; its
// answer is the verdict.
func TestInboxForward(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, "", "")
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		switch r.header.Get("Cdc-Relay-Event-Type") {
		case "early":
			w.WriteHeader(http.StatusTooEarly)
		case "broken":
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	b.configureInbox(t, fmt.Sprintf("  processing: { handler: { url: %q, secrets: [ %s ] }, schedule: [ 50ms ], defer: { every: 1h } }\n", b.receiver.URL, secret), "")
	b.startInbox(t)
	for _, kind := range []string{"fine", "early", "broken"} {
		b.deliver(t, kind+"-1", fmt.Sprintf(`{"type":%q,"order":%q}`, kind, kind))
	}
	b.becomes(t, "fine-1", "PROCESSED", "APPLIED")
	b.becomes(t, "early-1", "DEFERRED", "")
	b.becomes(t, "broken-1", "QUARANTINED", "")
	if bad := b.receiver.badSignatures(); len(bad) > 0 {
		t.Errorf("signatures that don't verify: %v", bad)
	}
	for _, r := range b.receiver.requests() {
		if r.header.Get("Cdc-Relay-Event-Id") != "fine-1" {
			continue
		}
		id := database.One[string](t, b.Database, `SELECT id::text FROM webhook_inbox WHERE partner_event_id = 'fine-1'`)
		if r.id() != id || r.header.Get("Cdc-Relay-Partner") != "shop" || !strings.Contains(r.body, `"fine"`) {
			t.Errorf("forwarded %v %s, want idempotency key %s", r.header, r.body, id)
		}
	}
}

// TestInboxReload: SIGHUP puts partners and their secrets in force.
func TestInboxReload(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, "", "")
	r := b.startInbox(t)
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	fresh := strings.Replace(string(text), secret, "whsec_YW5vdGhlciBzZWNyZXQgb2YgdGhlIHRlc3Rz", 1)
	if err := os.WriteFile(b.config, []byte(fresh), 0o600); err != nil {
		t.Fatal(err)
	}
	b.deliver(t, "before", `{"type":"x"}`)
	r.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the old secret to be refused", func() bool {
		status, _, _ := post(b.signed(t, "after", `{"type":"x"}`))
		return status == http.StatusUnauthorized
	})
	r.stop(t)
}

// TestInboxAlone: a config without destinations has no slot made.
func TestInboxAlone(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, "", "")
	code, out, errs := b.run(t, "init")
	if code != 0 || !strings.Contains(out, "inbox public.webhook_inbox") {
		t.Fatalf("init: exit code %d\n%s%s", code, out, errs)
	}
	if n := database.One[int](t, b.Database, `SELECT count(*)::int FROM pg_replication_slots WHERE database = current_database()`); n != 0 {
		t.Errorf("%d slots, want none", n)
	}
	_, statements, _ := b.run(t, "init", "--print-sql")
	other := database.New(t)
	other.Exec(t, statements)
	if n := database.One[int](t, other, `SELECT count(*)::int FROM webhook_inbox`); n != 0 {
		t.Errorf("%d rows in a fresh inbox", n)
	}
	if code, out, _ := b.run(t, "doctor"); code != 0 {
		t.Errorf("doctor: exit code %d\n%s", code, out)
	}
	if code, _, errs := b.run(t, "status"); code != 0 {
		t.Errorf("status: exit code %d\n%s", code, errs)
	}
}

// TestInboxPostgresKilled at random moments: never 200 without the row, 503 while it is
// away, and what the partner sends again is stored.
func TestInboxPostgresKilled(t *testing.T) {
	t.Parallel()
	server, err := throwaway.StartLocal(t.Context(), throwaway.Options{BinDir: os.Getenv("CDC_RELAY_TEST_BIN_DIR"), Settings: map[string]string{"fsync": "on"}})
	if err != nil {
		t.Fatalf("this test kills its server, so it needs local server binaries: %v", err)
	}
	t.Cleanup(func() { server.Stop() })
	b := &inboxBundle{bundle: &bundle{Database: database.On(t, server.URL), receiver: newReceiver(t)}}
	b.configureInbox(t, "", "")
	b.startInbox(t)
	kills := times(t, 5)
	var posting sync.WaitGroup
	var next, unavailable, acknowledged atomic.Int64
	stop := make(chan struct{})
	for range 4 {
		posting.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("evt-%d", next.Add(1))
				for { // as a partner does, until it is acknowledged
					status, text, header := post(b.signed(t, id, `{"type":"x"}`))
					if status == http.StatusOK {
						acknowledged.Add(1)
						break
					}
					if status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
						t.Errorf("got %d %q, Retry-After %q, want 503 and when to come again", status, text, header.Get("Retry-After"))
						return
					}
					unavailable.Add(1)
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	for range kills {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	posting.Wait()
	conn, err := pgx.Connect(t.Context(), b.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var stored int64
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM webhook_inbox`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills: %d acknowledged, %d stored, %d times 503", kills, acknowledged.Load(), stored, unavailable.Load())
	if stored != acknowledged.Load() || unavailable.Load() == 0 {
		t.Errorf("%d acknowledged and %d stored, want as many; %d times 503", acknowledged.Load(), stored, unavailable.Load())
	}
}

// TestInboxExample: the program that embeds the package does what it says.
func TestInboxExample(t *testing.T) {
	t.Parallel()
	d, address := database.New(t), freeAddress(t)
	binary := filepath.Join(t.TempDir(), "example")
	if out, err := exec.Command("go", "build", "-o", binary, "../../inbox/example").CombinedOutput(); err != nil {
		t.Fatalf("build the example: %v\n%s", err, out)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+d.URL, "STRIPE_SECRET=whsec_example", "LISTEN="+address)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	body := `{"id":"evt_1","type":"invoice.paid","data":{"object":{"id":"in_1","amount_paid":1200}}}`
	send := func() int {
		now := fmt.Sprint(time.Now().Unix())
		mac := hmac.New(sha256.New, []byte("whsec_example"))
		mac.Write([]byte(now + "." + body))
		request, err := http.NewRequest(http.MethodPost, "http://"+address+"/webhooks/stripe", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Stripe-Signature", "t="+now+",v1="+hex.EncodeToString(mac.Sum(nil)))
		status, _, _ := post(request)
		return status
	}
	eventually(t, "the example to take a webhook", func() bool { return send() == http.StatusOK })
	send()
	eventually(t, "its effect", func() bool {
		return database.One[int](t, d, `SELECT count(*)::int FROM webhook_inbox WHERE status = 'PROCESSED'`) == 1
	})
	type effect struct {
		Count int
		Cents int64
	}
	if got := database.Row[effect](t, d, `SELECT count(*)::int, sum(cents)::bigint FROM paid_invoices`); got.Count != 1 || got.Cents != 1200 {
		t.Errorf("%+v, want one invoice of 1200 cents", got)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("the example ended with %v after SIGTERM", err)
	}
}
