package operations

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

// Letters lists dead letters.
func (d *Desk) Letters(ctx context.Context, f deadletter.Filter, limit int) ([]deadletter.Entry, error) {
	return d.o.Letters.List(ctx, f, limit)
}

// Letter gives one dead letter whole.
func (d *Desk) Letter(ctx context.Context, id int64) (deadletter.Entry, error) {
	return d.o.Letters.Get(ctx, id)
}

// LetterTallies counts dead letters.
func (d *Desk) LetterTallies(ctx context.Context, f deadletter.Filter) ([]deadletter.Tally, error) {
	return d.o.Letters.Tallies(ctx, f)
}

// LetterReplay is how far the sending again of dead letters has come.
type LetterReplay struct {
	ID          string `json:"replay_id"`
	Total       int    `json:"total"` // that fitted when it began
	Handed      int    `json:"handed_on"`
	Interrupted bool   `json:"interrupted,omitempty"`
	deadletter.Progress
}

// Pace says how ReplayLetters goes about it.
type Pace struct {
	Wait bool               // until everything has been sent, and with no more than ahead scheduled
	Tell func(LetterReplay) // called now and then; may be nil
}

// ahead is the most that are scheduled and not sent, when somebody waits for it: what
// the person breaks off should not go on for long.
const ahead = 4000

// ReplayLetters schedules dead letters to be sent again, a batch in a transaction, in
// the order of their commits. When ctx ends it gives how far it came with ctx's error;
// what is scheduled by then is sent all the same.
func (d *Desk) ReplayLetters(ctx context.Context, actor string, f deadletter.Filter, pace Pace) (LetterReplay, error) {
	r := LetterReplay{ID: d.o.NewID()}
	err := d.audited(ctx, intent{actor, "dead-letters.replay", r.ID, f}, func() (string, error) {
		err := d.replayLetters(ctx, f, pace, &r)
		return fmt.Sprintf("%d scheduled", r.Handed), err
	})
	return r, err
}

func (d *Desk) replayLetters(ctx context.Context, f deadletter.Filter, pace Pace, r *LetterReplay) error {
	tallies, err := d.o.Letters.Tallies(ctx, f)
	if err != nil {
		return err
	}
	for _, t := range tallies {
		r.Total += t.Count
	}
	for more := true; ; {
		if more && !(pace.Wait && r.Scheduled >= ahead) {
			n, err := d.o.Letters.Replay(ctx, f, r.ID, batch)
			if err != nil {
				return err
			}
			r.Handed += n
			more = n > 0
		}
		if r.Progress, err = d.o.Letters.Progress(ctx, r.ID); err != nil {
			return err
		}
		if pace.Tell != nil {
			pace.Tell(*r)
		}
		switch {
		case !more && (!pace.Wait || r.Scheduled == 0):
			return nil
		case more && !(pace.Wait && r.Scheduled >= ahead):
			continue
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			r.Interrupted = true
			return ctx.Err()
		}
	}
}

// DiscardLetters decides that dead letters shall not be sent. It gives how many it came to.
func (d *Desk) DiscardLetters(ctx context.Context, actor string, f deadletter.Filter, reason string) (discarded int, err error) {
	detail := struct {
		deadletter.Filter
		Because string `json:"because"`
	}{f, reason}
	err = d.audited(ctx, intent{actor, "dead-letters.discard", "", detail}, func() (string, error) {
		discarded, err = d.discardLetters(ctx, f, reason)
		return fmt.Sprintf("%d discarded", discarded), err
	})
	return discarded, err
}

func (d *Desk) discardLetters(ctx context.Context, f deadletter.Filter, reason string) (discarded int, err error) {
	for {
		n, err := d.o.Letters.Discard(ctx, f, reason, batch)
		discarded += n
		if err != nil || n == 0 {
			return discarded, err
		}
	}
}

// Streamed tells whether a relay streams the slot; also when that can't be found out.
func (d *Desk) Streamed(ctx context.Context) bool {
	active, err := provision.SlotActive(ctx, d.o.Pool, d.o.Provision)
	return err != nil || active
}
