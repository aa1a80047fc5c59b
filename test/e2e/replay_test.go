package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// insertMany inserts one row for each number, of ten aggregates, in transactions of
// their own, and types that tell even from odd.
func (b *bundle) insertMany(t *testing.T, from, to int) {
	t.Helper()
	b.Exec(t, fmt.Sprintf(`DO $$ BEGIN FOR n IN %d..%d LOOP
		INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES (gen_random_uuid(), 'a',
			('00000000-0000-0000-0000-' || lpad((n %% 10)::text, 12, '0'))::uuid, CASE n %% 2 WHEN 0 THEN 'number.even' ELSE 'number.odd' END, to_jsonb(n)); COMMIT;
		END LOOP; END $$`, from, to))
}

// replayed gives the requests of replays, and wants them to be in the order of their
// aggregates.
func replayed(t *testing.T, all []request) []request {
	t.Helper()
	var some []request
	last := make(map[string]int)
	for _, r := range all {
		if r.header.Get("Cdc-Relay-Replay") == "" {
			continue
		}
		some = append(some, r)
		var n int
		if err := json.Unmarshal([]byte(r.body), &n); err != nil {
			t.Fatal(err)
		}
		if aggregate := r.header.Get("Cdc-Relay-Aggregate-Id"); n < last[aggregate] {
			t.Errorf("%d was sent again after %d of the same aggregate", n, last[aggregate])
		} else {
			last[aggregate] = n
		}
	}
	return some
}

// wantReplayed wants exactly these numbers, with the ids under which they came first.
func wantReplayed(t *testing.T, b *bundle, numbers []int) {
	t.Helper()
	first := make(map[string]string)
	for _, r := range b.receiver.requests() {
		if r.header.Get("Cdc-Relay-Replay") == "" {
			first[r.body] = r.id()
		}
	}
	again := replayed(t, b.receiver.requests())
	want := make(map[string]bool)
	for _, n := range numbers {
		want[fmt.Sprint(n)] = true
	}
	for _, r := range again {
		if !want[r.body] {
			t.Errorf("%s was sent again, or twice", r.body)
		}
		if first[r.body] != r.id() {
			t.Errorf("%s was sent again as %s, first as %s", r.body, r.id(), first[r.body])
		}
		delete(want, r.body)
	}
	if len(want) > 0 {
		t.Errorf("%d of %d were not sent again", len(want), len(numbers))
	}
	if bad := b.receiver.badSignatures(); len(bad) > 0 {
		t.Errorf("signatures: %v", bad)
	}
}

func numbers(from, to, step int) (all []int) {
	for n := from; n <= to; n += step {
		all = append(all, n)
	}
	return all
}

// replayJob is what `replay --output json` prints.
type replayJob struct {
	ID                                      string
	State                                   string
	Source                                  string
	Total, Delivered, Parked, Dead, Skipped int
}

func (b *bundle) replay(t *testing.T, args ...string) replayJob {
	t.Helper()
	code, stdout, stderr := b.run(t, append([]string{"replay", "--output", "json"}, args...)...)
	var job replayJob
	if err := json.Unmarshal([]byte(stdout), &job); err != nil || code != 0 {
		t.Fatalf("replay %v: exit code %d: %s%s", args, code, stdout, stderr)
	}
	return job
}

// TestReplay from a checkpoint, an LSN and a time, narrowed and not, beside live
// events. What it doesn't concern is left untouched.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"checkpoint", "lsn", "since"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := setup(t, "")
			b.run(t, "init")
			b.start(t)
			b.insertMany(t, 1, 500)
			b.receiver.await(500)
			b.confirmed(t)
			if code, _, stderr := b.run(t, "checkpoint", "save", "middle", "--label", "before the deploy"); code != 0 {
				t.Fatal(stderr)
			}
			from := []string{"--from-checkpoint", "middle"}
			switch way {
			case "lsn":
				from = []string{"--from-lsn", database.One[string](t, b.Database, `SELECT lsn::text FROM cdc_relay.checkpoints WHERE name = 'middle'`)}
			case "since":
				from = []string{"--since", database.One[time.Time](t, b.Database, `SELECT clock_timestamp()`).Format(time.RFC3339Nano)}
			}
			b.insertMany(t, 501, 1000)
			b.receiver.await(1000)
			b.confirmed(t)
			marks := database.One[string](t, b.Database, `SELECT md5(string_agg(processed_at::text, ',' ORDER BY id)) FROM outbox_events`)

			if code, stdout, _ := b.run(t, append([]string{"replay", "--dry-run"}, from...)...); code != 0 || !strings.Contains(stdout, "500 would be sent again") ||
				!strings.Contains(stdout, "number.even") {
				t.Errorf("dry run: exit code %d: %s", code, stdout)
			}
			if n := len(b.receiver.requests()); n != 1000 {
				t.Fatalf("a dry run sent %d", n-1000)
			}
			job := b.replay(t, append([]string{"--rate", "0"}, from...)...)
			if job.State != "DONE" || job.Total != 500 || job.Delivered != 500 {
				t.Errorf("job: %+v", job)
			}
			wantReplayed(t, b, numbers(501, 1000, 1))
			if now := database.One[string](t, b.Database, `SELECT md5(string_agg(processed_at::text, ',' ORDER BY id)) FROM outbox_events`); now != marks {
				t.Error("processed_at was touched")
			}

			b.receiver.forget()
			if job := b.replay(t, append(from, "--event-type", "*.even", "--aggregate-id", "00000000-0000-0000-0000-000000000004", "--destination", "main")...); job.Delivered != 50 {
				t.Errorf("narrowed: %+v", job)
			}
			for _, r := range replayed(t, b.receiver.requests()) {
				if r.header.Get("Cdc-Relay-Aggregate-Id") != "00000000-0000-0000-0000-000000000004" {
					t.Errorf("%s of another aggregate was sent again", r.body)
				}
			}
			if job := b.replay(t, append(from, "--destination", "nobody")...); job.Total != 0 {
				t.Errorf("to a destination that never was: %+v", job)
			}
		})
	}
}

// TestReplayOutOfRange: a message says what there is.
func TestReplayOutOfRange(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.start(t)
	b.insertMany(t, 1, 10)
	b.receiver.await(10)
	b.confirmed(t)
	eventually(t, "a checkpoint that is saved by itself", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.checkpoints WHERE name IS NULL`) > 0
	})
	for _, c := range []struct{ args, want string }{
		{"--from-lsn 0/1", "older than everything kept"},
		{"--from-lsn FFFFFFFF/0", "in the future"},
		{"--from-lsn 12345", "not an LSN"},
		{"--from-lsn 0/0x1", "not an LSN"},
		{"--since 2020-01-01T00:00:00Z", "older than everything kept"},
		{"--since 2999-01-01T00:00:00Z", "in the future"},
		{"--since yesterday", "neither a time"},
		{"--from-checkpoint nobody", "no such checkpoint"},
		{"", "say from where"},
		{"--from-lsn 0/1 --since 2h", "say from where"},
	} {
		code, _, stderr := b.run(t, append([]string{"replay"}, strings.Fields(c.args)...)...)
		if code != 2 || !strings.Contains(stderr, c.want) {
			t.Errorf("replay %s: exit code %d: %s", c.args, code, stderr)
		}
	}
	if code, _, stderr := b.run(t, "replay", "--from-lsn", "0/1"); code != 2 || !strings.Contains(stderr, "kept is what was committed from LSN") {
		t.Errorf("the message doesn't say what is kept: %s", stderr)
	}
	// What the log has lost by its retention counts as gone.
	b.Exec(t, `INSERT INTO cdc_relay.trimmed (what, lsn, at) VALUES ('deliveries', pg_current_wal_insert_lsn(), now())`)
	if code, _, stderr := b.run(t, "replay", "--from-lsn", database.One[string](t, b.Database, `SELECT min(commit_lsn)::text FROM cdc_relay.deliveries`)); code != 2 {
		t.Errorf("from a trimmed part of the log: exit code %d: %s", code, stderr)
	}
}

// TestReplayOfDeletedRows from the WAL that a checkpoint holds: the bodies are what
// they were. The checkpoint's slot can be read as often as one likes.
func TestReplayOfDeletedRows(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	relay := b.start(t)
	b.insertMany(t, 1, 100)
	b.receiver.await(100)
	b.confirmed(t)
	if code, stdout, stderr := b.run(t, "checkpoint", "save", "held", "--hold"); code != 0 || !strings.Contains(stdout, "holds") {
		t.Fatal(stdout + stderr)
	}
	b.insertMany(t, 101, 400)
	b.Exec(t, `INSERT INTO outbox_events (id, event_type, payload) VALUES (gen_random_uuid(), 'odd', '{"z": 1.00, "a":[1,2],"ü": "\u0001"}')`)
	b.receiver.await(401)
	b.confirmed(t)
	first := make(map[string]string)
	for _, r := range b.receiver.requests() {
		first[r.id()] = r.body
	}
	b.Exec(t, `DELETE FROM outbox_events`)
	if code, stdout, _ := b.run(t, "replay", "--from-checkpoint", "held", "--dry-run"); code != 0 || !strings.Contains(stdout, "read from the WAL") {
		t.Errorf("dry run: %s", stdout)
	}
	for range 2 {
		b.receiver.forget()
		job := b.replay(t, "--from-checkpoint", "held", "--rate", "0")
		if job.Source != "wal" || job.Delivered != 301 || job.Total != 301 {
			t.Errorf("job: %+v", job)
		}
		got := b.receiver.requests()
		if len(got) != 301 {
			t.Errorf("%d were sent again, want 301", len(got))
		}
		for _, r := range got {
			if r.body != first[r.id()] || r.header.Get("Cdc-Relay-Replay") == "" {
				t.Errorf("%s has body %s, first %s", r.id(), r.body, first[r.id()])
			}
		}
	}
	for _, command := range []string{"status", "doctor"} {
		if _, stdout, _ := b.run(t, command); !strings.Contains(stdout, "held") {
			t.Errorf("%s doesn't tell of the held checkpoint: %s", command, stdout)
		}
	}
	// Without the held WAL there is nothing left to send, and that is said.
	if code, _, stderr := b.run(t, "checkpoint", "drop", "held"); code != 0 {
		t.Fatal(stderr)
	}
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE $1`, b.Name+"_held%"); n != 0 {
		t.Errorf("%d held slots are left", n)
	}
	if _, stdout, _ := b.run(t, "replay", "--since", "1m", "--dry-run"); !strings.Contains(stdout, "their rows are gone") {
		if code, _, stderr := b.run(t, "replay", "--since", "1m", "--dry-run"); code != 2 || !strings.Contains(stderr, "older than everything kept") {
			t.Errorf("dry run: %s%s", stdout, stderr)
		}
	}
	relay.stop(t)
}

// TestHeldCheckpointPastItsLimit lets go of the WAL, and says so.
func TestHeldCheckpointPastItsLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, "checkpoints: { every: 200ms, hold: { max_bytes: 1048576 } }\n")
	b.run(t, "init")
	relay := b.start(t)
	eventually(t, "the stream", func() bool { return strings.Contains(relay.log.String(), `"message":"streaming"`) })
	if code, _, stderr := b.run(t, "checkpoint", "save", "held", "--hold"); code != 0 {
		t.Fatal(stderr)
	}
	b.Exec(t, `CREATE TABLE noise AS SELECT repeat('x', 500) FROM generate_series(1, 10000)`)
	eventually(t, "the slot to be dropped", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE $1`, b.Name+"_held%") == 0
	})
	eventually(t, "a line in the log", func() bool { return strings.Contains(relay.log.String(), "checkpoints.hold.max_bytes") })
	if _, stdout, _ := b.run(t, "checkpoint", "list"); !strings.Contains(stdout, "held ") || strings.Contains(stdout, "slot") {
		t.Errorf("the LSN should stay, and hold nothing: %s", stdout)
	}
}

// TestReplayKilled: it goes on after a restart, and the totals are right, also where
// the receiver fails in between.
func TestReplayKilled(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprintf("held %t", held), func(t *testing.T) {
			t.Parallel()
			b := setup(t, "retry: { inline: { attempts: 2, min_wait: 5ms, max_wait: 10ms }, schedule: [ 100ms, 200ms, 400ms, 1s, 1s ] }\ncheckpoints: { every: 100ms }\n")
			b.run(t, "init")
			relay := b.start(t)
			b.confirmed(t)
			save := []string{"checkpoint", "save", "start"}
			if held {
				save = append(save, "--hold")
			}
			if code, _, stderr := b.run(t, save...); code != 0 {
				t.Fatal(stderr)
			}
			b.insertMany(t, 1, 3000)
			b.receiver.await(3000)
			b.confirmed(t)
			if held {
				b.Exec(t, `DELETE FROM outbox_events`)
			}
			b.receiver.forget()
			failing := newToggle(0)
			b.receiver.answering(func(w http.ResponseWriter, r request) {
				if r.header.Get("Cdc-Relay-Attempt") == "1" && len(r.body)%3 == 0 && failing.load() == 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				time.Sleep(time.Millisecond)
			})
			failing.store(1)
			code, stdout, stderr := b.run(t, "replay", "--from-checkpoint", "start", "--detach", "--rate", "0")
			if code != 0 {
				t.Fatal(stderr)
			}
			id := strings.TrimSpace(strings.TrimPrefix(stdout, "replay "))
			for i := range 4 {
				eventually(t, "progress", func() bool { return len(b.receiver.accepted()) > 500*(i+1) })
				relay.cmd.Process.Signal(syscall.SIGKILL)
				<-relay.done
				relay = b.start(t)
			}
			eventually(t, "its end", func() bool {
				return database.One[bool](t, b.Database, `SELECT state = 'DONE' AND parked = 0 FROM cdc_relay.replays WHERE id = $1`, id)
			})
			if n := database.One[int](t, b.Database, `SELECT delivered FROM cdc_relay.replays WHERE id = $1`, id); n != 3000 {
				t.Errorf("%d are counted as delivered, want 3000", n)
			}
			accepted := b.receiver.accepted()
			if distinct(accepted) != 3000 || len(accepted) > 3000+4*600 {
				t.Errorf("%d distinct of %d arrived, want 3000 and at most a window of repeats a kill", distinct(accepted), len(accepted))
			}
			t.Logf("%d repeats after 4 kills", len(accepted)-3000)
		})
	}
}

// TestReplayCancelled, and live events go on beside a slow one.
func TestReplayCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.start(t)
	b.confirmed(t)
	b.run(t, "checkpoint", "save", "start")
	b.insertMany(t, 1, 1000)
	b.receiver.await(1000)
	b.confirmed(t)
	b.receiver.forget()
	_, stdout, _ := b.run(t, "replay", "--from-checkpoint", "start", "--detach", "--rate", "50")
	id := strings.TrimSpace(strings.TrimPrefix(stdout, "replay "))
	b.receiver.await(10)
	b.insertMany(t, 1001, 1010)
	eventually(t, "the live ones", func() bool {
		live := 0
		for _, r := range b.receiver.requests() {
			if r.header.Get("Cdc-Relay-Replay") == "" {
				live++
			}
		}
		return live == 10
	})
	if code, stdout, stderr := b.run(t, "replay", "cancel", id); code != 0 || !strings.Contains(stdout, "CANCELLED") {
		t.Fatal(stdout + stderr)
	}
	if n := len(b.receiver.requests()); n > 500 {
		t.Errorf("%d requests by the time of the live ones: the rate was not kept", n)
	}
	if _, stdout, _ := b.run(t, "replay", "list"); !strings.Contains(stdout, id) {
		t.Errorf("list: %s", stdout)
	}
	if code, _, stderr := b.run(t, "replay", "cancel", "nobody"); code != 2 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
