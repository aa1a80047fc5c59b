package chaos

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// disturb does one thing that goes wrong in the life of a relay, and names it.
func (w *world) disturb() string {
	faults := []struct {
		name   string
		weight int
		do     func()
	}{
		{"relay killed", 6, w.killOne},
		{"relay restarted", 3, w.restartOne},
		{"second relay started", 2, func() { w.startRelay() }},
		{"receiver out of order", 4, func() { w.receiver.misbehave(w.random.IntN(1500)) }},
		{"network cut", 4, w.cut},
		{"connections terminated", 2, w.terminate},
		{"postgres restarted", 1, func() { w.bounce("fast") }},
		{"postgres stopped at once", 1, func() { w.bounce("immediate") }},
		{"postgres killed", 1, func() { w.bounce("kill") }},
		{"slot dropped", 1, w.dropSlot},
	}
	total := 0
	for _, f := range faults {
		total += f.weight
	}
	at := w.random.IntN(total)
	for _, f := range faults {
		if at -= f.weight; at < 0 {
			f.do()
			w.disturbances++
			w.startRelays()
			return f.name
		}
	}
	return "none"
}

// startRelays makes sure that there is one.
func (w *world) startRelays() {
	alive := w.relays[:0]
	for _, r := range w.relays {
		if r.Process.Signal(syscall.Signal(0)) == nil {
			alive = append(alive, r)
		}
	}
	w.relays = alive
	if len(w.relays) == 0 {
		w.startRelay()
	}
}

func (w *world) startRelay() {
	if len(w.relays) >= 2 {
		return
	}
	cmd := exec.Command(w.program, "--config", w.config, "run")
	cmd.Stderr = w.log
	if err := cmd.Start(); err != nil {
		w.t.Fatalf("start the relay: %v", err)
	}
	go cmd.Wait()
	w.relays = append(w.relays, cmd)
}

func (w *world) killOne() {
	if len(w.relays) > 0 {
		w.relays[w.random.IntN(len(w.relays))].Process.Kill()
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *world) killRelays() {
	for _, r := range w.relays {
		r.Process.Kill()
	}
}

func (w *world) restartOne() {
	if len(w.relays) == 0 {
		return
	}
	r := w.relays[w.random.IntN(len(w.relays))]
	r.Process.Signal(os.Interrupt)
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if r.Process.Signal(syscall.Signal(0)) != nil {
			return
		}
	}
	w.t.Error("a relay didn't stop within ten seconds")
}

// cut breaks every connection between relay and Postgres, and for a while lets
// none be made.
func (w *world) cut() {
	w.proxy.Stop()
	time.Sleep(time.Duration(w.random.IntN(2000)) * time.Millisecond)
	if err := w.proxy.Start(); err != nil {
		w.t.Errorf("the proxy didn't start again: %v", err)
	}
}

func (w *world) terminate() {
	w.withServer(func(ctx context.Context, conn *pgx.Conn) {
		conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cdc-relay'`)
	})
}

func (w *world) bounce(mode string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if mode == "kill" {
		if err := w.server.Kill(); err != nil {
			w.t.Errorf("kill Postgres: %v", err)
		}
		time.Sleep(500 * time.Millisecond)
	} else if err := w.server.Halt(ctx, mode); err != nil {
		w.t.Errorf("stop Postgres: %v", err)
	}
	for try := 0; ; try++ {
		err := w.server.StartAgain(ctx)
		if err == nil {
			return
		}
		if try == 20 {
			w.t.Fatalf("Postgres didn't start again: %v", err)
		}
		time.Sleep(500 * time.Millisecond) // what the killed one left is still going down
	}
}

func (w *world) dropSlot() {
	w.withServer(func(ctx context.Context, conn *pgx.Conn) {
		for range 50 {
			conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'cdc_relay' AND active`)
			if _, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot('cdc_relay')`); err == nil {
				return
			}
		}
	})
}

func (w *world) withServer(do func(context.Context, *pgx.Conn)) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.server.URL)
	if err != nil {
		w.t.Errorf("connect to Postgres: %v", err)
		return
	}
	defer conn.Close(ctx)
	do(ctx, conn)
}
