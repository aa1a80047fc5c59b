package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// times is how often a repeated test repeats: n, or CDC_RELAY_TEST_TIMES.
func times(t *testing.T, n int) int {
	t.Helper()
	if text := os.Getenv("CDC_RELAY_TEST_TIMES"); text != "" {
		value, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("CDC_RELAY_TEST_TIMES: %v", err)
		}
		return value
	}
	return n
}

// TestG1G4G5KilledWhileParkingAndReplaying kills the relay at random moments while
// a receiver that fails a good part of the time makes it park, take up and
// replay: nothing is lost, no event overtakes an earlier one of its aggregate, and
// what arrives twice is no more than what was in flight.
func TestG1G4G5KilledWhileParkingAndReplaying(t *testing.T) {
	t.Parallel()
	kills := times(t, 50)
	b := setup(t, "")
	// A short time-out makes a short lease: what a killed relay had taken up is
	// taken up again soon.
	b.configure(t, strings.Replace(b.destination("main", b.receiver.URL), "secrets:", "timeout: 500ms\n    concurrency: 16\n    secrets:", 1)+`
retry: { inline: { attempts: 2, min_wait: 5ms, max_wait: 20ms }, schedule: [ 100ms, 200ms ] }
circuit_breaker: { failure_share: 0.8, min_rounds: 50, pause: 300ms }
window: { events: 500 }
`)
	failEvery := newToggle(3)
	b.receiver.answering(func(w http.ResponseWriter, _ request) {
		if n := failEvery.load(); n > 0 && rand.IntN(n) == 0 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	b.run(t, "init")
	writer := newWriter(t, b, 40)
	stopWriting := writer.start()
	inFlight := 0
	relay := b.start(t)
	for range kills {
		time.Sleep(time.Duration(50+rand.IntN(700)) * time.Millisecond)
		if rand.IntN(3) == 0 {
			b.run(t, "dlq", "replay", "--all", "--detach")
		}
		relay.cmd.Process.Signal(syscall.SIGKILL)
		<-relay.done
		inFlight += 16 + 500 // attempted and not settled: at most the lanes, and what they ran on to before the batch
		relay = b.start(t)
	}
	stopWriting()
	failEvery.store(0)
	committed := writer.committed()
	t.Logf("%d events in %d kills", len(committed), kills)
	deadline := time.Now().Add(3 * time.Minute)
	for distinct(b.receiver.accepted()) < len(committed) && time.Now().Before(deadline) {
		b.run(t, "dlq", "replay", "--all", "--detach")
		time.Sleep(time.Second)
	}
	accepted := b.receiver.accepted()
	if lost := len(committed) - distinct(accepted); lost > 0 {
		t.Fatalf("%d of %d events are lost; dead letters: %s", lost, len(committed),
			database.One[string](t, b.Database, `SELECT coalesce(string_agg(state || ' ' || n, ', '), 'none') FROM (SELECT state, count(*) n FROM cdc_relay.dead_letters GROUP BY 1) s`))
	}
	duplicates := len(accepted) - distinct(accepted)
	if duplicates > inFlight {
		t.Errorf("%d events arrived twice, at most %d were in flight", duplicates, inFlight)
	}
	t.Logf("%d arrived twice", duplicates)
	// Given up once, and so allowed to come late: by a replay, or because the
	// receiver took longer over a request than the relay waited.
	dead := make(map[string]bool)
	rows, err := b.Conn.Query(t.Context(), `SELECT DISTINCT outbox_id FROM cdc_relay.dead_letters WHERE replay_id IS NOT NULL OR state = 'DEAD'`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		dead[id] = true
	}
	judgeOrder(t, committed, accepted, dead)
}

// judgeOrder wants the first arrivals of each aggregate in order, those aside that
// were given up and sent again later.
func judgeOrder(t *testing.T, committed map[string]place, accepted []request, late map[string]bool) {
	t.Helper()
	seen := make(map[string]bool)
	last := make(map[uuid.UUID]int)
	for _, r := range accepted {
		if seen[r.id()] || late[r.id()] {
			continue
		}
		seen[r.id()] = true
		p := committed[r.id()]
		if p.number < last[p.aggregate] {
			t.Fatalf("event %d of aggregate %s arrived after event %d", p.number, p.aggregate, last[p.aggregate])
		}
		last[p.aggregate] = p.number
	}
}

// toggle is a number that tests change while a receiver reads it.
type toggle struct {
	mu    sync.Mutex
	value int
}

func newToggle(value int) *toggle { return &toggle{value: value} }

func (s *toggle) load() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

func (s *toggle) store(value int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value = value
}

// steadyWriter writes small transactions, every tenth rolled back, until stopped.
type steadyWriter struct {
	t          *testing.T
	b          *bundle
	aggregates []uuid.UUID
	mu         sync.Mutex
	written    map[string]place
}

func newWriter(t *testing.T, b *bundle, aggregates int) *steadyWriter {
	w := &steadyWriter{t: t, b: b, written: make(map[string]place)}
	for range aggregates {
		w.aggregates = append(w.aggregates, uuid.New())
	}
	return w
}

// start writes until the returned function is called, which waits for the end.
func (w *steadyWriter) start() (stop func()) {
	conn := w.b.Connect(w.t)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		next := make(map[uuid.UUID]int)
		for {
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
			}
			written, err := writeOnce(conn, w.aggregates, next)
			if err != nil {
				w.t.Errorf("write: %v", err)
				return
			}
			w.mu.Lock()
			for id, p := range written {
				w.written[id] = p
			}
			w.mu.Unlock()
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (w *steadyWriter) committed() map[string]place {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// TestReplayOfManyDeadLetters: ten thousand dead letters are sent again in order,
// Ctrl-C in the middle and a second run included; discarding leaves a trace.
func TestReplayOfManyDeadLetters(t *testing.T) {
	t.Parallel()
	b := setup(t, quickRetries+"circuit_breaker: { failure_share: 0 }\n")
	down := newToggle(1)
	b.receiver.answering(func(w http.ResponseWriter, _ request) {
		if down.load() > 0 {
			w.WriteHeader(http.StatusGone)
		}
	})
	b.run(t, "init")
	b.start(t)
	committed := write(t, b, 10_000, 200)
	b.confirmed(t)
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE state = 'DEAD'`); n != len(committed) {
		t.Fatalf("%d dead letters, want %d", n, len(committed))
	}
	if _, stdout, _ := b.run(t, "dlq", "replay", "--all", "--dry-run"); !strings.Contains(stdout, fmt.Sprintf("%d would be sent again", len(committed))) {
		t.Errorf("dry run: %s", stdout)
	}
	if code, _, _ := b.run(t, "dlq", "replay"); code != 2 {
		t.Error("replay without a choice is not refused")
	}
	one := database.One[int64](t, b.Database, `SELECT max(id) FROM cdc_relay.dead_letters`)
	if code, stdout, stderr := b.run(t, "dlq", "discard", fmt.Sprint(one), "--reason", "test"); code != 0 || !strings.Contains(stdout, "1 discarded") {
		t.Errorf("discard: %s%s", stdout, stderr)
	}
	down.store(0)
	interrupted := b.background(t, "dlq", "replay", "--all")
	eventually(t, "the replay to be under way", func() bool { return len(b.receiver.accepted()) > 500 })
	interrupted.Process.Signal(os.Interrupt)
	interrupted.Wait()
	code, stdout, stderr := b.run(t, "dlq", "replay", "--all", "--output", "json")
	if code != 0 {
		t.Fatalf("replay: exit code %d: %s%s", code, stdout, stderr)
	}
	eventually(t, "all but the discarded to arrive", func() bool { return len(b.receiver.accepted()) == len(committed)-1 })
	judgeOrder(t, committed, b.receiver.accepted(), nil)
	if n := distinct(b.receiver.accepted()); n != len(committed)-1 {
		t.Errorf("%d different events arrived, want %d", n, len(committed)-1)
	}
	for _, r := range b.receiver.accepted() {
		if r.header.Get("Cdc-Relay-Replay") == "" {
			t.Fatal("a replayed request doesn't say so")
		}
	}
	eventually(t, "all to be marked", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NULL`) == 1
	})
	if _, stdout, _ := b.run(t, "dlq", "list", "--state", "DISCARDED"); !strings.Contains(stdout, "test") {
		t.Errorf("the discarded row left no trace: %s", stdout)
	}
	if code, stdout, _ := b.run(t, "dlq", "show", fmt.Sprint(one)); code != 0 || !strings.Contains(stdout, "status 410") {
		t.Errorf("show: %s", stdout)
	}
}
