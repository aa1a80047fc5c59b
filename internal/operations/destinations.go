package operations

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// ErrUnknownDestination says that the config has no destination of the name.
var ErrUnknownDestination = errors.New("the config has no such destination")

// Pause lets nothing be sent to a destination until it is resumed. Its events are parked.
func (d *Desk) Pause(ctx context.Context, actor, name, reason string) error {
	return d.changeDestination(ctx, intent{actor, "destination.pause", name, map[string]string{"because": reason}}, "paused", func() error {
		return d.o.Letters.Pause(ctx, name, reason)
	})
}

// Resume lets a paused destination have its events again, first those that were parked.
func (d *Desk) Resume(ctx context.Context, actor, name string) error {
	return d.changeDestination(ctx, intent{actor, "destination.resume", name, struct{}{}}, "resumed", func() error {
		return d.o.Letters.Resume(ctx, name)
	})
}

func (d *Desk) changeDestination(ctx context.Context, i intent, outcome string, do func() error) error {
	if !slices.Contains(d.o.Configured(), i.subject) {
		return fmt.Errorf("%w: %q", ErrUnknownDestination, i.subject)
	}
	return d.audited(ctx, i, func() (string, error) { return outcome, do() })
}
