package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cdc-relay/cdc-relay/test/database"
)

const (
	operatorToken = "the operator's token"
	readerToken   = "the reader's token"
)

// administered is a bundle with a running relay whose admin page wants tokens.
type administered struct {
	*bundle
	relay *relay
	url   string
}

func setupAdmin(t *testing.T, extra string) *administered {
	t.Helper()
	address := freeAddress(t)
	a := &administered{bundle: setup(t, ""), url: "http://" + address}
	a.configure(t, a.destination("main", a.receiver.URL)+quickRetries+fmt.Sprintf("admin: { listen: %q, token: %q, read_token: %q, redact: [ $.card.number, $..secret ] }\n", address, operatorToken, readerToken)+extra)
	a.run(t, "init")
	a.relay = a.start(t)
	eventually(t, "the admin listener", func() bool {
		code, _ := getBody(a.url + "/readyz")
		return code == http.StatusOK
	})
	return a
}

// insert commits one event.
func (b *bundle) insert(t *testing.T, eventType, payload string) (id string) {
	t.Helper()
	id = uuid.NewString()
	if _, err := b.Conn.Exec(t.Context(), `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
		VALUES ($1::text::uuid, 'order', $2::text::uuid, $3, $4::text::jsonb)`, id, uuid.NewString(), eventType, payload); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestG8AdminPage goes through what an operator does at the page, in a real browser:
// sign in, find a dead letter, read its attempts, replay it and see it leave; pause a
// destination; ask for a replay and follow it.
func TestG8AdminPage(t *testing.T) {
	t.Parallel()
	a := setupAdmin(t, "")
	refuse := newToggle(1)
	a.receiver.answering(func(w http.ResponseWriter, _ request) {
		if refuse.load() > 0 {
			w.WriteHeader(http.StatusGone)
			fmt.Fprint(w, `{"problem": "<script>document.title='harmed'</script>", "secret": "tell nobody"}`)
		}
	})
	id := a.insert(t, "order.paid", `{"amount": 12, "card": {"number": "4111", "holder": "Ada"}}`)
	eventually(t, "a dead letter", func() bool {
		return database.One[int](t, a.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE state = 'DEAD'`) == 1
	})
	b := openBrowser(t, a.url)

	b.open("/dead-letters")
	b.says("Sign in")
	b.fill("input[name=token]", "a guess")
	b.press("Sign in")
	b.says("not the right one")
	b.signIn("ada", operatorToken)
	b.says("streaming", "Dead letters", "main")
	b.picture("overview")

	b.follow("Dead letters")
	b.says("order.paid", "410")
	b.picture("dead-letters")
	letter := database.One[string](t, a.Database, `SELECT id::text FROM cdc_relay.dead_letters`)
	b.follow(letter)
	b.says(id, "410", "<script>document.title='harmed'</script>", `"amount": 12`, `"holder": "Ada"`, "‹redacted›")
	if text := b.text(); strings.Contains(text, "4111") || strings.Contains(text, "tell nobody") {
		t.Errorf("what is to be redacted is shown:\n%s", text)
	}
	b.picture("dead-letter")
	refuse.store(0)
	b.press("Replay")
	b.says("1 to be sent again")
	eventually(t, "the replayed to arrive", func() bool { return len(a.receiver.accepted()) == 1 })
	eventually(t, "the letter to be settled", func() bool {
		return database.One[int](t, a.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE state = 'DELIVERED'`) == 1
	})
	b.open("/dead-letters")
	b.says("No dead letters fit.")
	b.open("/deliveries?outbox_id=" + id)
	b.says("order.paid", "main", "200")
	b.picture("delivery")

	b.open("/")
	b.fill("input[name=reason]", "their release")
	b.press("Pause")
	b.says("main is paused", "their release")
	eventually(t, "the relay to know of the pause", func() bool { return strings.Contains(a.relay.log.String(), `"paused":true`) })
	paused := a.insert(t, "order.paid", `{}`)
	eventually(t, "the event of a paused destination to be parked", func() bool {
		return database.One[int](t, a.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE outbox_id = $1 AND state = 'SCHEDULED'`, paused) == 1
	})
	b.press("Resume")
	b.says("main is resumed")
	eventually(t, "the parked to arrive", func() bool { return len(a.receiver.accepted()) == 2 })

	b.open("/replays")
	b.fill("input[name=name]", "before the incident")
	b.press("Save checkpoint")
	b.says("Checkpoint before the incident is saved")
	for range 20 {
		a.insert(t, "order.shipped", `{}`)
	}
	eventually(t, "twenty more", func() bool { return len(a.receiver.accepted()) == 22 })
	a.confirmed(t)
	b.open("/replays?from=" + url.QueryEscape("before the incident"))
	b.press("Look what would be sent")
	b.says("20 events", "order.shipped")
	b.picture("plan")
	b.press("Send 20 again")
	b.says("DONE", "20 of 20")
	b.picture("replay")
	if n := len(a.receiver.accepted()); n != 42 {
		t.Errorf("%d requests, want 42", n)
	}
	b.open("/replays")
	b.picture("replays")
	b.open("/audit")
	b.says("ada (admin, 127.0.0.1)", "dead-letters.replay", "destination.pause", "destination.resume", "checkpoint.save", "replay.start", "20 to send")
	b.picture("audit")
}
