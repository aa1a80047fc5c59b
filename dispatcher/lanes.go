package dispatcher

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// lanes are one destination's queues. Deliveries of one lane are worked on one
// at a time and in the order they were pushed; different lanes go side by side,
// as many as limit allows, and take turns so that a long lane can't starve a
// short one.
//
// A lane can be parked: its head goes to the dead letters for a later attempt, and
// so does, behind it, all that is pushed to the lane until it is freed.
//
// Workers are goroutines that exist only while there is work. Who calls stop
// waits for them.
type lanes struct {
	work   func(*delivery) step
	report func(outbox.Outcome)

	// parking is held, before mu, from the decision to park something until it is
	// reported, so that the outcomes of a lane reach the settler in the lane's
	// order: a later event must not be recorded, and taken up, before an earlier
	// one stands in front of it. Reporting can wait for the settler, which itself
	// needs mu.
	parking sync.Mutex

	mu      sync.Mutex
	limit   int
	byKey   map[string]*lane
	ready   ring[*lane] // lanes with a head and nobody working on it
	again   ring[*lane] // the same, where a replay asked for the head
	running int
	resends int // of the running, how many work on what a replay asked for
	queued  int // deliveries pushed and not finished, replays aside
	bytes   int // of those
	stopped bool
	workers sync.WaitGroup

	seed   [2]maphash.Seed
	parked map[laneHash]parkedLane
}

// step is what working on a delivery came to. The zero step is for a delivery
// whose outcome nobody can know.
type step struct {
	outcome  outbox.Outcome
	known    bool          // report the outcome
	park     bool          // and park the lane behind it
	hold     bool          // and let the lane wait until it is settled
	postpone time.Duration // no outcome yet: try again after this long, the lane waiting
}

// lane is a queue whose head is ready, being worked on, or held. The lane of a
// delivery without order to keep has no key and holds only it.
type lane struct {
	key     string
	ordered bool
	held    bool // until the outcome of the one before is settled; the queue may be empty
	queue   ring[*delivery]
}

// laneHash stands for a parked lane's key. There can be as many parked lanes as
// parked events, so their keys are not kept: 128 bits of a seeded hash tell them
// apart.
type laneHash [2]uint64

// parkedLane counts the lane's outcomes that were reported and are not settled,
// and all that ever were, with what was seen of it in the dead letters: a lane may
// be freed if none is open and nothing was added while the dead letters were being
// asked.
type parkedLane struct {
	open     uint32
	reported uint32
}

func newLanes(limit int, work func(*delivery) step, report func(outbox.Outcome)) *lanes {
	return &lanes{
		work: work, report: report, limit: limit, byKey: make(map[string]*lane),
		seed: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, parked: make(map[laneHash]parkedLane),
	}
}

func (l *lanes) hash(key string) laneHash {
	return laneHash{maphash.String(l.seed[0], key), maphash.String(l.seed[1], key)}
}

// push queues a delivery of the stream or of a replay behind the others of its lane,
// or parks it behind the parked ones. After stop it does nothing: what was never
// attempted comes again from the slot, or from the job.
func (l *lanes) push(d *delivery) {
	if !d.ordered {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.enqueue(d)
		return
	}
	l.parking.Lock()
	defer l.parking.Unlock()
	l.mu.Lock()
	_, parked := l.parked[l.hash(d.lane)]
	if !parked {
		l.enqueue(d)
	}
	l.mu.Unlock()
	if parked {
		l.reportParked(d, d.behind())
	}
}

// pushClaimed queues what was taken up from the dead letters, all of it at once:
// were it queued one by one, the first of a lane could fail, and go back to the dead
// letters, before those that come after it stand behind it and go back with it. They
// would be sent before it.
func (l *lanes) pushClaimed(claimed []*delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range claimed {
		l.enqueue(d)
	}
}

// enqueue puts a delivery into its lane. The caller holds mu.
func (l *lanes) enqueue(d *delivery) {
	if l.stopped {
		return
	}
	if !d.again() {
		l.queued++
		l.bytes += d.event.Size()
	}
	if d.ordered {
		if busy := l.byKey[d.lane]; busy != nil {
			busy.queue.push(d)
			return
		}
	}
	fresh := &lane{key: d.lane, ordered: d.ordered}
	fresh.queue.push(d)
	if d.ordered {
		l.byKey[d.lane] = fresh
	}
	l.makeReady(fresh)
}

// parkAtOnce parks a delivery that is not to be queued at all.
func (l *lanes) parkAtOnce(d *delivery, outcome outbox.Outcome) {
	l.parking.Lock()
	defer l.parking.Unlock()
	l.reportParked(d, outcome)
}

// shed parks what is queued and not being worked on.
func (l *lanes) shed(reason string) {
	l.parking.Lock()
	defer l.parking.Unlock()
	var queued []*delivery
	l.mu.Lock()
	for l.ready.len() > 0 && !l.stopped {
		current := l.ready.pop()
		for current.queue.len() > 0 {
			queued = append(queued, l.remove(current))
		}
		if current.ordered {
			delete(l.byKey, current.key)
		}
	}
	l.mu.Unlock()
	for _, d := range queued {
		if d.letter == nil {
			l.reportParked(d, d.parkedFor(reason, time.Time{}))
		} else {
			d.dropped()
		}
	}
}

// makeReady queues a lane for a worker, and starts one when there may be more.
// The caller holds mu.
func (l *lanes) makeReady(ready *lane) {
	l.put(ready)
	if l.running < l.limit && !l.stopped {
		l.running++
		l.workers.Add(1)
		go l.worker()
	}
}

// put queues a lane. The caller holds mu.
func (l *lanes) put(ready *lane) {
	if ready.queue.front().again() {
		l.again.push(ready)
	} else {
		l.ready.push(ready)
	}
}

// take gives a lane to work on: what a replay asked for only when nothing else is
// ready, and for at most half of the workers. The caller holds mu.
func (l *lanes) take() (ready *lane, ok bool) {
	switch {
	case l.stopped || l.running > l.limit:
		return nil, false
	case l.ready.len() > 0:
		return l.ready.pop(), true
	case l.again.len() > 0 && l.resends < max(1, l.limit/2):
		return l.again.pop(), true
	}
	return nil, false
}

// count takes note that a worker begins or ends something. The caller holds mu.
func (l *lanes) count(head *delivery, change int) {
	if head.again() {
		l.resends += change
	}
}

func (l *lanes) worker() {
	defer l.workers.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		current, ok := l.take()
		if !ok {
			break
		}
		head := current.queue.front()
		l.count(head, +1)
		l.mu.Unlock()
		s := l.work(head)
		switch {
		case s.park:
			l.park(current, head, s.outcome)
		case s.hold:
			l.hold(current, s.outcome)
		case s.known:
			l.report(s.outcome)
		}
		l.mu.Lock()
		l.count(head, -1)
		if !s.park && !s.hold {
			l.after(current, s)
		}
	}
	l.running--
}

// after puts a lane that was not parked where the step says. The caller holds mu.
func (l *lanes) after(current *lane, s step) {
	if s.postpone > 0 {
		// Not tracked further: after stop it finds nothing to do.
		time.AfterFunc(s.postpone, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.makeReady(current)
		})
		return
	}
	l.remove(current)
	switch {
	case current.queue.len() > 0:
		// This worker goes round again, so there is no need to start another.
		l.put(current)
	case current.ordered:
		delete(l.byKey, current.key)
	}
}

func (l *lanes) remove(current *lane) *delivery {
	d := current.queue.pop()
	if !d.again() {
		l.queued--
		l.bytes -= d.event.Size()
	}
	return d
}

// park empties a lane: its head is reported with its outcome, and what stands
// behind it as waiting behind it. What came from the dead letters still stands
// there.
func (l *lanes) park(current *lane, head *delivery, outcome outbox.Outcome) {
	l.parking.Lock()
	defer l.parking.Unlock()
	l.mu.Lock()
	l.remove(current)
	followers := make([]*delivery, 0, current.queue.len())
	for current.queue.len() > 0 {
		followers = append(followers, l.remove(current))
	}
	if current.ordered {
		delete(l.byKey, current.key)
	}
	l.mu.Unlock()
	l.reportParked(head, outcome)
	for _, d := range followers {
		if d.letter == nil {
			l.reportParked(d, d.behind())
		} else {
			d.dropped()
		}
	}
}

// hold reports the head and lets what follows wait until release.
func (l *lanes) hold(current *lane, outcome outbox.Outcome) {
	l.mu.Lock()
	l.remove(current)
	current.held = true
	l.mu.Unlock()
	l.report(outcome)
}

// release lets a held lane go on.
func (l *lanes) release(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	current := l.byKey[key]
	if current == nil || !current.held {
		return
	}
	current.held = false
	if current.queue.len() > 0 {
		l.makeReady(current)
		return
	}
	delete(l.byKey, key)
}

// reportParked reports a delivery and holds back what comes after it in its lane.
// The caller holds parking.
func (l *lanes) reportParked(d *delivery, outcome outbox.Outcome) {
	if d.ordered {
		l.mu.Lock()
		hash := l.hash(d.lane)
		entry := l.parked[hash]
		entry.open++
		entry.reported++
		l.parked[hash] = entry
		l.mu.Unlock()
	}
	outcome.Parked = true
	l.report(outcome)
}

// settled takes note that a parked outcome of the lane is recorded.
func (l *lanes) settled(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hash := l.hash(key)
	if entry, parked := l.parked[hash]; parked && entry.open > 0 {
		entry.open--
		l.parked[hash] = entry
	}
}

// markParked takes note of a lane that stands in the dead letters. That counts as
// a report: an answer of the dead letters from before it must not free the lane.
func (l *lanes) markParked(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hash := l.hash(key)
	entry := l.parked[hash]
	entry.reported++
	l.parked[hash] = entry
}

// freeable tells whether the lane is parked and whether all that was reported of
// it is settled: then the dead letters may be asked about it, and free be called
// with the count.
func (l *lanes) freeable(key string) (reported uint32, parked, settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry, parked := l.parked[l.hash(key)]
	return entry.reported, parked, entry.open == 0
}

// free lets the lane's events through again, unless one was parked since.
func (l *lanes) free(key string, reported uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	hash := l.hash(key)
	if entry, parked := l.parked[hash]; parked && entry.open == 0 && entry.reported == reported {
		delete(l.parked, hash)
	}
}

// load tells how much is queued or being worked on.
func (l *lanes) load() (deliveries, bytes, parkedLanes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queued, l.bytes, len(l.parked)
}

// busy tells how many deliveries are being worked on.
func (l *lanes) busy() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running
}

// resize sets how many lanes go side by side.
func (l *lanes) resize(limit int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = limit
	for range min(l.ready.len()+l.again.len(), limit-l.running) {
		l.running++
		l.workers.Add(1)
		go l.worker()
	}
}

// stop lets the deliveries that are being worked on finish and starts no other.
func (l *lanes) stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
}

// wait blocks until no worker is left. It is called after stop.
func (l *lanes) wait() { l.workers.Wait() }
