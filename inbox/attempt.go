package inbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// attempt works on one claimed event. Its effect and its new status are one
// transaction, which holds the row's lock all the while: a worker that dies lets go
// of both, and nobody else takes up the event before.
func (p *Processor) attempt(ctx context.Context, c claim) {
	log := p.o.Log.With().Str("event_id", c.ID).Str("partner", c.Partner).Str("partner_event_id", c.EventID).Int("attempt", c.attempts).Logger()
	if c.attempts > len(p.o.Schedule)+1 {
		p.giveUp(ctx, c, "it ended its worker again and again")
		return
	}
	if c.undecodable() {
		p.giveUp(ctx, c, "jsonb can't hold its payload, as it has an escaped zero or a number that is too long; its raw body is kept")
		return
	}
	if c.deferredSince != nil && p.o.Now().Sub(*c.deferredSince) > p.o.Defer.MaxAge {
		p.giveUp(ctx, c, "it came too early, and its turn didn't come within defer.max_age")
		return
	}
	verdict, err := p.transact(ctx, c)
	switch {
	case err == nil:
		p.health.succeeded(c.Partner)
		p.o.Attempted(c.Event, verdict)
		log.Debug().Str("verdict", verdict).Msg("inbound event processed")
	case errors.Is(err, errTaken):
		log.Debug().Msg("the claim on an inbound event had run out; somebody else has it")
	case ctx.Err() != nil, errors.Is(err, errNotBegun):
		// No fault of the event: it isn't an attempt.
		log.Warn().Err(err).Msg("an attempt at an inbound event was broken off; it will be made again")
		given, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		p.note(given, c, "BROKEN OFF", err.Error(), `attempts = i.attempts - 1, claimed_until = NULL`)
	default:
		log.Warn().Err(err).Msg("an attempt at an inbound event failed")
		p.health.failed(c.Partner)
		p.fail(ctx, c, err)
	}
}

// undecodable tells whether the payload had to be stored as a text.
func (c claim) undecodable() bool {
	return bytes.HasPrefix(c.Payload, []byte(`"`)) && !bytes.HasPrefix(bytes.TrimSpace(c.Body), []byte(`"`))
}

// releaseTimeout bounds how long the end waits to give an event back. One that can't
// be is taken up when its lease is over.
const releaseTimeout = 2 * time.Second

var (
	// errTaken says that somebody else has the event.
	errTaken = errors.New("the event is not this worker's any more")
	// errNotBegun says that the database couldn't be reached for the attempt.
	errNotBegun = errors.New("the attempt could not begin")
)

func (p *Processor) transact(ctx context.Context, c claim) (verdict string, err error) {
	tx, err := p.o.Database.Begin(ctx)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNotBegun, err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after the commit
	// A lock that is in the way is waited for: it is that of a duplicate being counted,
	// or of whoever took the event up when this claim had run out, and then the row
	// doesn't match any more.
	var mine bool
	err = tx.QueryRow(ctx, `SELECT true FROM `+p.table+` WHERE id = $1 AND attempts = $2 AND status IN ('PENDING', 'DEFERRED') FOR UPDATE`, c.ID, c.attempts).Scan(&mine)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", errTaken
	}
	if err != nil {
		return "", fmt.Errorf("lock the event: %w", err)
	}
	if c.EntityKey != "" {
		// One that was deferred and one that just came may be of the same entity.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`, "cdc-relay inbox "+c.EntityKey); err != nil {
			return "", fmt.Errorf("lock the entity: %w", err)
		}
	}
	verdict, err = p.decide(ctx, tx, c)
	if err != nil {
		return "", err
	}
	if err := tx.Commit(ctx); err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	return verdict, nil
}

// decide lets the machine and the handler have their say, and writes what they say.
func (p *Processor) decide(ctx context.Context, tx pgx.Tx, c claim) (string, error) {
	m := p.machineOf(c)
	var judged proposal
	var to, reason string
	if m != nil {
		state := m.Initial
		err := tx.QueryRow(ctx, `SELECT state FROM `+p.states+` WHERE machine = $1 AND entity_key = $2`, m.Name, c.EntityKey).Scan(&state)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return "", fmt.Errorf("read the entity's state: %w", err)
		}
		judged, to, reason = m.propose(state, c.Type)
	}
	switch judged {
	case early:
		return string(Later), p.postpone(ctx, tx, c, reason)
	case stale:
		return "STALE", p.end(ctx, tx, c, "STALE", reason)
	case impossible:
		return string(Rejected), p.end(ctx, tx, c, string(Rejected), reason)
	}
	answer, err := p.handle(ctx, tx, c)
	if err != nil {
		return "", err
	}
	switch answer.Verdict {
	case Later:
		return string(Later), p.postpone(ctx, tx, c, answer.Reason)
	case Rejected:
		return string(Rejected), p.end(ctx, tx, c, string(Rejected), answer.Reason)
	}
	if judged == move {
		_, err := tx.Exec(ctx, `INSERT INTO `+p.states+` (machine, entity_key, state, updated_at) VALUES ($1, $2, $3, $4)
			ON CONFLICT (machine, entity_key) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at`, m.Name, c.EntityKey, to, p.o.Now())
		if err != nil {
			return "", fmt.Errorf("move the entity: %w", err)
		}
	}
	if err := p.end(ctx, tx, c, string(Applied), ""); err != nil {
		return "", err
	}
	return string(Applied), p.rouse(ctx, tx, c)
}

func (p *Processor) machineOf(c claim) *machine {
	if c.EntityKey == "" {
		return nil
	}
	for _, m := range p.machines {
		if m.judges(c.Partner) {
			return m
		}
	}
	return nil
}

// handle calls the handler in a savepoint: what it did is undone unless the event is
// applied.
func (p *Processor) handle(ctx context.Context, tx pgx.Tx, c claim) (answer Answer, err error) {
	if p.o.Handler == nil {
		return Answer{Verdict: Applied}, nil
	}
	point, err := tx.Begin(ctx)
	if err != nil {
		return answer, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		if thrown := recover(); thrown != nil {
			err = fmt.Errorf("the handler panicked: %v", thrown)
		}
	}()
	answer, err = p.o.Handler.Handle(ctx, point, c.Event)
	if err != nil {
		return answer, err
	}
	switch answer.Verdict {
	case Applied:
		return answer, point.Commit(ctx)
	case Later, Rejected:
		return answer, point.Rollback(ctx)
	}
	return answer, fmt.Errorf("the handler answered %q; there are APPLIED, DEFERRED and REJECTED", answer.Verdict)
}

// end marks the event as processed.
func (p *Processor) end(ctx context.Context, tx pgx.Tx, c claim, outcome, reason string) error {
	return p.write(ctx, tx, c, outcome, reason, `status = 'PROCESSED', outcome = $3, processed_at = localtimestamp, next_attempt_at = NULL, claimed_until = NULL`)
}

// postpone defers the event: that spends no attempt.
func (p *Processor) postpone(ctx context.Context, tx pgx.Tx, c claim, reason string) error {
	if p.o.Defer.Most > 0 && c.deferCount >= p.o.Defer.Most {
		return fmt.Errorf("it came too early, and was tried %d times in vain: %s", c.deferCount, reason)
	}
	return p.write(ctx, tx, c, string(Later), reason, `status = 'DEFERRED', attempts = i.attempts - 1, defer_count = i.defer_count + 1,
		deferred_since = coalesce(i.deferred_since, $6), next_attempt_at = $6::timestamptz + make_interval(secs => $7), claimed_until = NULL`,
		p.o.Now(), p.o.Defer.Every.Seconds())
}

// rouse makes the deferred events of an entity that has moved be tried again.
func (p *Processor) rouse(ctx context.Context, tx pgx.Tx, c claim) error {
	if c.EntityKey == "" {
		return nil
	}
	_, err := tx.Exec(ctx, `UPDATE `+p.table+` SET status = 'PENDING', next_attempt_at = NULL WHERE entity_key = $1 AND status = 'DEFERRED'
		AND id IN (SELECT id FROM `+p.table+` WHERE entity_key = $1 AND status = 'DEFERRED' FOR UPDATE SKIP LOCKED)`, c.EntityKey)
	if err != nil {
		return fmt.Errorf("rouse deferred events: %w", err)
	}
	return nil
}

// fail takes note of a failed attempt, or gives the event up.
func (p *Processor) fail(ctx context.Context, c claim, cause error) {
	if c.attempts > len(p.o.Schedule) {
		p.giveUp(ctx, c, cause.Error())
		return
	}
	next := p.o.Now().Add(p.o.Schedule[c.attempts-1])
	p.o.Attempted(c.Event, "FAILED")
	p.note(ctx, c, "FAILED", cause.Error(), `next_attempt_at = $6, claimed_until = NULL`, next)
}

// giveUp quarantines the event, for a person to look at.
func (p *Processor) giveUp(ctx context.Context, c claim, reason string) {
	if p.note(ctx, c, string(Quarantined), reason, `status = 'QUARANTINED', next_attempt_at = NULL, claimed_until = NULL`) {
		p.o.Log.Error().Str("event_id", c.ID).Str("partner", c.Partner).Str("partner_event_id", c.EventID).Str("reason", reason).Msg("inbound event quarantined")
		p.o.Attempted(c.Event, string(Quarantined))
		p.o.Quarantined(c.Event, reason)
	}
}

// note writes what became of an attempt outside of its transaction. What can't be
// written is found out when the claim runs out.
func (p *Processor) note(ctx context.Context, c claim, what, reason, set string, args ...any) bool {
	if err := p.write(ctx, p.o.Database, c, what, reason, set, args...); err != nil {
		p.o.Log.Error().Err(err).Str("event_id", c.ID).Msg("what became of an inbound event could not be noted; it is tried again later")
		return false
	}
	return true
}

// write changes the event's row, unless somebody else has done so since, and adds to
// its history, of which the last fifty entries are kept.
func (p *Processor) write(ctx context.Context, db execer, c claim, what, reason, set string, args ...any) error {
	entry, err := json.Marshal(map[string]any{"at": p.o.Now().UTC().Format(time.RFC3339Nano), "attempt": c.attempts, "what": what, "reason": printable([]byte(reason))})
	if err != nil {
		return fmt.Errorf("encode history: %w", err)
	}
	tag, err := db.Exec(ctx, `UPDATE `+p.table+` i SET `+set+`, last_error = CASE WHEN $3::text IN ('APPLIED', 'DEFERRED') AND $4::text = '' THEN i.last_error ELSE nullif($4::text, '') END,
			history = (SELECT coalesce(jsonb_agg(h ORDER BY n), '[]') FROM (SELECT h, n FROM jsonb_array_elements(i.history || $5::text::jsonb) WITH ORDINALITY AS t (h, n) ORDER BY n DESC LIMIT 50) latest)
		WHERE i.id = $1 AND i.attempts = $2 AND i.status IN ('PENDING', 'DEFERRED')`, append([]any{c.ID, c.attempts, what, printable([]byte(reason)), string(entry)}, args...)...)
	if err != nil {
		return fmt.Errorf("write the event's status: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return errTaken
	}
	return nil
}
