package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// write writes rows of many aggregates from several sessions, in transactions of
// 1 to 200 rows of which every tenth rolls back. It gives, for each committed
// id, its aggregate and its place among the aggregate's events.
func write(t *testing.T, b *bundle, rows, aggregates int) map[string]place {
	t.Helper()
	const sessions = 4
	results := make([]map[string]place, sessions)
	var group errgroup.Group
	for s := range sessions {
		conn := b.Connect(t)
		own := make([]uuid.UUID, aggregates/sessions)
		for i := range own {
			own[i] = uuid.New()
		}
		group.Go(func() (err error) {
			results[s], err = writeSession(conn, rows/sessions, own)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]place)
	for _, result := range results {
		for id, p := range result {
			all[id] = p
		}
	}
	return all
}

// place is where an event stands among those of its aggregate.
type place struct {
	aggregate uuid.UUID
	number    int
}

func writeSession(conn *pgx.Conn, rows int, aggregates []uuid.UUID) (map[string]place, error) {
	written := make(map[string]place)
	next := make(map[uuid.UUID]int)
	for len(written) < rows {
		committed, err := writeTransaction(conn, min(1+rand.IntN(200), rows-len(written)), aggregates, next)
		if err != nil {
			return nil, err
		}
		for id, p := range committed {
			written[id] = p
		}
	}
	return written, nil
}

func writeOnce(conn *pgx.Conn, aggregates []uuid.UUID, next map[uuid.UUID]int) (map[string]place, error) {
	return writeTransaction(conn, 1+rand.IntN(10), aggregates, next)
}

// writeTransaction writes one transaction, which rolls back one time in ten, and
// gives what it committed. next counts the events of each aggregate.
func writeTransaction(conn *pgx.Conn, count int, aggregates []uuid.UUID, next map[uuid.UUID]int) (map[string]place, error) {
	ctx := context.Background()
	rollBack := rand.IntN(10) == 0
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	written := make(map[string]place)
	numbers := make(map[uuid.UUID]int)
	for range count {
		id, aggregate := uuid.New(), aggregates[rand.IntN(len(aggregates))]
		number := next[aggregate] + numbers[aggregate]
		numbers[aggregate]++
		batch.Queue(`INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'order', $2, 'order.changed', $3)`,
			id, aggregate, fmt.Sprintf(`{"number": %d, "rolled_back": %t}`, number, rollBack))
		written[id.String()] = place{aggregate, number}
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	if rollBack {
		return nil, tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, err
	}
	for aggregate, n := range numbers {
		next[aggregate] += n
	}
	return written, nil
}

// judge holds what was committed against what arrived.
func judge(t *testing.T, committed map[string]place, arrived []request) (duplicates int) {
	t.Helper()
	seen := make(map[string]bool)
	last := make(map[uuid.UUID]int)
	for _, r := range arrived {
		p, known := committed[r.id()]
		if !known {
			t.Fatalf("%s was never committed, and arrived", r.id())
		}
		if seen[r.id()] {
			duplicates++
			continue
		}
		seen[r.id()] = true
		if p.number != last[p.aggregate] {
			t.Fatalf("event %d of aggregate %s arrived when event %d was due", p.number, p.aggregate, last[p.aggregate])
		}
		last[p.aggregate]++
	}
	if lost := len(committed) - len(seen); lost > 0 {
		t.Fatalf("%d of %d committed events never arrived", lost, len(committed))
	}
	return duplicates
}

// TestG1G2G4NothingLostInventedOrReordered is the main job at its usual size: all
// that was committed arrives once, in order, signed; nothing that rolled back.
func TestG1G2G4NothingLostInventedOrReordered(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	if code, _, stderr := b.run(t, "init"); code != 0 {
		t.Fatalf("init: %s", stderr)
	}
	relay := b.start(t)
	committed := write(t, b, 20_000, 1000)
	b.receiver.await(len(committed))
	b.confirmed(t)
	relay.stop(t)

	if duplicates := judge(t, committed, b.receiver.requests()); duplicates > 0 {
		t.Errorf("%d events arrived twice", duplicates)
	}
	if bad := b.receiver.badSignatures(); len(bad) > 0 {
		t.Errorf("%d signatures don't verify, the first: %s", len(bad), bad[0])
	}
	if left := database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NULL`); left > 0 {
		t.Errorf("%d rows have no processed_at", left)
	}
	if logged := database.One[int](t, b.Database, `SELECT count(DISTINCT outbox_id) FROM cdc_relay.deliveries`); logged != len(committed) {
		t.Errorf("the delivery log has %d events, want %d", logged, len(committed))
	}
}

// TestG3SettleBeforeConfirm watches the slot while one event's receiver is slow:
// the confirmed position must stay before that event's commit until its delivery
// is in the delivery log.
func TestG3SettleBeforeConfirm(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	release := make(chan struct{})
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		if r.header.Get("Cdc-Relay-Event-Type") == "slow" {
			<-release
		}
	})
	b.run(t, "init")
	b.start(t)
	insert := func(kind string) {
		b.Exec(t, `INSERT INTO outbox_events (id, event_type, payload) VALUES (gen_random_uuid(), $1, '{}')`, kind)
	}
	insert("slow")
	after := database.One[string](t, b.Database, `SELECT pg_current_wal_flush_lsn()::text`)
	for range 20 {
		insert("fast")
	}
	b.receiver.await(21)
	eventually(t, "the fast events to be settled", func() bool {
		return database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.deliveries`) == 20
	})
	time.Sleep(500 * time.Millisecond) // the stream confirms every 100 ms, if it is wrong then by now
	if database.One[bool](t, b.Database, `SELECT confirmed_flush_lsn >= $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, b.Name, after) {
		t.Error("the confirmed position passed an event that is not settled")
	}
	close(release)
	b.confirmed(t)
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.deliveries`); n != 21 {
		t.Errorf("confirmed with %d of 21 events settled", n)
	}
}
