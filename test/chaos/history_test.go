package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// history is what was committed, and when it must be settled.
type history struct {
	mu         sync.Mutex
	places     map[string]place
	rolledBack map[string]bool
	bounds     []bound // in the order of their commits, each until it was seen settled
}

// place is where an event stands among those of its aggregate.
type place struct {
	aggregate uuid.UUID
	number    int
}

// bound says that an event was committed before an LSN.
type bound struct {
	id  string
	lsn string
}

func newHistory() *history {
	return &history{places: make(map[string]place), rolledBack: make(map[string]bool)}
}

// write writes from several sessions until ctx ends, through every outage of the
// server. The channel is closed when all have ended.
func (h *history) write(ctx context.Context, url string, sessions int) <-chan struct{} {
	done := make(chan struct{})
	var group errgroup.Group
	for range sessions {
		group.Go(func() error {
			s := &session{history: h, url: url, next: make(map[uuid.UUID]int)}
			for range 10 {
				s.aggregates = append(s.aggregates, uuid.New())
			}
			for ctx.Err() == nil {
				s.transaction(context.WithoutCancel(ctx))
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
	}
	go func() {
		defer close(done)
		_ = group.Wait() // sessions outlive their errors
	}()
	return done
}

// session is one writer with aggregates of its own.
type session struct {
	history    *history
	url        string
	conn       *pgx.Conn
	aggregates []uuid.UUID
	next       map[uuid.UUID]int
}

func (s *session) connect(ctx context.Context) *pgx.Conn {
	for {
		if s.conn != nil && !s.conn.IsClosed() {
			return s.conn
		}
		if conn, err := pgx.Connect(ctx, s.url); err == nil {
			s.conn = conn
			continue
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// transaction writes one, rolled back one time in ten. Whether a commit whose
// answer was lost took place is looked up afterwards.
func (s *session) transaction(ctx context.Context) {
	conn := s.connect(ctx)
	rollBack := rand.IntN(10) == 0
	written := make(map[string]place)
	numbers := make(map[uuid.UUID]int)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return
	}
	var one string
	for range 1 + rand.IntN(6) {
		id, aggregate := uuid.NewString(), s.aggregates[rand.IntN(len(s.aggregates))]
		number := s.next[aggregate] + numbers[aggregate]
		// A time of its own for each row: what a lost slot leaves in the table can't be put
		// in order by anything else once the server has crashed.
		if _, err := tx.Exec(ctx, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, created_at) VALUES ($1, 'a', $2, 'e', $3, clock_timestamp())`,
			id, aggregate, fmt.Sprintf(`{"n": %d}`, number)); err != nil {
			tx.Rollback(ctx)
			return
		}
		numbers[aggregate]++
		written[id] = place{aggregate, number}
		one = id
	}
	if rollBack {
		tx.Rollback(ctx)
		s.history.rollBack(written)
		return
	}
	if err := tx.Commit(ctx); err != nil && !s.committed(ctx, one) {
		return
	}
	for aggregate, n := range numbers {
		s.next[aggregate] += n
	}
	s.history.commit(written, s.position(ctx))
}

func (s *session) committed(ctx context.Context, id string) (yes bool) {
	for {
		if err := s.connect(ctx).QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox_events WHERE id = $1)`, id).Scan(&yes); err == nil {
			return yes
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// position is an LSN after the commit.
func (s *session) position(ctx context.Context) (lsn string) {
	for {
		if err := s.connect(ctx).QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&lsn); err == nil {
			return lsn
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (h *history) rollBack(written map[string]place) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range written {
		h.rolledBack[id] = true
	}
}

func (h *history) commit(written map[string]place, lsn string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, p := range written {
		h.places[id] = p
		h.bounds = append(h.bounds, bound{id, lsn})
	}
}

// watchConfirmed asks again and again whether the slot's confirmed position has
// passed an event that is not settled. It gives what it found when ctx ends.
func (h *history) watchConfirmed(ctx context.Context, url string) <-chan []string {
	found := make(chan []string, 1)
	go func() {
		var passed []string
		s := &session{url: url}
		for ctx.Err() == nil {
			passed = append(passed, h.look(context.WithoutCancel(ctx), s)...)
			time.Sleep(100 * time.Millisecond)
		}
		found <- passed
	}()
	return found
}

// look reads the position first and the rows after it: what the position has
// passed must be settled by then. Rows that a slot made anew has in its backlog
// are before its position by design, so they are left out until that is settled.
func (h *history) look(ctx context.Context, s *session) (passed []string) {
	h.mu.Lock()
	recent := append([]bound(nil), h.bounds[:min(len(h.bounds), 500)]...)
	h.mu.Unlock()
	ids, lsns := make([]string, len(recent)), make([]string, len(recent))
	for i, b := range recent {
		ids[i], lsns[i] = b.id, b.lsn
	}
	conn := s.connect(ctx)
	var confirmed string
	err := conn.QueryRow(ctx, `SELECT s.confirmed_flush_lsn::text FROM pg_replication_slots s
		JOIN cdc_relay.slot_state st USING (slot_name) WHERE st.finished_at IS NOT NULL AND s.confirmed_flush_lsn > st.until_lsn`).Scan(&confirmed)
	if err != nil {
		return nil // no slot, or its backlog is still being sent
	}
	rows, err := conn.Query(ctx, `SELECT u.id, o.processed_at IS NOT NULL OR EXISTS (SELECT FROM cdc_relay.deliveries d WHERE d.outbox_id = u.id) OR EXISTS (SELECT FROM cdc_relay.dead_letters d WHERE d.outbox_id = u.id)
			OR EXISTS (SELECT FROM cdc_relay.backlog b WHERE b.outbox_id = u.id) OR NOT EXISTS (SELECT FROM cdc_relay.slot_state WHERE finished_at IS NOT NULL)
		FROM unnest($1::text[], $2::text[]) AS u (id, lsn) JOIN outbox_events o ON o.id = u.id::uuid WHERE u.lsn::pg_lsn <= $3::text::pg_lsn`, ids, lsns, confirmed)
	if err != nil {
		return nil
	}
	settled := make(map[string]bool)
	var id string
	var is bool
	if _, err := pgx.ForEachRow(rows, []any{&id, &is}, func() error {
		settled[id] = true
		if !is {
			passed = append(passed, fmt.Sprintf("%s at %s", id, confirmed))
		}
		return nil
	}); err != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	kept := h.bounds[:0:0]
	for _, b := range h.bounds {
		if !settled[b.id] {
			kept = append(kept, b)
		}
	}
	h.bounds = kept
	return passed
}

func (h *history) missing(r *receiver) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	missing := 0
	for id := range h.places {
		if r.accepted[id] == 0 {
			missing++
		}
	}
	return missing
}

// judge holds what was committed against what arrived. late are those that were
// given up and sent again by hand, which have lost their turn.
func (h *history) judge(t *testing.T, r *receiver, late map[string]bool, mostRepeats int) {
	t.Helper()
	lost := h.missing(r)
	h.mu.Lock()
	defer h.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	invented, outOfOrder, repeats := 0, 0, 0
	seen := make(map[string]bool)
	last := make(map[uuid.UUID]int)
	for _, id := range r.order {
		p, known := h.places[id]
		switch {
		case h.rolledBack[id] || !known:
			invented++
			continue
		case seen[id]:
			repeats++
			continue
		}
		seen[id] = true
		if late[id] {
			continue
		}
		if p.number < last[p.aggregate] {
			if outOfOrder++; outOfOrder <= 5 {
				t.Logf("%s, number %d of aggregate %s, arrived after number %d", id, p.number, p.aggregate, last[p.aggregate])
			}
		}
		last[p.aggregate] = max(last[p.aggregate], p.number)
	}
	t.Logf("%d committed, %d rolled back, %d lost, %d invented, %d out of order, %d repeats (at most %d), %d bad signatures",
		len(h.places), len(h.rolledBack), lost, invented, outOfOrder, repeats, mostRepeats, r.bad)
	if lost+invented+outOfOrder+r.bad > 0 || repeats > mostRepeats {
		t.Error("the history is not clean")
	}
}
