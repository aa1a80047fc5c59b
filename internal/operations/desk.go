// Package operations is what operators see and do: one set of functions behind the
// command line, the JSON API and the admin page.
//
//	command line ─┐
//	JSON API ─────┼─► Desk ─► dead letters, replays, checkpoints, inbox, destinations
//	admin page ───┘     └───► audit: each action before it is done, and what came of it
//	relay ─► Beat ─► instances, samples ─► Overview
//
// Everything goes through the database, so that any process shows the same, and an
// action asked for at one is done by whichever streams. A Desk starts no goroutine and
// is safe for concurrent use.
package operations

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/deadletter"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/replay"
)

// Options are what a Desk is made of.
type Options struct {
	Pool        *pgxpool.Pool
	Provision   provision.Options // names what the relay has in Postgres
	Relays      bool              // there are destinations, and not the inbox alone
	Letters     *deadletter.Store
	Replays     *replay.Store
	Checkpoints *saved.Store
	Inbox       *inbox.Manager
	TakesIn     bool            // webhooks are taken in
	Configured  func() []string // names of the destinations
	NewID       func() string
	Now         func() time.Time
}

// Desk is where operators work.
type Desk struct {
	o                                              Options
	audits, instances, samples, deliveries, pauses string // quoted names
}

// NewDesk returns a Desk.
func NewDesk(o Options) *Desk {
	name := func(table string) string { return pgx.Identifier{o.Provision.Schema, table}.Sanitize() }
	return &Desk{
		o: o, audits: name("audit"), instances: name("instances"), samples: name("samples"),
		deliveries: name("deliveries"), pauses: name("paused_destinations"),
	}
}

// HasInbox tells whether there is an inbox to look at.
func (d *Desk) HasInbox() bool { return d.o.TakesIn }

// Relays tells whether there is a relay to look at.
func (d *Desk) Relays() bool { return d.o.Relays }

// Configured names the destinations of the config.
func (d *Desk) Configured() []string { return d.o.Configured() }

// batch is how many rows one transaction changes: the settling waits for it.
const batch = 1000

// Overview is how everything stands.
type Overview struct {
	provision.Status
	Held      []saved.Checkpoint   `json:"held_checkpoints,omitempty"`
	Inbox     map[inbox.Status]int `json:"inbox,omitempty"` // rows that are not done with
	Instances []Instance           `json:"instances"`
}

// Streamer gives the instance that streams the slot, if it is known.
func (o *Overview) Streamer() *Instance {
	for i := range o.Instances {
		if o.Instances[i].State == "streaming" {
			return &o.Instances[i]
		}
	}
	return nil
}

// LiveOf gives a destination as the instance that streams sees it, if that is known.
func (o *Overview) LiveOf(name string) *LiveDestination {
	streamer := o.Streamer()
	if streamer == nil {
		return nil
	}
	for i := range streamer.Live.Destinations {
		if streamer.Live.Destinations[i].Name == name {
			return &streamer.Live.Destinations[i]
		}
	}
	return nil
}

// Overview tells how everything stands. With exact it counts the delivery log and the
// rows without processed_at, which takes its time where these are long; without, the
// delivered of the last hour are those of the samples.
func (d *Desk) Overview(ctx context.Context, exact bool) (Overview, error) {
	var o Overview
	var err error
	if o.Inbox, err = d.openInbound(ctx); err != nil {
		return o, err
	}
	if o.Instances, err = d.Instances(ctx); err != nil || !d.o.Relays {
		return o, err
	}
	read := provision.ReadQuickStatus
	if exact {
		read = provision.ReadStatus
	}
	if o.Status, err = read(ctx, d.o.Pool, d.o.Provision); err != nil {
		return o, err
	}
	if o.Held, err = d.o.Checkpoints.List(ctx, saved.Which{Held: true}); err != nil {
		return o, err
	}
	return o, d.completeDestinations(ctx, &o)
}

// completeDestinations names the configured destinations of which nothing is recorded
// yet, and those that are paused.
func (d *Desk) completeDestinations(ctx context.Context, o *Overview) error {
	for _, name := range d.o.Configured() {
		if !slices.ContainsFunc(o.Destinations, func(s provision.DestinationStatus) bool { return s.Name == name }) {
			o.Destinations = append(o.Destinations, provision.DestinationStatus{Name: name})
		}
	}
	rows, err := d.o.Pool.Query(ctx, `SELECT name, reason, paused_at FROM `+d.pauses)
	if err != nil {
		return fmt.Errorf("read paused destinations: %w", err)
	}
	var name string
	var pause provision.Pause
	_, err = pgx.ForEachRow(rows, []any{&name, &pause.Reason, &pause.Since}, func() error {
		for i := range o.Destinations {
			if o.Destinations[i].Name == name {
				o.Destinations[i].Paused = &provision.Pause{Reason: pause.Reason, Since: pause.Since}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read paused destinations: %w", err)
	}
	return nil
}

// openInbound counts the inbound events that are not done with.
func (d *Desk) openInbound(ctx context.Context) (map[inbox.Status]int, error) {
	if !d.o.TakesIn {
		return nil, nil
	}
	open := []inbox.Status{inbox.Pending, inbox.Deferred, inbox.Quarantined}
	tallies, err := d.o.Inbox.Tallies(ctx, inbox.Filter{Statuses: open})
	if err != nil {
		return nil, err
	}
	counts := make(map[inbox.Status]int)
	for _, status := range open {
		counts[status] = 0
	}
	for _, t := range tallies {
		counts[t.Status] += t.Count
	}
	return counts, nil
}
