package dispatcher

import "sync"

// lanes are one destination's queues. Deliveries of one lane are worked on one
// at a time and in the order they were pushed; different lanes go side by side,
// as many as limit allows, and take turns so that a long lane can't starve a
// short one.
//
// Workers are goroutines that exist only while there is work. Who calls drain
// waits for them.
type lanes struct {
	limit int
	work  func(*delivery)

	mu      sync.Mutex
	byKey   map[string]*lane
	ready   ring[*lane] // lanes with a head and nobody working on it
	running int
	queued  int // deliveries pushed and not finished
	stopped bool
	workers sync.WaitGroup
}

// lane is a queue whose head is either ready or being worked on. The lane of a
// delivery without order to keep has no key and holds only it.
type lane struct {
	key     string
	ordered bool
	queue   ring[*delivery]
}

func newLanes(limit int, work func(*delivery)) *lanes {
	return &lanes{limit: limit, work: work, byKey: make(map[string]*lane)}
}

// push queues a delivery behind the others of its lane. After stop it does
// nothing: what was never attempted comes again from the slot.
func (l *lanes) push(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return
	}
	l.queued++
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

// makeReady queues a lane for a worker, and starts one when there may be more.
// The caller holds mu.
func (l *lanes) makeReady(ready *lane) {
	l.ready.push(ready)
	if l.running < l.limit {
		l.running++
		l.workers.Add(1)
		go l.worker()
	}
}

func (l *lanes) worker() {
	defer l.workers.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.stopped && l.ready.len() > 0 {
		current := l.ready.pop()
		head := current.queue.front()
		l.mu.Unlock()
		l.work(head)
		l.mu.Lock()
		l.finish(current)
	}
	l.running--
}

// finish takes the worked-on head off its lane. The caller holds mu.
func (l *lanes) finish(current *lane) {
	current.queue.pop()
	l.queued--
	switch {
	case current.queue.len() > 0:
		// This worker goes round again, so there is no need to start another.
		l.ready.push(current)
	case current.ordered:
		delete(l.byKey, current.key)
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

// ring is a queue on a circular buffer, which gives its memory back as it empties.
type ring[T any] struct {
	items []T
	head  int
	count int
}

func (r *ring[T]) len() int { return r.count }

func (r *ring[T]) front() T { return r.items[r.head] }

func (r *ring[T]) push(item T) {
	if r.count == len(r.items) {
		r.resize(max(4, 2*r.count))
	}
	r.items[(r.head+r.count)%len(r.items)] = item
	r.count++
}

func (r *ring[T]) pop() T {
	var none T
	item := r.items[r.head]
	r.items[r.head] = none
	r.head = (r.head + 1) % len(r.items)
	r.count--
	if len(r.items) > 64 && r.count < len(r.items)/4 {
		r.resize(len(r.items) / 2)
	}
	return item
}

func (r *ring[T]) resize(size int) {
	items := make([]T, size)
	for i := range r.count {
		items[i] = r.items[(r.head+i)%len(r.items)]
	}
	r.items, r.head = items, 0
}
