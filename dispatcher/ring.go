package dispatcher

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
		r.resize(max(1, 2*r.count))
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
