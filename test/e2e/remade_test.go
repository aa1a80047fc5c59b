package e2e

import (
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// TestG1SlotMadeAnewByAnother: a relay that has streamed, stands by, and takes over a
// slot that another has made anew meanwhile, sends the backlog that came with it.
func TestG1SlotMadeAnewByAnother(t *testing.T) {
	t.Parallel()
	b, _ := ownServer(t, map[string]string{"wal_sender_timeout": "3s"}, "")
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(release)
	gated := newToggle(0)
	b.receiver.answering(func(http.ResponseWriter, request) {
		if gated.load() == 1 {
			<-gate
		}
	})
	b.run(t, "init")
	first := b.start(t)
	b.insertNumbers(t, 1, 10)
	b.receiver.await(10)
	b.confirmed(t)
	second := b.start(t)
	eventually(t, "the second to stand by", func() bool { return strings.Contains(second.log.String(), "standing by") })
	first.cmd.Process.Signal(syscall.SIGSTOP)
	b.insertNumbers(t, 11, 20)
	b.receiver.await(20)
	b.confirmed(t)
	first.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "the first to stand by", func() bool { return strings.Contains(first.log.String(), "standing by") })

	first.cmd.Process.Signal(syscall.SIGSTOP)
	second.cmd.Process.Signal(syscall.SIGSTOP)
	b.dropSlot(t)
	b.insertNumbers(t, 21, 120)
	gated.store(1)
	second.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "the second to make it anew", func() bool {
		return database.One[bool](t, b.Database, `SELECT coalesce((SELECT NOT making AND backlog_rows = 100 AND finished_at IS NULL FROM cdc_relay.slot_state WHERE slot_name = $1), false)`, b.Name)
	})
	second.kill()
	gated.store(0)
	release()
	first.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "all to arrive", func() bool { return distinct(b.receiver.accepted()) == 120 })
	b.confirmed(t)
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NULL`); n != 0 {
		t.Errorf("%d rows are not marked", n)
	}
}

// TestG1HalfMadeSlotIsNotStreamed: while a relay makes the slot, and after it died over
// that, no other streams what is there of it.
func TestG1HalfMadeSlotIsNotStreamed(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	relay := b.start(t)
	b.insertNumbers(t, 1, 10)
	b.receiver.await(10)
	b.confirmed(t)
	// As it stands in the middle of the making: the rows of before are not listed yet.
	b.Exec(t, `SELECT pg_advisory_lock($1)`, int64(0x63646330))
	b.Exec(t, `UPDATE cdc_relay.slot_state SET making = true`)
	b.dropSlot(t)
	b.insertNumbers(t, 11, 20)
	b.Exec(t, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, b.Name)
	eventually(t, "the relay to wait", func() bool { return strings.Contains(relay.log.String(), "are being made") })
	if n := len(b.receiver.requests()); n != 10 {
		t.Errorf("%d requests while the slot is being made", n)
	}
	b.Exec(t, `SELECT pg_advisory_unlock_all()`) // its maker has died
	b.receiver.await(20)
	b.confirmed(t)
	wantNumbers(t, b.receiver.requests(), 1, 20)
}
