// Package chaos throws faults at a whole relay, its Postgres and its receiver, in
// a random order that a seed repeats, and judges by the history: what was
// committed against what arrived. `make chaos DURATION=20m SEED=7` runs it long.
package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
)

// window is the relay's, small, so that the bound on repeats means something.
const window = 500

// world is everything that a run has.
type world struct {
	t        *testing.T
	random   *rand.Rand
	server   *throwaway.Server
	proxy    *toxiproxy.Proxy
	program  string
	config   string // of the relay, through the proxy
	receiver *receiver
	history  *history
	relays   []*exec.Cmd
	log      *os.File

	disturbances int // each may repeat what was in flight
}

func TestChaos(t *testing.T) {
	duration, seed := setting(t)
	t.Logf("seed %d for %s; repeat it with CDC_RELAY_CHAOS_SEED=%d", seed, duration, seed)
	w := newWorld(t, seed)
	writing, stopWriting := context.WithCancel(context.Background())
	written := w.history.write(writing, w.server.URL, 4)
	watching, stopWatching := context.WithCancel(context.Background())
	watched := w.history.watchConfirmed(watching, w.server.URL)

	faults := make(map[string]int)
	for end := time.Now().Add(duration); time.Now().Before(end); {
		time.Sleep(time.Duration(200+w.random.IntN(1500)) * time.Millisecond)
		faults[w.disturb()]++
		if w.disturbances%20 == 0 {
			w.breathe()
		}
	}
	w.receiver.behave()
	w.startRelays()
	stopWriting()
	<-written
	w.awaitAll()
	stopWatching()
	if passed := <-watched; len(passed) > 0 {
		t.Errorf("the confirmed position passed %d unsettled events, the first: %s", len(passed), passed[0])
	}
	t.Logf("faults: %v", faults)
	w.history.judge(t, w.receiver, w.givenUp(), w.disturbances*window)
}

// givenUp gives the events that were given up once: sent again by hand, or taken
// by the receiver after the relay had waited for its answer in vain.
func (w *world) givenUp() map[string]bool {
	late := make(map[string]bool)
	w.withServer(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, `SELECT outbox_id FROM cdc_relay.dead_letters WHERE replay_id IS NOT NULL OR state = 'DEAD'`)
		if err != nil {
			w.t.Fatal(err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			w.t.Fatal(err)
		}
		for _, id := range ids {
			late[id] = true
		}
	})
	return late
}

// setting is the run's length and seed: a short one, with a seed of its own,
// unless the environment says otherwise.
func setting(t *testing.T) (time.Duration, uint64) {
	t.Helper()
	duration, seed := 25*time.Second, uint64(time.Now().UnixNano()&0xffff)
	if text := os.Getenv("CDC_RELAY_CHAOS_DURATION"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("CDC_RELAY_CHAOS_DURATION: %v", err)
		}
	}
	if text := os.Getenv("CDC_RELAY_CHAOS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("CDC_RELAY_CHAOS_SEED: %v", err)
		}
	}
	return duration, seed
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), receiver: newReceiver(t, seed), history: newHistory()}
	w.program = filepath.Join(dir, "cdc-relay")
	if out, err := exec.Command("go", "build", "-o", w.program, "../../cmd/cdc-relay").CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v: %s", err, out)
	}
	var err error
	// fsync is on: the server is killed, and what it promised must hold.
	w.server, err = throwaway.StartLocal(t.Context(), throwaway.Options{BinDir: os.Getenv("CDC_RELAY_TEST_BIN_DIR"), Settings: map[string]string{"fsync": "on", "wal_sender_timeout": "5s"}})
	if err != nil {
		t.Fatalf("this suite halts and kills its server, so it needs local server binaries: %v", err)
	}
	t.Cleanup(func() { w.server.Stop() })
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	w.proxy = toxiproxy.NewProxy(api, "postgres", "127.0.0.1:0", fmt.Sprintf("127.0.0.1:%d", w.server.Port()))
	if err := w.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.proxy.Stop)
	if w.log, err = os.Create(filepath.Join(dir, "relay.log")); err != nil {
		t.Fatal(err)
	}
	w.config = filepath.Join(dir, "cdc-relay.yaml")
	config := fmt.Sprintf(`
database: { url: "postgres://postgres@%s/postgres?sslmode=disable&connect_timeout=3" }
destinations:
  - { name: main, url: %q, secrets: [ %s ], allow_private_networks: true, timeout: 1s, concurrency: 32 }
retry: { inline: { attempts: 2, min_wait: 10ms, max_wait: 50ms }, schedule: [ 500ms, 1s, 1s ] }
circuit_breaker: { failure_share: 0.7, min_rounds: 50, pause: 1s }
window: { events: %d }
shutdown_timeout: 5s
log: { level: info }
`, w.proxy.Listen, w.receiver.URL, secret, window)
	if err := os.WriteFile(w.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(w.program, "--config", w.config, "init").CombinedOutput(); err != nil {
		t.Fatalf("init: %v: %s", err, out)
	}
	t.Cleanup(func() {
		w.killRelays()
		w.log.Close()
		if t.Failed() {
			keep := filepath.Join(os.TempDir(), fmt.Sprintf("cdc-relay-chaos-%d.log", seed))
			if text, err := os.ReadFile(w.log.Name()); err == nil && os.WriteFile(keep, text, 0o600) == nil {
				t.Logf("the relays' log is in %s", keep)
			}
		}
	})
	w.startRelays()
	return w
}

// breathe lets the relay catch up, as it can't while something happens each second:
// to make a lost slot anew takes longer than that once the table is large.
func (w *world) breathe() {
	w.receiver.behave()
	for deadline := time.Now().Add(2 * time.Minute); w.history.missing(w.receiver) > 2*window && time.Now().Before(deadline); {
		time.Sleep(time.Second)
		w.sendDeadLetters()
	}
}

// sendDeadLetters sends again what was given up while the receiver was out of order.
func (w *world) sendDeadLetters() {
	exec.Command(w.program, "--config", w.config, "dlq", "replay", "--all", "--detach").Run()
	w.startRelays()
}

// awaitAll waits until everything committed was accepted, sending again what was
// given up while the receiver was out of order.
func (w *world) awaitAll() {
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		if w.history.missing(w.receiver) == 0 {
			return
		}
		w.sendDeadLetters()
	}
}
