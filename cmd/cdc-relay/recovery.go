package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/internal/alert"
	"github.com/cdc-relay/cdc-relay/internal/backlog"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/replication"
	"github.com/cdc-relay/cdc-relay/internal/retention"
)

// Here are the parts of a running relay that concern its slot's beginning and
// end, and what is kept for how long.

func (c *Config) backlog(pool *pgxpool.Pool) *backlog.Backlog {
	return backlog.New(backlog.Options{
		Database: pool, Schema: c.Database.Schema, Slot: c.Slot.Name, Outbox: c.outboxName(), Marked: c.Outbox.MarkProcessed,
		Columns: c.outboxColumns(),
	})
}

// setUp creates what is missing in Postgres and refuses to start on what is wrong.
// A slot that was there at an earlier start and is lost is made anew, or ends it.
func setUp(ctx context.Context, cfg Config, known *backlog.Backlog, log zerolog.Logger) error {
	return cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		if err := provision.CheckServer(ctx, conn); err != nil {
			return err
		}
		return provisionSlot(ctx, conn, cfg, known, func(s provision.Step) {
			log.Info().Str("object", s.Object).Msg(s.Done)
		}, func(reason string) {
			log.Error().Str("slot", cfg.Slot.Name).Str("reason", reason).
				Msg("the replication slot was lost; making it anew, unsettled rows are sent from the table")
		})
	})
}

// provisionSlot is provision.Init with an eye for a slot that was lost.
func provisionSlot(ctx context.Context, conn *pgx.Conn, cfg Config, known *backlog.Backlog, report func(provision.Step), lost func(reason string)) error {
	if err := backlog.Lock(ctx, conn); err != nil {
		return err
	}
	options, err := cfg.creating(known)
	if err != nil {
		return err
	}
	version, err := provision.TablesVersion(ctx, conn, cfg.Database.Schema)
	if err != nil {
		return err
	}
	const recoveryVersion = 3 // of the tables, from which on the slot's state is kept
	if version >= recoveryVersion {
		_, unpublished := provision.CheckOutbox(ctx, conn, options)
		if errors.Is(unpublished, provision.ErrUnpublished) {
			if err := known.Unpublished(ctx); err != nil {
				return err
			}
		}
		state, err := known.Known(ctx)
		if err != nil {
			return err
		}
		if state.Had && errors.Is(unpublished, catalog.ErrNoTable) {
			return unpublished // it was renamed or dropped: a new one would hide that
		}
		reason, err := whyLost(ctx, conn, state, options)
		if err != nil {
			return err
		}
		if state.Half {
			// Its snapshot is gone, so nobody knows what its stream doesn't hold.
			if err := provision.DropSlot(ctx, conn, options); err != nil {
				return err
			}
		} else if state.Had && reason != "" {
			if cfg.Slot.OnLost == "fail" {
				return slotLostError(cfg, reason)
			}
			lost(reason)
			if err := dropSlot(ctx, conn, known, options); err != nil {
				return err
			}
		}
	}
	return provision.Init(ctx, conn, options, report)
}

// whyLost tells why the slot is of no use; "" when it is.
func whyLost(ctx context.Context, conn *pgx.Conn, known backlog.Known, options provision.Options) (string, error) {
	reason, err := provision.SlotLost(ctx, conn, options)
	switch {
	case err != nil || reason != "":
	case known.Half:
		reason = halfReason
	case known.Unpublished:
		reason = unpublishedReason
	}
	return reason, err
}

const halfReason = "the making of it was broken off, so nobody knows what its stream doesn't hold"

const unpublishedReason = "its stream may lack rows, because for a time the publication did not carry the outbox"

// creating are the options by which a missing slot is made together with its backlog.
func (c *Config) creating(known *backlog.Backlog) (provision.Options, error) {
	options := c.provisioning()
	replication, err := c.replication()
	if err != nil {
		return options, err
	}
	options.CreateSlot = func(ctx context.Context, failover bool) error { return known.Create(ctx, replication, failover) }
	return options, nil
}

func slotLostError(cfg Config, reason string) error {
	return mend.With(fmt.Errorf("replication slot %q is lost: %s", cfg.Slot.Name, reason),
		"set slot.on_lost to recover: the slot is made anew and the rows that are not settled are sent from the table")
}

// dropSlot drops a lost slot; one from which can be streamed is left. What was
// known of it is forgotten first: should this end in between, the next start takes
// the backlog of the slot that it makes.
func dropSlot(ctx context.Context, conn *pgx.Conn, known *backlog.Backlog, options provision.Options) error {
	state, err := known.Known(ctx)
	if err != nil {
		return err
	}
	reason, err := whyLost(ctx, conn, state, options)
	if err != nil || reason == "" {
		return err
	}
	if state.Unpublished || state.Half {
		// It can be streamed from, and another relay may have made it anew and do so by
		// now: who streams can't have a slot of no use.
		if used, err := provision.SlotActive(ctx, conn, options); err != nil || used {
			return err
		}
	}
	if err := known.Forget(ctx); err != nil {
		return err
	}
	return provision.DropSlot(ctx, conn, options)
}

// checkOutbox is what the stream asks on each connection. What it finds wrong with
// the publication is noted first: once that is mended, the slot is of no use.
func (r *relay) checkOutbox(ctx context.Context) (oid uint32, err error) {
	oid, err = provision.CheckOutbox(ctx, r.pool, r.cfg.provisioning())
	if errors.Is(err, provision.ErrUnpublished) {
		if err := r.backlog.Unpublished(ctx); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("%w (try: %s)", err, mend.Of(err))
	}
	if err != nil {
		return 0, err
	}
	known, err := r.backlog.Known(ctx)
	if err != nil {
		return 0, err
	}
	if known.Half {
		if making, err := r.backlog.BeingMade(ctx); err != nil || making {
			return 0, errors.Join(backlog.ErrMaking, err)
		}
		// Asked once more: it may have been made between the two questions.
		if known, err = r.backlog.Known(ctx); err != nil {
			return 0, err
		}
	}
	switch {
	case known.Half:
		return 0, fmt.Errorf("%w: %s", replication.ErrSlotLost, halfReason)
	case known.Unpublished:
		return 0, fmt.Errorf("%w: %s", replication.ErrSlotLost, unpublishedReason)
	}
	return oid, nil
}

// watchOutbox looks now and then whether the stream still carries the outbox: that
// it was renamed, or taken out of the publication, the stream doesn't tell.
func (r *relay) watchOutbox(ctx context.Context) error {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if _, err := r.checkOutbox(ctx); errors.Is(err, provision.ErrUnpublished) || errors.Is(err, replication.ErrSlotLost) {
			r.stream.Yield(err.Error())
		}
	}
}

// recovery is what the stream calls when its slot turns out to be lost; nil when
// that shall end it.
func (r *relay) recovery() func(context.Context, error) error {
	if r.cfg.Slot.OnLost == "fail" {
		return nil
	}
	return func(ctx context.Context, reason error) error {
		r.log.Error().Err(reason).Str("slot", r.cfg.Slot.Name).
			Msg("the replication slot was lost; making it anew, unsettled rows are sent from the table")
		return r.cfg.withConnection(ctx, func(conn *pgx.Conn) error {
			if err := backlog.Lock(ctx, conn); err != nil {
				return err
			}
			options, err := r.cfg.creating(r.backlog)
			if err != nil {
				return err
			}
			if err := dropSlot(ctx, conn, r.backlog, options); err != nil {
				return err
			}
			return provision.Init(ctx, conn, options, func(provision.Step) {})
		})
	}
}

// rereadFrom gives what reads a held slot's WAL by the outbox's present identity.
func (r *relay) rereadFrom(config *pgconn.Config) func(context.Context, string, outbox.LSN, chan<- *outbox.Event) error {
	return func(ctx context.Context, slot string, until outbox.LSN, events chan<- *outbox.Event) error {
		table := r.cfg.decoderTable()
		var err error
		if table.OID, err = r.checkOutbox(ctx); err != nil {
			close(events)
			return err
		}
		return replication.Reread(ctx, replication.RereadOptions{
			Config: config, Slot: slot, Publication: r.cfg.Slot.Publication, Table: table, Until: until, Events: events,
		})
	}
}

// released tells people that a checkpoint's WAL is held no more.
func (r *relay) released(c saved.Checkpoint, reason string) {
	r.alerts.Tell(alert.Notice{Kind: alert.Released, Subject: r.cfg.Slot.Name, EventID: "checkpoint " + c.Name, Reason: reason})
}

// watchBacklog forgets the backlog once the slot has confirmed past it.
func (r *relay) watchBacklog(ctx context.Context) error {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if r.backlog.Rows() == 0 || r.stream.Status().Confirmed < r.backlog.Until() {
			continue
		}
		rows := r.backlog.Rows()
		if err := r.backlog.Finish(ctx); err != nil {
			r.log.Error().Err(err).Msg("the settled backlog could not be cleared; trying again")
			continue
		}
		r.log.Info().Int64("rows", rows).Msg("the rows from before the slot are settled")
	}
}

func (c *Config) keeper(pool *pgxpool.Pool, log zerolog.Logger) *retention.Keeper {
	return retention.New(retention.Options{
		Database: pool, Schema: c.Database.Schema, Slot: c.Slot.Name, Outbox: c.outboxName(),
		IDColumn: c.Outbox.Columns.ID, CreatedAt: c.Outbox.Columns.CreatedAt, ProcessedAt: c.Outbox.Columns.ProcessedAt,
		Marked: c.Outbox.MarkProcessed, DeliveryLog: c.DeliveryLog.Retention, OutboxRows: c.Outbox.Retention,
		Every: time.Minute, Forgotten: c.Outbox.ForgottenAge, Log: log,
	})
}
