package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// parking takes up what is due and frees lanes in which nothing is left. Its run
// is one goroutine.
type parking struct {
	letters      *deadletter.Store
	destinations func() []*destination
	log          zerolog.Logger
	wake         chan struct{}

	mu    sync.Mutex
	ended map[deadletter.Lane]struct{} // lanes in which nothing may be left
}

const (
	// pollInterval is how often the dead letters are asked when nothing wakes parking.
	pollInterval = 500 * time.Millisecond

	// claimBelow is with how few in hand more are claimed: enough for the lanes to have
	// work until the next ones are there.
	claimBelow      = 1024
	headsAtOnce     = 256
	followersAtOnce = 15
	claimedBytes    = 8 << 20
)

func newParking(letters *deadletter.Store, destinations func() []*destination, log zerolog.Logger) *parking {
	return &parking{
		letters: letters, destinations: destinations, log: log,
		wake: make(chan struct{}, 1), ended: make(map[deadletter.Lane]struct{}),
	}
}

// run works until ctx ends. An error of the database is logged and outlived.
func (p *parking) run(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if err := p.turn(ctx); err != nil && ctx.Err() == nil {
			p.log.Error().Err(err).Msg("dead letters are out of reach; parked events wait")
			p.pause(ctx)
		}
		select {
		case <-ticker.C:
		case <-p.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (p *parking) pause(ctx context.Context) {
	timer := time.NewTimer(5 * pollInterval)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p *parking) turn(ctx context.Context) error {
	if err := p.applyPauses(ctx); err != nil {
		return err
	}
	if err := p.freeLanes(ctx); err != nil {
		return err
	}
	p.shedSlow()
	for _, d := range p.destinations() {
		if err := p.claim(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

func (p *parking) applyPauses(ctx context.Context) error {
	names, err := p.letters.Paused(ctx)
	if err != nil {
		return err
	}
	paused := make(map[string]bool, len(names))
	for _, name := range names {
		paused[name] = true
	}
	for _, d := range p.destinations() {
		if d.current.Load().gate.pause(paused[d.name]) {
			d.log.Warn().Bool("paused", paused[d.name]).Msg("destination paused or resumed")
		}
	}
	return nil
}

// shedSlow parks what is queued for a destination that is too slow for it while
// others have nothing to do, so that it doesn't hold back the WAL for long.
func (p *parking) shedSlow() {
	destinations := p.destinations()
	for _, d := range destinations {
		queued, _, _ := d.lanes.load()
		if queued > d.current.Load().Concurrency && d.slow() && othersIdle(destinations, d) {
			d.lanes.shed(reasonBehind)
		}
	}
}

// claim takes up what is due, unless enough is in hand.
func (p *parking) claim(ctx context.Context, d *destination) error {
	set := d.current.Load()
	request := deadletter.Request{Destination: d.name, Heads: headsAtOnce, Followers: followersAtOnce, Bytes: claimedBytes, Lease: set.lease()}
	inHand := d.claimed.Load()
	switch ready := set.gate.readiness(); {
	case ready == shut, inHand >= claimBelow, ready == probing && inHand > 0:
		return nil
	case ready == probing:
		request.Heads, request.Followers = 1, 0
	}
	letters, err := p.letters.Claim(ctx, request)
	if err != nil {
		return err
	}
	d.claimed.Add(int64(len(letters)))
	deliveries := make([]*delivery, len(letters))
	for i := range letters {
		letter := &letters[i]
		next := i+1 < len(letters) && letter.Ordered && sameLane(letter, &letters[i+1])
		if letter.Ordered {
			d.lanes.markParked(first(letter.Event.Lane()))
		}
		deliveries[i] = d.takeUp(letter, next)
	}
	d.lanes.pushClaimed(deliveries)
	return nil
}

func sameLane(a, b *deadletter.Letter) bool {
	return b.Ordered && first(a.Event.Lane()) == first(b.Event.Lane())
}

// freeLanes lets events through again in lanes in which nothing is parked any more.
// Those are asked about in which something that was in hand here has ended. Where
// somebody else ended the last of a lane, the lane's next event goes through the dead
// letters, and frees it.
func (p *parking) freeLanes(ctx context.Context) error {
	asked := p.freeable()
	if len(asked) == 0 {
		return nil
	}
	lanes := make([]deadletter.Lane, 0, len(asked))
	for lane := range asked {
		lanes = append(lanes, lane)
	}
	free, err := p.letters.FreeLanes(ctx, lanes)
	if err != nil {
		p.remember(lanes)
		return err
	}
	byName := p.byName()
	for _, lane := range free {
		byName[lane.Destination].lanes.free(lane.Key, asked[lane])
	}
	return nil
}

// freeable takes the lanes that the dead letters may be asked about, each with
// its count of reports. Those with an outcome under way stay for the next turn.
func (p *parking) freeable() map[deadletter.Lane]uint32 {
	byName := p.byName()
	asked := make(map[deadletter.Lane]uint32)
	p.mu.Lock()
	defer p.mu.Unlock()
	for lane := range p.ended {
		d := byName[lane.Destination]
		if d == nil {
			delete(p.ended, lane)
			continue
		}
		reported, parked, settled := d.lanes.freeable(lane.Key)
		if parked && !settled {
			continue
		}
		delete(p.ended, lane)
		if parked {
			asked[lane] = reported
		}
	}
	return asked
}

func (p *parking) byName() map[string]*destination {
	byName := make(map[string]*destination)
	for _, d := range p.destinations() {
		byName[d.name] = d
	}
	return byName
}

func (p *parking) remember(lanes []deadletter.Lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lane := range lanes {
		p.ended[lane] = struct{}{}
	}
}

// settled takes note of outcomes that are recorded.
func (p *parking) settled(batch []outbox.Outcome) {
	byName := p.byName()
	var ended []deadletter.Lane
	taken := false
	for _, o := range batch {
		d := byName[o.Destination]
		if d == nil || o.LetterID == 0 && o.Fate != outbox.Scheduled && o.Fate != outbox.Dead {
			continue
		}
		if o.LetterID != 0 {
			d.claimed.Add(-1)
			taken = true
		}
		key, ordered := o.Event.Lane()
		if !ordered || !o.Ordered {
			continue
		}
		if o.Parked {
			d.lanes.settled(key)
		}
		// While the next one of the lane is in hand there is no need to ask.
		if o.LetterID != 0 && o.Fate != outbox.Scheduled && o.NextHeldUntil.IsZero() {
			ended = append(ended, deadletter.Lane{Destination: o.Destination, Key: key})
		}
	}
	p.remember(ended)
	if taken {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// park holds back a lane of which something stands in the dead letters, until
// they have been asked about it.
func (p *parking) park(d *delivery) {
	d.destination.lanes.markParked(d.lane)
	p.remember([]deadletter.Lane{{Destination: d.destination.name, Key: d.lane}})
}

// loadLanes marks the lanes that stand in the dead letters.
func (p *parking) loadLanes(ctx context.Context) error {
	byName := p.byName()
	return p.letters.EachLane(ctx, func(lane deadletter.Lane) {
		if d := byName[lane.Destination]; d != nil {
			d.lanes.markParked(lane.Key)
		}
	})
}
