package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// insertNumbers inserts one row for each number, all of one aggregate, each with a
// time of its own: rows of one statement that share it can't be put in order again.
func (b *bundle) insertNumbers(t *testing.T, from, to int) {
	t.Helper()
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload, created_at)
		SELECT gen_random_uuid(), 'a', '11111111-1111-1111-1111-111111111111', to_jsonb(n), now() + n * interval '1 microsecond' FROM generate_series($1::int, $2::int) n`, from, to)
}

// wantNumbers wants the bodies from..to, in order, once each.
func wantNumbers(t *testing.T, got []request, from, to int) {
	t.Helper()
	if len(got) != to-from+1 {
		t.Errorf("%d arrivals, want %d", len(got), to-from+1)
	}
	for i, body := range bodies(got) {
		if body != fmt.Sprint(from+i) {
			t.Fatalf("arrival %d is %s, want %d", i+1, body, from+i)
		}
	}
}

// TestFirstStartSendsUnsentRows: rows that stood in the table before the relay
// was ever set up are sent, in order, before those that come after.
func TestFirstStartSendsUnsentRows(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.Exec(t, `CREATE TABLE outbox_events (id uuid PRIMARY KEY, aggregate_type text, aggregate_id uuid, event_type text, payload jsonb,
		created_at timestamp DEFAULT now(), processed_at timestamp)`)
	b.insertNumbers(t, 1, 1500)
	b.Exec(t, `UPDATE outbox_events SET processed_at = now() WHERE payload <= '500'`) // sent by somebody before
	b.insertNumbers(t, 1501, 2500)
	b.run(t, "init")
	b.insertNumbers(t, 2501, 2600) // both in the table and in the stream
	b.start(t)
	b.insertNumbers(t, 2601, 2700)
	b.receiver.await(2200)
	b.confirmed(t)
	wantNumbers(t, b.receiver.requests(), 501, 2700)
	eventually(t, "the backlog to be cleared", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.backlog`) == 0
	})
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NULL`); n != 0 {
		t.Errorf("%d rows are not marked", n)
	}
}

// TestG1SlotDropped: with the slot gone, exactly the unsettled rows are sent from
// the table and the stream goes on, though the relay is killed in the middle.
func TestG1SlotDropped(t *testing.T) {
	t.Parallel()
	b := setup(t, "window: { events: 500 }\n")
	b.run(t, "init")
	relay := b.start(t)
	b.insertNumbers(t, 1, 2000)
	b.receiver.await(2000)
	b.confirmed(t)
	relay.stop(t)
	b.insertNumbers(t, 2001, 6000)
	b.dropSlot(t)

	relay = b.start(t)
	b.receiver.await(3000)
	if _, stdout, _ := b.run(t, "status"); !strings.Contains(stdout, "of 4000 rows from before the slot are settled") {
		t.Errorf("status: %s", stdout)
	}
	relay.cmd.Process.Signal(syscall.SIGKILL)
	<-relay.done
	if !strings.Contains(relay.log.String(), "slot was lost") {
		t.Error("the log doesn't tell of the lost slot")
	}
	b.start(t)
	b.insertNumbers(t, 6001, 6100)
	eventually(t, "all to arrive", func() bool { return distinct(b.receiver.accepted()) == 6100 })
	b.confirmed(t)
	accepted := b.receiver.accepted()
	if repeats := len(accepted) - 6100; repeats > 500 {
		t.Errorf("%d repeats, more than a window", repeats)
	}
	seen := make(map[string]bool)
	var firsts []request
	for _, r := range accepted {
		if !seen[r.id()] {
			seen[r.id()] = true
			firsts = append(firsts, r)
		}
	}
	wantNumbers(t, firsts, 1, 6100)
}

// TestSlotDroppedWhileRunning: the relay notices, and recovers by itself.
func TestSlotDroppedWhileRunning(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	relay := b.start(t)
	b.insertNumbers(t, 1, 100)
	b.receiver.await(100)
	b.confirmed(t)
	b.dropSlot(t)
	b.insertNumbers(t, 101, 200)
	b.receiver.await(200)
	b.confirmed(t)
	wantNumbers(t, b.receiver.requests(), 1, 200)
	if !strings.Contains(relay.log.String(), "slot was lost") {
		t.Error("the log doesn't tell of the lost slot")
	}
}

// TestOnLostFail stops with the reason instead.
func TestOnLostFail(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	relay := b.start(t)
	b.insertNumbers(t, 1, 10)
	b.receiver.await(10)
	b.confirmed(t)
	relay.stop(t)
	b.dropSlot(t)
	code, _, stderr := b.run(t, "run", "--config", b.failing(t))
	if code != 2 || !strings.Contains(stderr, "is lost") || !strings.Contains(stderr, "slot.on_lost") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if database.One[int](t, b.Database, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, b.Name) != 0 {
		t.Error("the slot was made anew all the same")
	}
}

// failing gives a copy of the config with on_lost: fail.
func (b *bundle) failing(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/fail.yaml"
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "slot: {", "slot: { on_lost: fail,", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestG5GracefulRestartsRepeatNothing restarts the relay ten times under load.
func TestG5GracefulRestartsRepeatNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.receiver.answering(func(http.ResponseWriter, request) { time.Sleep(time.Millisecond) })
	writer := newWriter(t, b, 40)
	stopWriting := writer.start()
	for range times(t, 10) {
		relay := b.start(t)
		eventually(t, "the relay to stream", func() bool { return strings.Contains(relay.log.String(), `"message":"streaming"`) })
		time.Sleep(300 * time.Millisecond)
		relay.stop(t)
	}
	b.start(t)
	stopWriting()
	committed := writer.committed()
	eventually(t, "all to arrive", func() bool { return distinct(b.receiver.accepted()) == len(committed) })
	b.confirmed(t)
	if duplicates := judge(t, committed, b.receiver.accepted()); duplicates > 0 {
		t.Errorf("%d of %d events arrived twice", duplicates, len(committed))
	}
}

// TestTwoRelays: one streams, the other stands by and takes over soon, and sends
// nothing that the first has settled.
func TestTwoRelays(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	first := b.start(t)
	b.insertNumbers(t, 1, 100)
	b.receiver.await(100)
	b.confirmed(t)
	second := b.start(t)
	eventually(t, "the second to stand by", func() bool { return strings.Contains(second.log.String(), "standing by") })
	b.insertNumbers(t, 101, 200)
	b.receiver.await(200)
	b.confirmed(t)
	first.stop(t)
	stopped := time.Now()
	b.insertNumbers(t, 201, 300)
	b.receiver.await(300)
	t.Logf("took over and delivered %s after a clean stop", time.Since(stopped).Round(time.Millisecond))
	if took := time.Since(stopped); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	third := b.start(t)
	eventually(t, "the third to stand by", func() bool { return strings.Contains(third.log.String(), "standing by") })
	second.kill()
	b.insertNumbers(t, 301, 400)
	b.receiver.await(400)
	b.confirmed(t)
	wantNumbers(t, b.receiver.requests(), 1, 400)
}

// TestTableRenamedAndBack: nothing is lost, and the stream goes on.
func TestTableRenamedAndBack(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.start(t)
	b.insertNumbers(t, 1, 10)
	b.receiver.await(10)
	b.Exec(t, `ALTER TABLE outbox_events RENAME TO elsewhere`)
	b.Exec(t, `ALTER TABLE elsewhere RENAME TO outbox_events`)
	b.insertNumbers(t, 11, 20)
	b.receiver.await(20)
	b.confirmed(t)
	wantNumbers(t, b.receiver.requests(), 1, 20)
}
