package checkpoint

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// TestTrackerScenarios plays scripts of one step a line:
//
//	begin C · row [known] · commit E · settle C/I · keepalive L · lost
//	watermark L · inflight N
//
// row tracks the next event of the open transaction; known says that it must not
// be handed on again.
func TestTrackerScenarios(t *testing.T) {
	t.Parallel()
	scenarios := map[string]string{
		"a transaction is safe from its end on, not before": `
			begin 10; row; row; commit 20; watermark 0
			settle 10/1; watermark 0
			settle 10/0; watermark 20; inflight 0`,
		"settled out of order, confirmed in order": `
			begin 10; row; commit 20
			begin 30; row; commit 40
			begin 50; row; commit 60
			settle 50/0; settle 30/0; watermark 0
			settle 10/0; watermark 60`,
		"an open transaction holds back, though its events are settled": `
			begin 10; row; settle 10/0; watermark 0
			row; commit 20; watermark 0
			settle 10/1; watermark 20`,
		"a transaction without events of ours is safe when read": `
			begin 10; commit 20; watermark 20`,
		"an idle stream follows keepalives": `
			keepalive 100; watermark 100; keepalive 90; watermark 100`,
		"a keepalive within a transaction says nothing": `
			begin 10; keepalive 500; row; commit 20; settle 10/0; watermark 20`,
		"a keepalive behind an unsettled event waits for it": `
			begin 10; row; commit 20; keepalive 500; watermark 0
			settle 10/0; watermark 500`,
		"what is sent again after a lost connection is not handed on again": `
			begin 10; row; row; lost
			begin 10; row known; row known; row; commit 20; inflight 3
			settle 10/0; settle 10/1; settle 10/2; watermark 20`,
		"a keepalive between the loss and the repeat does not close the half-read transaction": `
			begin 10; row; lost; settle 10/0; keepalive 500; watermark 0
			begin 10; row known; row; commit 20; settle 10/1; watermark 20`,
		"a confirmed transaction that is sent again changes nothing": `
			begin 10; row; commit 20; settle 10/0; watermark 20; lost
			begin 10; row known; commit 20; watermark 20; inflight 0
			begin 30; row; commit 40; settle 30/0; watermark 40`,
		"settled while it is being read again": `
			begin 10; row; commit 20; lost
			begin 10; row known; settle 10/0; watermark 20; commit 20; watermark 20`,
		"settling twice, or what was never handed on, changes nothing": `
			begin 10; row; row; commit 20
			settle 10/0; settle 10/0; settle 10/7; settle 99/0; watermark 0; inflight 1`,
	}
	for name, script := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, script)
		})
	}
}

func play(t *testing.T, script string) {
	t.Helper()
	tracker := NewTracker()
	for step := range strings.FieldsFuncSeq(script, func(r rune) bool { return r == ';' || r == '\n' }) {
		if step = strings.TrimSpace(step); step != "" {
			playStep(t, tracker, step)
		}
	}
}

func playStep(t *testing.T, tracker *Tracker, step string) {
	t.Helper()
	var name string
	var a, b uint32
	fmt.Sscanf(strings.ReplaceAll(step, "/", " "), "%s %d %d", &name, &a, &b)
	switch name {
	case "begin":
		mustDo(t, step, tracker.Begin(outbox.LSN(a), time.Time{}))
	case "row":
		position := outbox.Position{Commit: tracker.open.commit, Index: tracker.open.read}
		fresh, err := tracker.Track(position, 1)
		mustDo(t, step, err)
		if fresh == strings.HasSuffix(step, "known") {
			t.Fatalf("%s: handed on is %t", step, fresh)
		}
	case "commit":
		mustDo(t, step, tracker.Commit(outbox.LSN(a)))
	case "settle":
		tracker.Settle(outbox.Position{Commit: outbox.LSN(a), Index: b})
	case "keepalive":
		tracker.Keepalive(outbox.LSN(a))
	case "lost":
		tracker.Disconnect()
	case "watermark":
		if got := tracker.Watermark(); got != outbox.LSN(a) {
			t.Fatalf("%s: it is %d", step, got)
		}
	case "inflight":
		if got, _ := tracker.InFlight(); got != int(a) {
			t.Fatalf("%s: it is %d", step, got)
		}
	default:
		t.Fatalf("unknown step %q", step)
	}
}

func mustDo(t *testing.T, step string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", step, err)
	}
}

func TestTrackerRefusesWhatBreaksTheOrder(t *testing.T) {
	t.Parallel()
	tracker := NewTracker()
	if tracker.Commit(5) == nil {
		t.Error("a commit without a begin")
	}
	mustDo(t, "begin", tracker.Begin(10, time.Time{}))
	if tracker.Begin(20, time.Time{}) == nil {
		t.Error("a begin within a transaction")
	}
	if _, err := tracker.Track(outbox.Position{Commit: 10, Index: 1}, 1); err != nil {
		t.Errorf("a gap: %v", err)
	}
	if _, err := tracker.Track(outbox.Position{Commit: 10, Index: 1}, 1); err == nil {
		t.Error("event 1 twice in one reading")
	}
	if _, err := tracker.Track(outbox.Position{Commit: 11}, 1); err == nil {
		t.Error("an event of another transaction")
	}
}

// TestG3WatermarkModel plays random histories, with lost connections that send
// everything unconfirmed again, against the plain definition: the watermark
// never passes an unsettled event, never falls, nothing is handed on twice, and
// in the end it reaches the end.
func TestG3WatermarkModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"read":      func(*rapid.T) { m.read() },
			"settle":    m.settle,
			"keepalive": func(*rapid.T) { m.keepalive() },
			"lose":      func(*rapid.T) { m.lose() },
			"":          m.check,
		})
		m.finish(t)
	})
}

// model is a server that sends a fixed history, and what became of it.
type model struct {
	sizes    []int // events of each transaction
	tracker  *Tracker
	at       int // transaction being sent
	row      int // -1 before its begin
	handed   map[outbox.Position]bool
	settled  map[outbox.Position]bool
	previous outbox.LSN
}

func newModel(t *rapid.T) *model {
	return &model{
		sizes: rapid.SliceOfN(rapid.IntRange(0, 4), 1, 8).Draw(t, "sizes"), tracker: NewTracker(), row: -1,
		handed: map[outbox.Position]bool{}, settled: map[outbox.Position]bool{},
	}
}

func commitOf(i int) outbox.LSN { return outbox.LSN(100 * (i + 1)) }
func endOf(i int) outbox.LSN    { return commitOf(i) + 50 }

func (m *model) read() {
	if m.at == len(m.sizes) {
		return
	}
	switch {
	case m.row < 0:
		m.must(m.tracker.Begin(commitOf(m.at), time.Time{}))
		m.row = 0
	case m.row < m.sizes[m.at]:
		position := outbox.Position{Commit: commitOf(m.at), Index: uint32(m.row)}
		fresh, err := m.tracker.Track(position, 1)
		m.must(err)
		if fresh == m.handed[position] {
			panic(fmt.Sprintf("%s: handed on before %t, now %t", position, m.handed[position], fresh))
		}
		m.handed[position] = true
		m.row++
	default:
		m.must(m.tracker.Commit(endOf(m.at)))
		m.at, m.row = m.at+1, -1
	}
}

func (m *model) must(err error) {
	if err != nil {
		panic(err)
	}
}

func (m *model) settle(t *rapid.T) {
	var open []outbox.Position
	for i, size := range m.sizes {
		for row := range size {
			p := outbox.Position{Commit: commitOf(i), Index: uint32(row)}
			if m.handed[p] && !m.settled[p] {
				open = append(open, p)
			}
		}
	}
	if len(open) > 0 {
		p := rapid.SampledFrom(open).Draw(t, "settle")
		m.settled[p] = true
		m.tracker.Settle(p)
	}
}

func (m *model) keepalive() {
	if m.at > 0 && m.row < 0 {
		m.tracker.Keepalive(endOf(m.at-1) + 10)
	}
}

// lose makes the server start over behind what it was last told.
func (m *model) lose() {
	m.tracker.Disconnect()
	confirmed := m.tracker.Watermark()
	m.at, m.row = 0, -1
	for m.at < len(m.sizes) && endOf(m.at) <= confirmed {
		m.at++
	}
}

func (m *model) check(t *rapid.T) {
	watermark := m.tracker.Watermark()
	if watermark < m.previous {
		t.Fatalf("the watermark fell from %d to %d", m.previous, watermark)
	}
	m.previous = watermark
	for i, size := range m.sizes {
		for row := range size {
			p := outbox.Position{Commit: commitOf(i), Index: uint32(row)}
			if !m.settled[p] && watermark > commitOf(i) {
				t.Fatalf("watermark %d passes %s, which is not settled", watermark, p)
			}
		}
	}
}

func (m *model) finish(t *rapid.T) {
	for m.at < len(m.sizes) {
		m.read()
	}
	for p := range m.handed {
		m.tracker.Settle(p)
	}
	if want := endOf(len(m.sizes) - 1); m.tracker.Watermark() < want {
		t.Fatalf("everything is settled and the watermark is %d, want %d", m.tracker.Watermark(), want)
	}
}
