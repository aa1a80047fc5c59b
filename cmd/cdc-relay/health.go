package main

import (
	"time"

	"github.com/cdc-relay/cdc-relay/internal/admin"
	"github.com/cdc-relay/cdc-relay/internal/replication"
	"github.com/cdc-relay/cdc-relay/internal/telemetry"
)

// readiness tells whether all that the process runs does its work.
func (s *service) readiness() admin.Readiness {
	ready := admin.Readiness{Ready: true, State: "receiving"}
	if s.relay != nil {
		ready = s.relay.readiness()
	}
	if s.inbox == nil {
		return ready
	}
	if err := s.inbox.reachable(); err != nil && ready.Ready {
		ready.Ready, ready.Reason = false, "the inbox can't store: "+err.Error()
	}
	return ready
}

// readiness tells whether the relay does its work: it streams, or stands by to.
func (r *relay) readiness() admin.Readiness {
	s := r.stream.Status()
	return admin.Readiness{
		Ready: s.State == replication.Streaming || s.State == replication.Standby,
		State: string(s.State), Reason: s.Reason,
	}
}

func (r *relay) streaming() bool { return r.stream.Status().State == replication.Streaming }

// lagBytes is the WAL from the confirmed position to the server's, as it last told.
func lagBytes(s replication.Status) int64 { return max(0, int64(s.ServerEnd)-int64(s.Confirmed)) }

// lagSeconds is the age of the oldest event in flight; 0 when there is none.
func lagSeconds(s replication.Status) float64 {
	if s.Oldest.IsZero() {
		return 0
	}
	return max(0, time.Since(s.Oldest).Seconds())
}

func (r *relay) readings() telemetry.Readings {
	of := func(read func(replication.Status) float64) func() float64 {
		return func() float64 { return read(r.stream.Status()) }
	}
	return telemetry.Readings{
		InFlightEvents: of(func(s replication.Status) float64 { return float64(s.InFlight) }),
		InFlightBytes:  of(func(s replication.Status) float64 { return float64(s.Bytes) }),
		WindowEvents:   float64(r.cfg.Window.Events),
		WindowBytes:    float64(r.cfg.Window.Bytes),
		WindowFull:     of(func(s replication.Status) float64 { return oneIf(s.Paused) }),
		LagBytes:       of(func(s replication.Status) float64 { return float64(lagBytes(s)) }),
		LagSeconds:     of(lagSeconds),
		Streaming:      of(func(s replication.Status) float64 { return oneIf(s.State == replication.Streaming) }),
		Sessions:       of(func(s replication.Status) float64 { return float64(s.Sessions) }),
		ParkedEvents:   func() float64 { return float64(r.parked.Load()) },
		ParkedLimit:    float64(r.cfg.Parking.MaxRows),
		ForgottenRows:  func() float64 { return float64(r.keeper.Forgotten()) },
		Destinations:   r.destinationReadings,
	}
}

func (r *relay) destinationReadings() []telemetry.DestinationReading {
	status := r.dispatcher.Status()
	readings := make([]telemetry.DestinationReading, len(status))
	for i, d := range status {
		readings[i] = telemetry.DestinationReading{
			Name: d.Name, Circuit: d.Circuit, Paused: d.Paused, Held: !d.HeldUntil.IsZero(), Queued: d.Queued, Busy: d.Busy, Limit: d.Limit,
		}
	}
	return readings
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
