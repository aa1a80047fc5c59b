package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSystemdUnit: systemd accepts the unit, and rates its exposure at 1.5 or better of
// at most 10.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	unit := filepath.Join(t.TempDir(), "cdc-relay.service")
	text := strings.ReplaceAll(string(read(t, "systemd", "cdc-relay.service")), "/usr/bin/cdc-relay", path) // what it starts must be there
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "systemd", "systemd-analyze", "verify", "--man=no", unit)
	tool(t, "systemd", "systemd-analyze", "security", "--offline=yes", "--threshold=15", unit)
}
