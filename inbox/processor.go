package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
)

// Deferral bounds how long an event that came too early is kept waiting.
type Deferral struct {
	MaxAge time.Duration // since it was deferred first
	Every  time.Duration // between tries, when its entity doesn't move
	Most   int           // tries; 0 for any number
}

// ProcessorOptions are what a Processor is made of.
type ProcessorOptions struct {
	Database Database // each worker holds a connection while it works, one more claims
	Tables   Tables
	Handler  Handler   // nil where a machine alone decides
	Machines []Machine // the first that concerns a partner judges its events
	Workers  int
	Schedule []time.Duration // waits after failed attempts; then the event is quarantined
	Defer    Deferral
	Lease    time.Duration // after which what a dead worker had is taken up again; 0 for 5 s
	Grace    time.Duration // how long attempts under way may take after the end of Run's context; then they are broken off
	Kept     time.Duration // how long processed events are kept, and so recognised; 0 for ever
	// Quarantined is told of each event that was given up.
	Quarantined func(e Event, reason string)
	// Attempted is told what came of each attempt: APPLIED, DEFERRED, REJECTED, STALE,
	// FAILED or QUARANTINED.
	Attempted func(e Event, outcome string)
	Now       func() time.Time
	Log       zerolog.Logger
}

// Processor works on stored events.
type Processor struct {
	o        ProcessorOptions
	machines []*machine
	claimed  string // statement
	table    string // quoted
	states   string // quoted
	wake     chan struct{}
	health   *health
}

// poll is how often stored events are looked for when nothing wakes the processor: by
// then they were stored by another process, or are due.
const poll = 500 * time.Millisecond

// NewProcessor checks the machines and returns a Processor.
func NewProcessor(o ProcessorOptions) (*Processor, error) {
	if o.Workers < 1 {
		return nil, errors.New("a processor needs a worker")
	}
	if o.Lease == 0 {
		o.Lease = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Quarantined == nil {
		o.Quarantined = func(Event, string) {}
	}
	if o.Attempted == nil {
		o.Attempted = func(Event, string) {}
	}
	p := &Processor{
		o: o, table: o.Tables.Inbox.Sanitize(), states: o.Tables.States().Sanitize(),
		wake: make(chan struct{}, 1), health: newHealth(o.Now),
	}
	for _, m := range o.Machines {
		built, err := m.build()
		if err != nil {
			return nil, err
		}
		p.machines = append(p.machines, built)
	}
	// An event waits while an earlier one of its entity is PENDING, whether that is due
	// or not; one that is DEFERRED holds nobody back.
	p.claimed = `WITH heads AS (SELECT i.id FROM ` + p.table + ` i WHERE i.status IN ('PENDING', 'DEFERRED')
			AND (i.next_attempt_at IS NULL OR i.next_attempt_at <= $1) AND (i.claimed_until IS NULL OR i.claimed_until <= $1)
			AND NOT (coalesce(i.partner_name, '') = ANY ($4::text[])) AND ($5::text = '' OR i.partner_name = $5::text)
			AND (i.entity_key IS NULL OR NOT EXISTS (SELECT FROM ` + p.table + ` e WHERE e.entity_key = i.entity_key AND e.status = 'PENDING' AND e.seq < i.seq))
			ORDER BY i.seq LIMIT $2 FOR UPDATE OF i SKIP LOCKED)
		UPDATE ` + p.table + ` i SET attempts = i.attempts + 1, claimed_until = $3 FROM heads WHERE i.id = heads.id RETURNING ` + eventColumns
	return p, nil
}

// Wake makes the processor look for events at once. It never blocks.
func (p *Processor) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends, then waits for the attempts under way, which have Grace to
// end. What the database refuses is logged and tried again.
func (p *Processor) Run(ctx context.Context) error {
	working, breakOff := context.WithCancel(context.WithoutCancel(ctx))
	defer breakOff()
	work := make(chan claim)
	var workers sync.WaitGroup
	free := make(chan struct{}, p.o.Workers)
	for range p.o.Workers {
		free <- struct{}{}
		workers.Go(func() {
			for c := range work {
				p.attempt(working, c)
				free <- struct{}{}
				p.Wake() // what follows in its entity may go on
			}
		})
	}
	defer func() {
		close(work)
		timer := time.AfterFunc(p.o.Grace, breakOff)
		workers.Wait()
		timer.Stop()
	}()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	trimmed := p.o.Now()
	for {
		p.fill(ctx, work, free)
		if now := p.o.Now(); now.Sub(trimmed) >= time.Minute {
			trimmed = now
			if err := p.trim(ctx); err != nil && ctx.Err() == nil {
				p.o.Log.Error().Err(err).Msg("trimming the inbox failed; trying again later")
			}
		}
		select {
		case <-p.wake:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// fill gives free workers something to do, until there is no more or no worker.
func (p *Processor) fill(ctx context.Context, work chan<- claim, free chan struct{}) {
	for ctx.Err() == nil {
		hands := len(free)
		if hands == 0 {
			return
		}
		claims, err := p.claim(ctx, hands)
		if err != nil {
			if ctx.Err() == nil {
				p.o.Log.Error().Err(err).Msg("the inbox is out of reach; stored events wait")
			}
			return
		}
		for _, c := range claims {
			<-free
			work <- c
		}
		if len(claims) < hands {
			return
		}
	}
}

// claim takes up events that are due, at most so many. The attempt is counted here
// and now, so that an event which ends its worker can't be tried for ever.
func (p *Processor) claim(ctx context.Context, most int) ([]claim, error) {
	held, probes := p.health.split()
	claims, err := p.claimOf(ctx, most, held, "")
	if err != nil {
		return nil, err
	}
	for _, partner := range probes {
		if len(claims) == most {
			break
		}
		probe, err := p.claimOf(ctx, 1, nil, partner)
		if err != nil {
			return nil, err
		}
		if len(probe) > 0 {
			p.health.probing(partner)
		}
		claims = append(claims, probe...)
	}
	return claims, nil
}

func (p *Processor) claimOf(ctx context.Context, most int, held []string, partner string) ([]claim, error) {
	now := p.o.Now()
	rows, err := p.o.Database.Query(ctx, p.claimed, now, most, now.Add(p.o.Lease), append([]string{}, held...), partner)
	if err != nil {
		return nil, fmt.Errorf("claim inbound events: %w", err)
	}
	claims, err := pgx.CollectRows(rows, scanClaim)
	if err != nil {
		return nil, fmt.Errorf("claim inbound events: %w", err)
	}
	return claims, nil
}

// claim is an event that was taken up.
type claim struct {
	Event
	attempts      int
	deferredSince *time.Time
	deferCount    int
}

const eventColumns = `i.id::text, coalesce(i.partner_name, ''), coalesce(i.partner_event_id, ''), coalesce(i.event_type, ''), coalesce(i.entity_key, ''),
	i.payload::text, coalesce(i.body, ''), coalesce(i.signature_verified, false), coalesce(i.received_at, localtimestamp), i.attempts, i.deferred_since, i.defer_count`

func scanClaim(row pgx.CollectableRow) (c claim, err error) {
	err = row.Scan(&c.ID, &c.Partner, &c.EventID, &c.Type, &c.EntityKey, &c.Payload, &c.Body, &c.Verified, &c.ReceivedAt, &c.attempts, &c.deferredSince, &c.deferCount)
	c.Attempt = c.attempts
	return c, err
}

// trim deletes processed events that were kept long enough, in small batches. What is
// quarantined stays for a person.
func (p *Processor) trim(ctx context.Context) error {
	if p.o.Kept == 0 {
		return nil
	}
	const batch = 1000
	for {
		tag, err := p.o.Database.Exec(ctx, fmt.Sprintf(`DELETE FROM %[1]s WHERE id IN (SELECT id FROM %[1]s WHERE status = 'PROCESSED'
			AND processed_at < localtimestamp - make_interval(secs => $1) LIMIT %[2]d)`, p.table, batch), p.o.Kept.Seconds())
		if err != nil {
			return fmt.Errorf("trim the inbox: %w", err)
		}
		if tag.RowsAffected() < batch {
			return nil
		}
	}
}
