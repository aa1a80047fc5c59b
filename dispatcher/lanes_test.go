package dispatcher

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

func testDelivery(lane string, number int) *delivery {
	return &delivery{
		event:       &outbox.Event{ID: fmt.Sprintf("%s-%d", lane, number)},
		destination: &destination{name: "test", now: time.Now}, lane: lane, ordered: lane != "",
	}
}

// TestG4LanesKeepOrder pushes many deliveries of some lanes from one goroutine and
// lets many workers at them: each lane's are worked on in order, one at a time.
func TestG4LanesKeepOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var mu sync.Mutex
		worked := make(map[string][]string)
		busy := make(map[string]bool)
		l := newLanes(rapid.IntRange(1, 8).Draw(t, "limit"), func(d *delivery) step {
			mu.Lock()
			if busy[d.lane] {
				t.Errorf("two deliveries of lane %s at once", d.lane)
			}
			busy[d.lane] = true
			mu.Unlock()
			mu.Lock()
			worked[d.lane] = append(worked[d.lane], d.event.ID)
			busy[d.lane] = false
			mu.Unlock()
			return step{}
		}, func(outbox.Outcome) {})
		want := make(map[string][]string)
		for i, lane := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 60).Draw(t, "lanes") {
			d := testDelivery(lane, i)
			want[lane] = append(want[lane], d.event.ID)
			l.push(d)
		}
		l.wait()
		if diff := cmp.Diff(want, worked); diff != "" {
			t.Error(diff)
		}
	})
}

// TestParkedLaneHoldsBackUntilFreed: the head's parking takes its followers along,
// in order, and later pushes too, until the lane is freed.
func TestParkedLaneHoldsBackUntilFreed(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reported []string
	release := make(chan struct{})
	l := newLanes(2, func(d *delivery) step {
		<-release
		outcome := d.outcome()
		if strings.HasSuffix(d.event.ID, "-0") {
			outcome.Fate = outbox.Scheduled
			return step{outcome: outcome, known: true, park: true}
		}
		outcome.Fate = outbox.Delivered
		return step{outcome: outcome, known: true}
	}, func(o outbox.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, o.Event.ID+" "+o.Fate.String())
	})
	for n := range 3 {
		l.push(testDelivery("a", n))
	}
	close(release)
	l.wait()
	l.push(testDelivery("a", 3))
	want := []string{"a-0 scheduled", "a-1 scheduled", "a-2 scheduled", "a-3 scheduled"}
	if diff := cmp.Diff(want, reported); diff != "" {
		t.Fatal(diff)
	}
	if _, parked, settled := l.freeable("a"); !parked || settled {
		t.Errorf("parked %t, settled %t before anything is settled", parked, settled)
	}
	for range 4 {
		l.settled("a")
	}
	count, parked, settled := l.freeable("a")
	if !parked || !settled {
		t.Errorf("parked %t, settled %t after all is", parked, settled)
	}
	l.free("a", count)
	l.push(testDelivery("a", 4))
	l.wait()
	if !slices.Contains(reported, "a-4 delivered") {
		t.Errorf("the freed lane's next was not delivered: %v", reported)
	}
}

// TestAnOldAnswerFreesNoLane: the dead letters were asked, then the lane was seen
// in them, or something was parked: the answer is out of date.
func TestAnOldAnswerFreesNoLane(t *testing.T) {
	t.Parallel()
	l := newLanes(1, func(*delivery) step { return step{} }, func(outbox.Outcome) {})
	l.markParked("a")
	count, _, _ := l.freeable("a")
	l.markParked("a") // by another reader of the dead letters
	l.free("a", count)
	if _, parked, _ := l.freeable("a"); !parked {
		t.Error("freed though it was seen in the dead letters meanwhile")
	}
	count, _, _ = l.freeable("a")
	l.push(testDelivery("a", 0)) // parked behind
	l.settled("a")
	l.free("a", count)
	if _, parked, _ := l.freeable("a"); !parked {
		t.Error("freed though an event was parked meanwhile")
	}
}

func TestRing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r ring[int]
		var want []int
		for i, push := range rapid.SliceOf(rapid.Bool()).Draw(t, "pushes") {
			if push {
				r.push(i)
				want = append(want, i)
			} else if r.len() > 0 {
				if got := r.pop(); got != want[0] {
					t.Fatalf("popped %s, want %d", strconv.Itoa(got), want[0])
				}
				want = want[1:]
			}
			if r.len() != len(want) || len(want) > 0 && r.front() != want[0] {
				t.Fatalf("%d items, want %d", r.len(), len(want))
			}
		}
	})
}

// TestG4ClaimedLaneIsQueuedWhole: of a lane that is taken up from the dead letters
// nothing is sent when its first delivery fails at once. It was: what followed was
// queued after the first had gone back.
func TestG4ClaimedLaneIsQueuedWhole(t *testing.T) {
	t.Parallel()
	var overtaken atomic.Int64
	l := newLanes(4, func(d *delivery) step {
		if d.letter.ID != 0 {
			overtaken.Add(1)
		}
		return step{outcome: d.outcome(), known: true, park: true}
	}, func(outbox.Outcome) {})
	for range 100 {
		claimed := make([]*delivery, 2000)
		for i := range claimed {
			claimed[i] = testDelivery("a", i)
			claimed[i].letter = &deadletter.Letter{ID: int64(i)}
		}
		l.pushClaimed(claimed)
		l.wait()
	}
	if n := overtaken.Load(); n > 0 {
		t.Errorf("%d deliveries overtook the first of their lane", n)
	}
}
