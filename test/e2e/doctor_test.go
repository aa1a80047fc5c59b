package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestDoctorTellsOfProcesses: what runs, and which destination counts as down.
func TestDoctorTellsOfProcesses(t *testing.T) {
	t.Parallel()
	b := setup(t, `
retry: { inline: { attempts: 1 }, schedule: [ 1h ] }
circuit_breaker: { failure_share: 0.5, min_rounds: 5, window: 10s, pause: 1h }
`)
	b.receiver.answering(func(w http.ResponseWriter, _ request) { w.WriteHeader(http.StatusBadGateway) })
	b.run(t, "init")
	if code, out, _ := b.run(t, "doctor"); code != 0 || !strings.Contains(out, "none runs") {
		t.Errorf("doctor before the start: exit code %d\n%s", code, out)
	}
	relay := b.start(t)
	write(t, b, 20, 20)
	var code int
	var out string
	eventually(t, "doctor to tell of the circuit", func() bool {
		code, out, _ = b.run(t, "doctor")
		return strings.Contains(out, "circuit breaker is open")
	})
	if code != 2 || !strings.Contains(out, "streaming") || !strings.Contains(out, "cdc-relay dlq list --destination main") {
		t.Errorf("doctor: exit code %d\n%s", code, out)
	}
	relay.stop(t)
}
