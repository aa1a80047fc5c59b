// Package parking tests the dispatcher, the settler and the dead letters together
// on a real Postgres with a clock of the test's own.
package parking

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/checkpoint"
	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/internal/alert"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/test/database"
)

func TestMain(m *testing.M) { os.Exit(database.Run(m)) }

// clock stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// bundle is a relay without its stream: the test hands it events.
type bundle struct {
	*database.Database
	clock  *clock
	url    string
	events chan *outbox.Event
	stop   func()

	mu       sync.Mutex
	arrived  []string
	failing  map[string]bool
	alerts   []string
	settled  map[outbox.Position]bool
	position outbox.LSN
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{
		Database: database.New(t), clock: &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)},
		failing: make(map[string]bool), settled: make(map[outbox.Position]bool), position: 100,
	}
	err := provision.Init(t.Context(), b.Conn, provision.Options{
		Schema: "cdc_relay", Outbox: catalog.Name{Schema: "public", Table: "outbox_events"},
		Columns:     provision.Columns{ID: "id", Payload: "payload"},
		Publication: b.Name, Slot: b.Name,
		CreateSlot: func(ctx context.Context, _ bool) error {
			_, err := b.Conn.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, b.Name)
			return err
		},
	}, func(provision.Step) {})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(b.receive))
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

func (b *bundle) receive(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.URL.Path == "/alert" {
		b.alerts = append(b.alerts, r.URL.Path)
		return
	}
	id := r.Header.Get("Idempotency-Key")
	b.arrived = append(b.arrived, id+"#"+r.Header.Get("Cdc-Relay-Attempt"))
	if b.failing[id] {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// run starts the parts, and stops them when the test ends or calls b.stop.
func (b *bundle) run(t *testing.T) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), b.URL)
	if err != nil {
		t.Fatal(err)
	}
	letters := deadletter.NewStore(deadletter.Options{Database: pool, Schema: "cdc_relay", Slot: b.Name, Now: b.clock.Now})
	outcomes := make(chan outbox.Outcome, 100)
	b.events = make(chan *outbox.Event)
	transport := dispatcher.NewTransport(dispatcher.TransportOptions{Connections: 8, ConnectTimeout: time.Second, AllowPrivateNetworks: true})
	sender := dispatcher.NewHTTPSender(dispatcher.HTTPOptions{
		URL: b.url, Transport: transport, Timeout: 5 * time.Second, MinWait: time.Millisecond, MaxWait: time.Millisecond, MaxRetryAfter: time.Hour, Now: b.clock.Now,
	})
	dispatch, err := dispatcher.New(dispatcher.Options{
		Destinations: []dispatcher.Destination{{
			Name: "main", Sender: sender, Concurrency: 8, Attempts: 3, RoundTime: time.Second,
			Schedule: []time.Duration{time.Second, 2 * time.Second, 3 * time.Second},
		}},
		Outcomes: outcomes, DeadLetters: letters, WindowEvents: 1000, WindowBytes: 1 << 20, Now: b.clock.Now, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := dispatch.LoadParked(t.Context()); err != nil {
		t.Fatal(err)
	}
	notifier := alert.New(alert.Options{
		Targets: []alert.Target{{URL: b.url + "/alert", Transport: transport}}, Every: time.Minute, Now: b.clock.Now, Log: zerolog.Nop(),
	})
	settler := checkpoint.NewSettler(checkpoint.SettlerOptions{
		Database: pool, Recorders: []checkpoint.Recorder{letters, checkpoint.NewDeliveryLog("cdc_relay")}, Outcomes: outcomes,
		BatchSize: 100, MaxDelay: time.Millisecond, Log: zerolog.Nop(),
		Settled: func(batch []outbox.Outcome, events []outbox.Position) {
			dispatch.Settled(batch)
			for _, o := range batch {
				if o.Fate == outbox.Dead {
					notifier.Tell(alert.Notice{Subject: o.Destination, EventID: o.Event.ID})
				}
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, p := range events {
				b.settled[p] = true
			}
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { dispatch.Run(ctx, b.events) })
	running.Go(func() { settler.Run(ctx) })
	running.Go(func() { notifier.Run(ctx) })
	b.stop = sync.OnceFunc(func() {
		close(b.events)
		time.AfterFunc(100*time.Millisecond, cancel)
		running.Wait()
		transport.CloseIdleConnections()
		pool.Close()
	})
	t.Cleanup(b.stop)
}

// send hands on the next event of an aggregate.
func (b *bundle) send(id, aggregate string) {
	b.position++
	b.events <- &outbox.Event{
		Position: outbox.Position{Commit: b.position}, ID: id, AggregateType: "a", AggregateID: aggregate,
		HasAggregate: aggregate != "", Payload: []byte("{}"), CommitTime: b.clock.Now(),
	}
}

func (b *bundle) fail(id string, failing bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing[id] = failing
}

func (b *bundle) arrivals() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.arrived...)
}

func (b *bundle) await(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, "arrivals "+strings.Join(want, " "), func() bool { return len(b.arrivals()) >= len(want) })
	if diff := cmp.Diff(want, b.arrivals()); diff != "" {
		t.Fatal(diff)
	}
}

// state waits until the dead letter of an event is in the state.
func (b *bundle) state(t *testing.T, id, want string) {
	t.Helper()
	eventually(t, id+" to be "+want, func() bool {
		var state string
		err := b.Conn.QueryRow(context.Background(), `SELECT state || coalesce(' ' || rounds, '') FROM cdc_relay.dead_letters WHERE outbox_id = $1`, id).Scan(&state)
		return err == nil && state == want
	})
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestScheduleToTheEnd: an event that always fails makes four rounds of attempts,
// at the times of the schedule and not before, is then DEAD with one alert, and
// its followers come after it, in order. A restart in the middle changes nothing.
func TestScheduleToTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fail("head", true)
	b.run(t)
	b.send("head", "x")
	b.send("second", "x")
	b.send("other", "y")
	eventually(t, "the first round and the other aggregate", func() bool { return len(b.arrivals()) == 4 })
	b.state(t, "head", "SCHEDULED 1")
	b.state(t, "second", "SCHEDULED 0")

	b.clock.advance(999 * time.Millisecond)
	time.Sleep(1200 * time.Millisecond) // two polls, at which nothing is due
	if n := len(b.arrivals()); n != 4 {
		t.Fatalf("an attempt before its time: %v", b.arrivals())
	}
	b.clock.advance(time.Millisecond)
	b.state(t, "head", "SCHEDULED 2")

	b.stop()
	b.run(t) // a restart
	b.send("third", "x")
	b.clock.advance(2 * time.Second)
	b.state(t, "head", "SCHEDULED 3")
	b.clock.advance(3 * time.Second)
	b.state(t, "head", "DEAD 4")
	b.state(t, "third", "DELIVERED 1")

	var ofX []string
	for _, a := range b.arrivals() {
		if !strings.HasPrefix(a, "other") {
			ofX = append(ofX, a)
		}
	}
	want := []string{"head#1", "head#2", "head#3", "head#4", "head#5", "head#6", "second#1", "third#1"}
	if diff := cmp.Diff(want, ofX); diff != "" {
		t.Error(diff)
	}
	eventually(t, "one alert", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.alerts) == 1
	})
	// The lane is free again: the next event goes out at once.
	eventually(t, "the lane to be free", func() bool {
		rows := database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE state = 'SCHEDULED'`)
		return rows == 0
	})
	b.send("fourth", "x")
	eventually(t, "the fourth", func() bool {
		arrivals := b.arrivals()
		return arrivals[len(arrivals)-1] == "fourth#1"
	})
}

// TestFollowersStayInOrderThroughManyRounds parks an aggregate's hundred events
// behind a failing one and lets it succeed at its second round.
func TestFollowersStayInOrderThroughManyRounds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fail("0", true)
	b.run(t)
	want := []string{"0#1", "0#2", "0#3", "0#4"}
	b.send("0", "x")
	for n := 1; n < 100; n++ {
		b.send(fmt.Sprint(n), "x")
		want = append(want, fmt.Sprintf("%d#1", n))
	}
	b.state(t, "99", "SCHEDULED 0")
	b.fail("0", false)
	b.clock.advance(time.Second)
	b.await(t, want...)
}

// TestDiscardedHeadFreesItsFollowers, by whoever discards it.
func TestDiscardedHeadFreesItsFollowers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fail("head", true)
	b.run(t)
	b.send("head", "x")
	b.send("second", "x")
	b.state(t, "second", "SCHEDULED 0")
	letters := deadletter.NewStore(deadletter.Options{Database: one{b.Connect(t)}, Schema: "cdc_relay", Slot: b.Name, Now: b.clock.Now})
	if n, err := letters.Discard(t.Context(), deadletter.Filter{OutboxID: "head"}, "by the test", 10); n != 1 || err != nil {
		t.Fatalf("%d discarded, %v", n, err)
	}
	b.state(t, "second", "DELIVERED 1")
	b.send("third", "x")
	b.await(t, "head#1", "head#2", "head#3", "second#1", "third#1")
}

// TestDiscardedLastFreesItsLane: when nothing else stands in the lane, what comes next in
// it is delivered without any retry's time passing, and soon nothing is parked any more.
func TestDiscardedLastFreesItsLane(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.fail("last", true)
	b.run(t)
	b.send("last", "x")
	b.state(t, "last", "SCHEDULED 1")
	letters := deadletter.NewStore(deadletter.Options{Database: one{b.Connect(t)}, Schema: "cdc_relay", Slot: b.Name, Now: b.clock.Now})
	if n, err := letters.Discard(t.Context(), deadletter.Filter{OutboxID: "last"}, "by the test", 10); n != 1 || err != nil {
		t.Fatalf("%d discarded, %v", n, err)
	}
	b.send("next", "x")
	b.await(t, "last#1", "last#2", "last#3", "next#1")
	sent := 0
	eventually(t, "an event of the lane not to be parked", func() bool {
		sent++
		id := fmt.Sprint("later-", sent)
		b.send(id, "x")
		eventually(t, id, func() bool { return len(b.arrivals()) == 4+sent })
		return database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE outbox_id = $1`, id) == 0
	})
}

// one lends a single connection as a deadletter.Database.
type one struct{ *pgx.Conn }

// TestNothingIsLeftRunning checks that Run of each part waits for its goroutines.
func TestNothingIsLeftRunning(t *testing.T) {
	b := setup(t)
	before := goleak.IgnoreCurrent()
	b.fail("head", true)
	b.run(t)
	b.send("head", "x")
	b.send("other", "y")
	b.state(t, "head", "SCHEDULED 1")
	b.stop()
	goleak.VerifyNone(t, before)
}

// TestLookUpsByKeyWhateverTheStatisticsSay: in an outage the dead letters grow faster
// than their statistics. What is done for each row of a batch must not read them all.
func TestLookUpsByKeyWhateverTheStatisticsSay(t *testing.T) {
	t.Parallel()
	b, ctx := setup(t), t.Context()
	fill := func(state string, rows int) {
		t.Helper()
		b.Exec(t, `INSERT INTO cdc_relay.dead_letters (outbox_id, destination, state, reason, commit_lsn, tx_index, committed_at, lane, payload, payload_kind, next_attempt_at)
			SELECT gen_random_uuid(), 'main', $1, '', '0/100'::pg_lsn + n, 0, now(), 'a/' || n % 1000, '{}', 'json', CASE WHEN n <= 1000 THEN now() END FROM generate_series(1, $2::int) n`, state, rows)
	}
	b.Exec(t, `ALTER TABLE cdc_relay.dead_letters SET (autovacuum_enabled = off)`)
	b.Exec(t, `ALTER TABLE outbox_events ADD COLUMN IF NOT EXISTS processed_at timestamp`)
	fill("DELIVERED", 200)
	b.Exec(t, `ANALYZE cdc_relay.dead_letters`)
	const parked, size = 20_000, 100
	fill("SCHEDULED", parked)

	pool, err := pgxpool.New(ctx, b.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	letters := deadletter.NewStore(deadletter.Options{Database: pool, Schema: "cdc_relay", Slot: b.Name, Now: time.Now})
	claimed, err := letters.Claim(ctx, deadletter.Request{Destination: "main", Heads: size, Bytes: 1 << 20, Lease: time.Minute})
	if err != nil || len(claimed) != size {
		t.Fatalf("claimed %d: %v", len(claimed), err)
	}
	batch := make([]outbox.Outcome, size)
	for i, letter := range claimed {
		batch[i] = outbox.Outcome{
			Event: letter.Event, Destination: "main", Deliveries: 1, Ordered: true, Fate: outbox.Delivered,
			LetterID: letter.ID, Completes: true, Unsure: true, Tries: 2, Rounds: 2,
		}
	}
	marker := checkpoint.NewProcessedColumn(checkpoint.ProcessedOptions{
		Table: pgx.Identifier{"public", "outbox_events"}, IDColumn: "id", Column: "processed_at", DeadLetters: pgx.Identifier{"cdc_relay", "dead_letters"},
	})
	tx, err := b.Conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if err := letters.Record(ctx, tx, batch); err != nil {
		t.Fatal(err)
	}
	if err := marker.Record(ctx, tx, batch); err != nil {
		t.Fatal(err)
	}
	var read int
	if err := tx.QueryRow(ctx, `SELECT sum(pg_stat_get_xact_tuples_returned(oid))::int FROM pg_class
		WHERE oid = 'cdc_relay.dead_letters'::regclass OR oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = 'cdc_relay.dead_letters'::regclass)`).Scan(&read); err != nil {
		t.Fatal(err)
	}
	if read > parked/2 {
		t.Errorf("a batch of %d read %d rows and index entries of %d", size, read, parked)
	}
}
