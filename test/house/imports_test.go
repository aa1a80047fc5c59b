// Package house keeps the arrows between the packages: who may import whom.
package house

import (
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cdc-relay/cdc-relay/"

// arrows says which of our packages each of our packages may import. cmd imports
// all and tests import what they test.
var arrows = map[string][]string{
	"internal/outbox":      {},
	"internal/signature":   {},
	"internal/mend":        {},
	"internal/catalog":     {},
	"sql":                  {},
	"decoder":              {"internal/outbox"},
	"checkpoint":           {"internal/outbox"},
	"internal/deadletter":  {"internal/outbox"},
	"internal/alert":       {"internal/signature"},
	"dispatcher":           {"internal/outbox", "internal/signature", "internal/deadletter"},
	"internal/replication": {"internal/outbox", "decoder", "checkpoint"},
	"internal/provision":   {"internal/catalog", "internal/mend", "sql"},
	"internal/outboxrow":   {"internal/outbox", "internal/catalog"},
	"internal/backlog":     {"internal/outbox", "internal/catalog", "internal/outboxrow"},
	"checkpoint/saved":     {"internal/outbox"},
	"internal/replay":      {"internal/outbox", "internal/catalog", "internal/outboxrow", "checkpoint/saved"},
	"internal/retention":   {"internal/catalog"},
	"internal/operations":  {"internal/deadletter", "internal/provision", "internal/replay", "checkpoint/saved", "inbox"},
	"internal/admin":       {"internal/operations", "internal/deadletter", "internal/provision", "internal/replay", "checkpoint/saved", "inbox", "internal/mend"},
	"inbox":                {"internal/signature", "sql"},
	"inbox/example":        {"inbox"},
	"internal/telemetry":   {"internal/outbox"},
	"internal/throwaway":   {"internal/mend"},
	"internal/demo":        {},
}

func TestImports(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := decoder.Decode(&p); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "test/") {
			continue
		}
		allowed, known := arrows[name]
		if !known {
			t.Errorf("package %s has no place in the house: add it to arrows", name)
			continue
		}
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, module); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s must not import %s", name, ours)
			}
		}
	}
}
