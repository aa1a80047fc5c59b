package main

import (
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

func (r *relay) readings() telemetry.Readings {
	return telemetry.Readings{
		InFlightEvents: func() float64 { return float64(r.stream.Status().InFlight) },
		InFlightBytes:  func() float64 { return float64(r.stream.Status().Bytes) },
		LagBytes: func() float64 {
			s := r.stream.Status()
			return max(0, float64(s.ServerEnd)-float64(s.Confirmed))
		},
		Streaming: func() float64 {
			if r.streaming() {
				return 1
			}
			return 0
		},
		ParkedEvents:  func() float64 { return float64(r.parked.Load()) },
		ForgottenRows: func() float64 { return float64(r.keeper.Forgotten()) },
	}
}
