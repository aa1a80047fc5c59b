package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-relay/cdc-relay/test/database"
)

const quickRetries = `
retry: { inline: { attempts: 3, min_wait: 10ms, max_wait: 20ms }, schedule: [] }
`

// TestDeadLetter: a row that no receiver accepts is kept with each attempt, and
// later rows go on.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	b := setup(t, quickRetries)
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		if r.header.Get("Cdc-Relay-Event-Type") == "bad" {
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprint(w, "no \x00 thanks \xff")
		}
	})
	b.run(t, "init")
	b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES
		('00000000-0000-0000-0000-000000000001', 'o', '00000000-0000-0000-0000-00000000000a', 'bad', '{"a": 1}'),
		('00000000-0000-0000-0000-000000000002', 'o', '00000000-0000-0000-0000-00000000000a', 'good', '2')`)
	requests := b.receiver.await(4)
	for i, r := range requests[:3] {
		if attempt := r.header.Get("Cdc-Relay-Attempt"); attempt != strconv.Itoa(i+1) || r.id() != requests[0].id() {
			t.Errorf("request %d is attempt %s of %s", i+1, attempt, r.id())
		}
	}
	b.confirmed(t)
	type attempt struct {
		At     time.Time `json:"at"`
		Status int       `json:"status"`
		Answer string    `json:"answer"`
	}
	var state, payload string
	var text []byte
	if err := b.Conn.QueryRow(t.Context(), `SELECT state, convert_from(payload, 'UTF8'), attempts FROM cdc_relay.dead_letters
		WHERE outbox_id = '00000000-0000-0000-0000-000000000001'`).Scan(&state, &payload, &text); err != nil {
		t.Fatal(err)
	}
	var attempts []attempt
	if err := json.Unmarshal(text, &attempts); err != nil {
		t.Fatal(err)
	}
	if state != "DEAD" || payload != `{"a": 1}` || len(attempts) != 3 {
		t.Fatalf("state %s, payload %s, %d attempts", state, payload, len(attempts))
	}
	for _, a := range attempts {
		if a.Status != http.StatusTeapot || a.Answer != "no \uFFFD thanks \uFFFD" || time.Since(a.At) > time.Minute {
			t.Errorf("attempt %+v", a)
		}
	}
	if database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NOT NULL`) != 1 {
		t.Error("want the second row marked and the first not")
	}
	if bad := b.receiver.badSignatures(); len(bad) > 0 {
		t.Errorf("a retry's signature doesn't verify: %v", bad)
	}
}

// TestRowsThatCanNotBeSent are dead letters with the reason, and the stream goes on.
func TestRowsThatCanNotBeSent(t *testing.T) {
	t.Parallel()
	b := setup(t, "outbox: { columns: { headers: headers } }\n")
	b.Exec(t, `CREATE TABLE outbox_events (id text, aggregate_type text, aggregate_id uuid, event_type text, payload jsonb, headers jsonb, processed_at timestamp)`)
	b.run(t, "init")
	b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, payload, headers) VALUES ('no-payload', NULL, NULL), ('bad-headers', '1', '[1]'), (NULL, '2', NULL), ('fine. é', '3', '{}')`)
	got := b.receiver.await(1)[0]
	if got.body != "3" || got.id() != "fine. %C3%A9" {
		t.Errorf("arrived: %s, %s", got.id(), got.body)
	}
	b.confirmed(t)
	for id, reason := range map[string]string{"no-payload": "payload is NULL", "bad-headers": "not a JSON object", "": "id is NULL"} {
		if text := database.One[string](t, b.Database, `SELECT reason FROM cdc_relay.dead_letters WHERE outbox_id = $1 AND state = 'DEAD'`, id); !strings.Contains(text, reason) {
			t.Errorf("%q: reason %q, want %q", id, text, reason)
		}
	}
	if bad := b.receiver.badSignatures(); len(bad) > 0 {
		t.Errorf("signatures that don't verify: %v", bad)
	}
}

// TestFanOut: each matching destination gets the event, unmatched events are
// settled, and processed_at waits for all.
func TestFanOut(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	second := newReceiver(t)
	release := make(chan struct{})
	second.answering(func(http.ResponseWriter, request) { <-release })
	b.configure(t, fmt.Sprintf(`
destinations:
  - { name: one, url: %q, secrets: [ %s ], allow_private_networks: true, match: { event_types: [ "order.*" ] } }
  - { name: two, url: %q, secrets: [ %s ], allow_private_networks: true, match: { expression: 'event.type != "nobody" && payload.n > 1' } }
`, b.receiver.URL, secret, second.URL, secret))
	b.run(t, "init")
	b.start(t)
	for _, row := range [][2]string{{"order.a", `{"n": 1}`}, {"order.b", `{"n": 2}`}, {"nobody", `{"n": 3}`}, {"other", `{}`}} {
		b.Exec(t, `INSERT INTO outbox_events (id, event_type, payload) VALUES (gen_random_uuid(), $1, $2::text::jsonb)`, row[0], row[1])
	}
	b.receiver.await(2)
	second.await(1)
	marked := func(kind string) bool {
		return database.One[bool](t, b.Database, `SELECT processed_at IS NOT NULL FROM outbox_events WHERE event_type = $1`, kind)
	}
	eventually(t, "the unmatched event to be marked", func() bool { return marked("nobody") })
	eventually(t, "the event of one destination to be marked", func() bool { return marked("order.a") })
	if marked("order.b") {
		t.Error("marked before both destinations have it")
	}
	close(release)
	b.confirmed(t)
	if !marked("order.b") {
		t.Error("not marked though both destinations have it")
	}
	if reason := database.One[string](t, b.Database, `SELECT reason FROM cdc_relay.dead_letters WHERE destination = 'two'`); !strings.Contains(reason, "match expression") {
		t.Errorf("an event that the expression can't decide on: %q", reason)
	}
}

// TestG7FullWindowHoldsTheConnection: while nothing is settled the stream stops
// reading, stays connected past wal_sender_timeout, and goes on afterwards.
func TestG7FullWindowHoldsTheConnection(t *testing.T) {
	t.Parallel()
	b := setup(t, "window: { events: 50 }\n")
	b.Exec(t, `ALTER DATABASE `+b.Name+` SET wal_sender_timeout = '2s'`)
	release := make(chan struct{})
	b.receiver.answering(func(http.ResponseWriter, request) { <-release })
	b.run(t, "init")
	relay := b.start(t)
	for range 20 {
		b.Exec(t, `INSERT INTO outbox_events (id, payload) SELECT gen_random_uuid(), to_jsonb(repeat('x', 1000)) FROM generate_series(1, 500)`)
	}
	b.receiver.await(50)
	pid := database.One[int](t, b.Database, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, b.Name)
	rss := resident(t, relay)
	time.Sleep(7 * time.Second) // the server's own time-out, three times over
	if n := len(b.receiver.requests()); n != 50 {
		t.Errorf("%d requests are under way with a window of 50", n)
	}
	if now := database.One[int](t, b.Database, `SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1`, b.Name); now != pid {
		t.Error("the server dropped the connection meanwhile")
	}
	if grown := resident(t, relay) - rss; grown > 20<<20 {
		t.Errorf("memory grew by %d bytes while nothing moved", grown)
	}
	close(release)
	b.receiver.await(10_000)
	b.confirmed(t)
}

// resident is the process's resident memory in bytes.
func resident(t *testing.T, r *relay) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", r.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// TestG7IdleOutboxHoldsNoWAL: while only other tables are written, the confirmed
// position follows the server's.
func TestG7IdleOutboxHoldsNoWAL(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.start(t)
	b.Exec(t, `CREATE TABLE busy (t text)`)
	for range 20 {
		b.Exec(t, `INSERT INTO busy SELECT repeat(md5(n::text), 30) FROM generate_series(1, 1000) n`)
	}
	b.confirmed(t)
	if n := len(b.receiver.requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// TestSlowConsumersFinishOnStop: what is under way at SIGTERM is delivered,
// settled and confirmed; what was not attempted comes after the next start.
func TestSlowConsumersFinishOnStop(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	arrived := make(chan struct{}, 1000)
	release := make(chan struct{})
	b.receiver.answering(func(http.ResponseWriter, request) {
		arrived <- struct{}{}
		<-release
	})
	b.run(t, "init")
	relay := b.start(t)
	aggregate := uuid.New()
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload) SELECT gen_random_uuid(), 'a', $1::uuid, to_jsonb(n) FROM generate_series(1, 5) n`, aggregate)
	<-arrived
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		relay.stop(t)
	}()
	eventually(t, "the relay to begin stopping", func() bool { return strings.Contains(relay.log.String(), "stopping") })
	time.Sleep(500 * time.Millisecond) // the stream takes notice within 100 ms
	close(release)
	<-stopped
	if got := bodies(b.receiver.requests()); len(got) != 1 {
		t.Fatalf("at the stop %v had arrived, want the first only", got)
	}
	b.start(t)
	b.confirmed(t)
	got := bodies(b.receiver.requests())
	if want := []string{"1", "2", "3", "4", "5"}; strings.Join(got[len(got)-4:], " ") != strings.Join(want[1:], " ") {
		t.Errorf("after the second start: %v", got)
	}
}
