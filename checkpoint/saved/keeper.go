package saved

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// KeeperOptions say what is saved and for how long it is kept.
type KeeperOptions struct {
	Store     *Store
	Watermark func() (lsn outbox.LSN, streaming bool) // saved while streaming
	Every     time.Duration
	Retention time.Duration // of checkpoints without a name
	MaxBytes  int64         // of WAL that a held slot may keep
	MaxAge    time.Duration // of a held slot
	// Released is told of each checkpoint that had to let go of its WAL.
	Released func(c Checkpoint, reason string)
	Log      zerolog.Logger
}

// Keeper saves the watermark now and then, forgets what is old, and lets go of held
// WAL before it fills a disk. Run is its only goroutine.
type Keeper struct{ o KeeperOptions }

// NewKeeper returns a Keeper.
func NewKeeper(o KeeperOptions) *Keeper { return &Keeper{o} }

// Run works until ctx ends. What the database refuses is logged and tried again.
func (k *Keeper) Run(ctx context.Context) error {
	// Soon after the stream has begun, and then each so often.
	look := time.NewTicker(min(k.o.Every, time.Second))
	defer look.Stop()
	var last time.Time
	for {
		if watermark, streaming := k.o.Watermark(); streaming && watermark > 0 && time.Since(last) >= k.o.Every {
			if err := k.turn(ctx, watermark); err != nil && ctx.Err() == nil {
				k.o.Log.Error().Err(err).Msg("checkpoints can't be kept at present; trying again")
			} else {
				last = time.Now()
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *Keeper) turn(ctx context.Context, watermark outbox.LSN) error {
	if err := k.o.Store.Auto(ctx, watermark); err != nil {
		return err
	}
	if err := k.o.Store.Trim(ctx, k.o.Retention); err != nil {
		return err
	}
	return k.limit(ctx)
}

// limit lets go of held WAL that is past a limit, and warns of what is near it.
func (k *Keeper) limit(ctx context.Context) error {
	held, err := k.o.Store.List(ctx, Which{Held: true})
	if err != nil {
		return err
	}
	for _, c := range held {
		age := time.Since(c.SavedAt)
		log := k.o.Log.Warn().Str("checkpoint", c.Name).Str("slot", c.HeldSlot).Int64("held_bytes", c.HeldBytes).Dur("age", age)
		switch {
		case c.HeldBytes > k.o.MaxBytes:
			err = k.letGo(ctx, c, "it held more WAL than checkpoints.hold.max_bytes")
		case age > k.o.MaxAge:
			err = k.letGo(ctx, c, "it was older than checkpoints.hold.max_age")
		case c.Lost:
			err = k.letGo(ctx, c, "its slot is gone, or the server has removed the WAL")
		case c.HeldBytes > k.o.MaxBytes/5*4 || age > k.o.MaxAge/5*4:
			log.Msg("a checkpoint's held WAL is near its limit and will be let go")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) letGo(ctx context.Context, c Checkpoint, reason string) error {
	if err := k.o.Store.LetGo(ctx, c); err != nil {
		return err
	}
	k.o.Log.Error().Str("checkpoint", c.Name).Str("slot", c.HeldSlot).Int64("held_bytes", c.HeldBytes).Str("reason", reason).
		Msg("a checkpoint's held WAL was let go; its LSN stays")
	k.o.Released(c, reason)
	return nil
}
