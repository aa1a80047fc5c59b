package operations

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/inbox"
)

// Inbound lists stored inbound events.
func (d *Desk) Inbound(ctx context.Context, f inbox.Filter, limit int) ([]inbox.Stored, error) {
	return d.o.Inbox.List(ctx, f, limit)
}

// InboundEvent gives one inbound event whole.
func (d *Desk) InboundEvent(ctx context.Context, id string) (inbox.Stored, error) {
	return d.o.Inbox.Get(ctx, id)
}

// InboundTallies counts inbound events.
func (d *Desk) InboundTallies(ctx context.Context, f inbox.Filter) ([]inbox.Tally, error) {
	return d.o.Inbox.Tallies(ctx, f)
}

// ReplayInbound has inbound events processed again, and gives how many.
func (d *Desk) ReplayInbound(ctx context.Context, actor string, f inbox.Filter) (int, error) {
	return d.changeInbound(ctx, intent{actor, "inbox.replay", "", f}, f, "replayed", func(f inbox.Filter) (inbox.Change, error) {
		return d.o.Inbox.Replay(ctx, f, batch)
	})
}

// DiscardInbound decides that inbound events shall have no effect, and gives how many.
func (d *Desk) DiscardInbound(ctx context.Context, actor string, f inbox.Filter, reason string) (int, error) {
	detail := struct {
		inbox.Filter
		Because string `json:"because"`
	}{f, reason}
	return d.changeInbound(ctx, intent{actor, "inbox.discard", "", detail}, f, "discarded", func(f inbox.Filter) (inbox.Change, error) {
		return d.o.Inbox.Discard(ctx, f, reason, batch)
	})
}

// changeInbound makes a change batch by batch, each row at most once.
func (d *Desk) changeInbound(ctx context.Context, i intent, f inbox.Filter, what string, change func(inbox.Filter) (inbox.Change, error)) (changed int, err error) {
	err = d.audited(ctx, i, func() (string, error) {
		for {
			done, err := change(f)
			changed += done.Count
			if err != nil || done.Count == 0 {
				return fmt.Sprintf("%d %s", changed, what), err
			}
			f.AfterSeq = done.LastSeq
		}
	})
	return changed, err
}
