package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
	"github.com/cdc-relay/cdc-relay/test/database"
)

// ownServer is a bundle on a server that the test may halt.
func ownServer(t *testing.T, settings map[string]string, extra string) (*bundle, *throwaway.Server) {
	t.Helper()
	server, err := throwaway.StartLocal(t.Context(), throwaway.Options{BinDir: os.Getenv("CDC_RELAY_TEST_BIN_DIR"), Settings: settings})
	if err != nil {
		t.Fatalf("this test halts its server, so it needs local server binaries: %v", err)
	}
	t.Cleanup(func() { server.Stop() })
	b := &bundle{Database: database.On(t, server.URL), receiver: newReceiver(t)}
	b.configure(t, b.destination("main", b.receiver.URL)+extra)
	return b, server
}

// freeAddress is a loopback address for the admin listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func getBody(url string) (int, string) {
	response, err := http.Get(url)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

// TestPostgresRestarts in each way: the relay says why it isn't ready, comes back
// by itself, and loses nothing.
func TestPostgresRestarts(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	b, server := ownServer(t, nil, fmt.Sprintf("admin: { listen: %q }\n", address))
	b.run(t, "init")
	b.start(t)
	next := 1
	for _, mode := range []string{"fast", "immediate", "kill"} {
		b.insertNumbers(t, next, next+99)
		b.receiver.await(next + 99)
		b.confirmed(t)
		eventually(t, "readiness", func() bool {
			code, _ := getBody("http://" + address + "/readyz")
			return code == http.StatusOK
		})
		var err error
		if mode == "kill" {
			err = server.Kill()
		} else {
			err = server.Halt(t.Context(), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a reason in /readyz", func() bool {
			code, body := getBody("http://" + address + "/readyz")
			var ready struct{ Reason string }
			return code == http.StatusServiceUnavailable && json.Unmarshal([]byte(body), &ready) == nil && ready.Reason != ""
		})
		if code, _ := getBody("http://" + address + "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz answers %d while the process lives", code)
		}
		eventually(t, "the server to start again", func() bool { return server.StartAgain(t.Context()) == nil })
		b.Conn.Close(context.Background())
		b.Reconnect(t)
		next += 100
	}
	b.insertNumbers(t, next, next+99)
	eventually(t, "all to arrive", func() bool { return distinct(b.receiver.accepted()) == next+99 })
	b.confirmed(t)
	if code, body := getBody("http://" + address + "/metrics"); code != http.StatusOK || !strings.Contains(body, `cdc_relay_outcomes_total{destination="main",outcome="delivered"} 4`) {
		t.Errorf("/metrics answers %d and doesn't count the deliveries", code)
	}
}

// TestPostgresIsLetGo: a server that is shut down waits for its replication
// clients to confirm everything. The relay can't, for its ordinary connections are
// refused by then, so it goes, whatever the event in flight was waiting for.
func TestPostgresIsLetGo(t *testing.T) {
	t.Parallel()
	for _, held := range []string{"asking what was settled", "settling"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			b, server := ownServer(t, nil, "")
			b.run(t, "init")
			if held == "settling" {
				b.start(t)
				b.insertNumbers(t, 1, 1)
				b.confirmed(t)
			}
			// Who asks or writes waits for this lock until the server ends.
			b.Exec(t, `BEGIN`)
			b.Exec(t, `LOCK TABLE cdc_relay.deliveries IN ACCESS EXCLUSIVE MODE`)
			other, err := pgx.Connect(t.Context(), b.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close(context.Background())
			if _, err := other.Exec(t.Context(), `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), '2')`); err != nil {
				t.Fatal(err)
			}
			if held != "settling" {
				b.start(t)
			}
			eventually(t, "the relay to wait for the lock", func() bool {
				var waiting bool
				err := other.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'cdc_relay.deliveries'::regclass)`).Scan(&waiting)
				return err == nil && waiting
			})
			if err := server.Halt(t.Context(), "fast"); err != nil {
				t.Fatalf("the server could not stop: %v", err)
			}
			if err := server.StartAgain(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.Conn.Close(context.Background())
			b.Reconnect(t)
			b.confirmed(t)
			b.receiver.await(1)
		})
	}
}

// TestAdminRefusesToBeOpen: no listener for others without a token.
func TestAdminRefusesToBeOpen(t *testing.T) {
	t.Parallel()
	b := setup(t, "admin: { listen: \"0.0.0.0:0\" }\n")
	if code, _, stderr := b.run(t, "run"); code != 2 || !strings.Contains(stderr, "admin.token is empty") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	address := freeAddress(t)
	b.configure(t, b.destination("main", b.receiver.URL)+fmt.Sprintf("admin: { listen: %q, token: letmein }\n", address))
	b.run(t, "init")
	b.start(t)
	eventually(t, "the probes to need no token", func() bool {
		code, _ := getBody("http://" + address + "/readyz")
		return code == http.StatusOK
	})
	if code, _ := getBody("http://" + address + "/metrics"); code != http.StatusUnauthorized {
		t.Errorf("/metrics without the token: %d", code)
	}
}

// TestZombieConfirmsNothing: a relay whose host stood still is replaced within
// wal_sender_timeout and five seconds, and when it wakes up it can't confirm.
func TestZombieConfirmsNothing(t *testing.T) {
	t.Parallel()
	b, _ := ownServer(t, map[string]string{"wal_sender_timeout": "3s"}, "")
	b.run(t, "init")
	first := b.start(t)
	b.insertNumbers(t, 1, 100)
	b.receiver.await(100)
	b.confirmed(t)
	second := b.start(t)
	eventually(t, "the second to stand by", func() bool { return strings.Contains(second.log.String(), "standing by") })
	first.cmd.Process.Signal(syscall.SIGSTOP)
	stopped := time.Now()
	b.insertNumbers(t, 101, 200)
	b.receiver.await(200)
	took := time.Since(stopped)
	t.Logf("the second delivered %s after the first stood still (wal_sender_timeout 3s)", took.Round(10*time.Millisecond))
	if took > 8*time.Second {
		t.Errorf("it took %s", took)
	}
	first.cmd.Process.Signal(syscall.SIGCONT)
	b.insertNumbers(t, 201, 300)
	eventually(t, "all to arrive", func() bool { return distinct(b.receiver.accepted()) == 300 })
	b.confirmed(t)
	eventually(t, "the first to stand by", func() bool { return strings.Contains(first.log.String(), "standing by") })
	wantNumbers(t, b.receiver.requests(), 1, 300)
}

// TestG7HugeTransaction: one transaction of many rows passes with bounded memory,
// and a kill in the middle repeats no more than a window.
func TestG7HugeTransaction(t *testing.T) {
	t.Parallel()
	const rows, window = 60_000, 1000
	b := setup(t, fmt.Sprintf("window: { events: %d }\n", window))
	b.run(t, "init")
	relay := b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload)
		SELECT gen_random_uuid(), 'a', ('00000000-0000-0000-0000-' || lpad((n % 500)::text, 12, '0'))::uuid, to_jsonb(repeat('x', 500)) FROM generate_series(1, $1::int) n`, rows)
	b.receiver.await(rows / 2)
	if rss := resident(t, relay); rss > 150<<20 && os.Getenv("CDC_RELAY_TEST_RACE") == "" { // the detector takes several times that
		t.Errorf("%d MB resident in the middle of the transaction", rss>>20)
	}
	relay.kill()
	b.start(t)
	eventually(t, "all to arrive", func() bool { return distinct(b.receiver.accepted()) == rows })
	b.confirmed(t)
	repeats := len(b.receiver.accepted()) - rows
	t.Logf("%d repeats after a kill in the middle", repeats)
	if repeats > window {
		t.Errorf("%d repeats, more than the window of %d", repeats, window)
	}
}

// TestRetention trims what is past its time and settled, and nothing else.
func TestRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.Exec(t, `INSERT INTO outbox_events (id, payload, created_at) VALUES (gen_random_uuid(), '1', now() - interval '2 hours')`)
	b.configure(t, b.destination("main", b.receiver.URL)+"outbox: { retention: 1h }\ndelivery_log: { retention: 1h }\n")
	b.start(t)
	b.receiver.await(1)
	b.confirmed(t)
	if code, stdout, stderr := b.run(t, "doctor"); code != 0 {
		t.Errorf("doctor: exit code %d: %s%s", code, stdout, stderr)
	}
	b.Exec(t, `INSERT INTO outbox_events (id, payload, created_at, processed_at) VALUES (gen_random_uuid(), '2', now(), NULL)`)
	b.receiver.await(2)
	b.confirmed(t)
	b.Exec(t, `UPDATE outbox_events SET processed_at = NULL, created_at = now() - interval '2 hours' WHERE payload = '2'`)
	if code, stdout, _ := b.run(t, "doctor"); code != 2 || !strings.Contains(stdout, "1 unsettled rows are older than 1h") {
		t.Errorf("doctor with a forgotten row: exit code %d: %s", code, stdout)
	}
}
