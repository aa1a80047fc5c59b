package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// notReady waits until /readyz gives a reason that holds the text.
func notReady(t *testing.T, address, reason string) {
	t.Helper()
	eventually(t, "a reason in /readyz: "+reason, func() bool {
		code, body := getBody("http://" + address + "/readyz")
		var ready struct{ Reason string }
		return code == http.StatusServiceUnavailable && json.Unmarshal([]byte(body), &ready) == nil && strings.Contains(ready.Reason, reason)
	})
}

// TestOutboxLeavesThePublication in each way, with rows inserted meanwhile: the
// relay says what is wrong, and once that is mended nothing is lost, though the
// slot's stream will never bring those rows.
func TestOutboxLeavesThePublication(t *testing.T) {
	t.Parallel()
	for _, way := range []struct{ name, leave, mend, table, reason string }{
		{"publication dropped", `DROP PUBLICATION %s`, `CREATE PUBLICATION %s FOR TABLE outbox_events WITH (publish = 'insert')`, "outbox_events", "does not exist"},
		{"table taken out", `ALTER PUBLICATION %s DROP TABLE outbox_events`, `ALTER PUBLICATION %s ADD TABLE outbox_events`, "outbox_events", "does not hold table"},
		{"table renamed", `ALTER TABLE outbox_events RENAME TO elsewhere --%s`, `ALTER TABLE elsewhere RENAME TO outbox_events --%s`, "elsewhere", "does not exist"},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", way.name, restart), func(t *testing.T) {
				t.Parallel()
				address := freeAddress(t)
				b := setup(t, fmt.Sprintf("admin: { listen: %q }\n", address))
				b.run(t, "init")
				relay := b.start(t)
				b.insertNumbers(t, 1, 10)
				b.receiver.await(10)
				b.confirmed(t)
				if restart {
					relay.stop(t)
				}
				b.Exec(t, fmt.Sprintf(way.leave, b.Name))
				b.Exec(t, `INSERT INTO `+way.table+` (id, aggregate_type, aggregate_id, payload, created_at)
					SELECT gen_random_uuid(), 'a', '11111111-1111-1111-1111-111111111111', to_jsonb(n), now() + n * interval '1 microsecond' FROM generate_series(11, 20) n`)
				switch {
				case !restart:
					notReady(t, address, way.reason)
				case way.name == "publication dropped":
					// `run` creates it, as `init` does.
				default:
					if code, _, stderr := b.run(t, "run"); code != 2 || !strings.Contains(stderr, way.reason) {
						t.Errorf("run: exit code %d: %s", code, stderr)
					}
				}
				if !restart || way.name != "publication dropped" {
					b.Exec(t, fmt.Sprintf(way.mend, b.Name))
				}
				if restart {
					b.start(t)
				}
				b.receiver.await(20)
				b.insertNumbers(t, 21, 30)
				b.receiver.await(30)
				b.confirmed(t)
				seen := make(map[string]bool)
				var firsts []request
				for _, r := range b.receiver.requests() {
					if !seen[r.id()] {
						seen[r.id()] = true
						firsts = append(firsts, r)
					}
				}
				wantNumbers(t, firsts, 1, 30)
			})
		}
	}
}

// TestG3SettlingFails while the database takes no writes: nothing is confirmed,
// and everything is once it does again.
func TestG3SettlingFails(t *testing.T) {
	t.Parallel()
	b := setup(t, "window: { events: 50 }\n")
	b.run(t, "init")
	// Only the ordinary connections that are made from now on, those of the relay.
	b.Exec(t, fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = on`, pgx.Identifier{b.Database.Name}.Sanitize()))
	relay := b.start(t)
	b.insertNumbers(t, 1, 200)
	eventually(t, "a complaint", func() bool { return strings.Contains(relay.log.String(), "read-only transaction") })
	b.receiver.await(50)
	time.Sleep(time.Second) // for what must not happen
	var positions []string
	for _, r := range b.receiver.requests() {
		position := r.header.Get("Cdc-Relay-Lsn")
		positions = append(positions, position[:strings.LastIndex(position, "/")])
	}
	passed := database.One[int](t, b.Database, `SELECT count(*)::int FROM unnest($2::text[]) commit
		WHERE commit::pg_lsn < (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1)`, b.Name, positions)
	if n := len(positions); n != 50 || passed > 0 {
		t.Errorf("%d requests with a window of 50; %d of them are confirmed, want none", n, passed)
	}
	b.Exec(t, fmt.Sprintf(`ALTER DATABASE %s RESET default_transaction_read_only`, pgx.Identifier{b.Database.Name}.Sanitize()))
	b.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()`)
	b.receiver.await(200)
	b.confirmed(t)
	wantNumbers(t, b.receiver.requests(), 1, 200)
}

// TestConnectionsLostSeparately: the ordinary ones, then the replication one, then
// neither to be had for want of connections.
func TestConnectionsLostSeparately(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	b, server := ownServer(t, map[string]string{"max_connections": "12", "superuser_reserved_connections": "0"}, fmt.Sprintf("admin: { listen: %q }\n", address))
	b.run(t, "init")
	relay := b.start(t)
	next := 1
	arrive := func() {
		t.Helper()
		b.insertNumbers(t, next, next+9)
		next += 10
		b.receiver.await(next - 1)
		b.confirmed(t)
	}
	arrive()
	for _, kind := range []string{"client backend", "walsender"} {
		b.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cdc-relay' AND backend_type = $1`, kind)
		arrive()
	}
	var hoard []*pgx.Conn
	for {
		conn, err := pgx.Connect(t.Context(), server.URL)
		if err != nil {
			break
		}
		hoard = append(hoard, conn)
	}
	// The relay may be quicker to come back than this test is to take its place.
	eventually(t, "the relay to be without a connection", func() bool {
		b.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cdc-relay'`)
		for {
			conn, err := pgx.Connect(t.Context(), server.URL)
			if err != nil {
				break
			}
			hoard = append(hoard, conn)
		}
		_, text := getBody("http://" + address + "/readyz")
		return strings.Contains(text, "too many")
	})
	notReady(t, address, "too many")
	lines := strings.Count(relay.log.String(), "\n")
	time.Sleep(2 * time.Second) // for a busy loop to show
	if more := strings.Count(relay.log.String(), "\n") - lines; more > 60 {
		t.Errorf("%d lines of log in two seconds", more)
	}
	for _, conn := range hoard {
		conn.Close(context.Background())
	}
	arrive()
	wantNumbers(t, b.receiver.requests(), 1, next-1)
}

// TestStuckInOneTransaction: connections that keep ending within one transaction
// are told apart from ones that are lost here and there.
func TestStuckInOneTransaction(t *testing.T) {
	t.Parallel()
	// A short time-out makes the relay notice a lost connection soon, though it doesn't read.
	b, _ := ownServer(t, map[string]string{"wal_sender_timeout": "2s"}, "window: { events: 100 }\n")
	b.run(t, "init")
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	b.receiver.answering(func(http.ResponseWriter, request) { <-gate })
	relay := b.start(t)
	b.insertNumbers(t, 1, 400)
	b.receiver.await(1)
	const complaint = "within the same transaction"
	for ended := 0; !strings.Contains(relay.log.String(), complaint); ended++ {
		if ended > 10 {
			t.Fatal("ten connections ended within one transaction, and the log doesn't tell")
		}
		streams := strings.Count(relay.log.String(), `"message":"streaming"`)
		eventually(t, "the stream", func() bool {
			tag, err := b.Conn.Exec(t.Context(), `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, b.Name)
			return err == nil && tag.RowsAffected() == 1
		})
		eventually(t, "the next stream", func() bool { return strings.Count(relay.log.String(), `"message":"streaming"`) > streams })
		time.Sleep(300 * time.Millisecond) // to come to the transaction
	}
	release()
	b.receiver.await(400)
	b.confirmed(t)
	wantNumbers(t, b.receiver.requests(), 1, 400)
}
