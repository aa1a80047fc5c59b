package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// TestAlerts: promtool accepts the rules, and each fires in its test and not before.
func TestAlerts(t *testing.T) {
	t.Parallel()
	tool(t, "prometheus", "promtool", "check", "rules", "--lint-fatal", "alerts.yaml")
	tool(t, "prometheus", "promtool", "test", "rules", "alerts_test.yaml")
	var rules struct {
		Groups []struct{ Rules []struct{ Alert string } }
	}
	var tests struct {
		Tests []struct {
			Rules []struct {
				Alert    string `yaml:"alertname"`
				Expected []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(read(t, "prometheus", "alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(read(t, "prometheus", "alerts_test.yaml"), &tests); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		for _, r := range test.Rules {
			if len(r.Expected) > 0 {
				fires[r.Alert] = true
			} else {
				silent[r.Alert] = true
			}
		}
	}
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			if !fires[r.Alert] || !silent[r.Alert] {
				t.Errorf("no test shows when %s fires and when it doesn't", r.Alert)
			}
		}
	}
}

// TestDashboard: Grafana's own types take all of it, and Prometheus each expression.
func TestDashboard(t *testing.T) {
	t.Parallel()
	text := read(t, "grafana", "cdc-relay.json")
	var board dashboard.Dashboard
	for _, err := range []error{board.UnmarshalJSONStrict(text), board.Validate()} {
		if err != nil && err.Error() != "" { // an empty list of errors is one too
			t.Fatal(err)
		}
	}
	var plain struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	rules.WriteString("groups:\n  - name: dashboard\n    rules:\n")
	var ids []int
	expressions := 0
	for _, panel := range plain.Panels {
		if slices.Contains(ids, panel.ID) {
			t.Errorf("panel %q has an id that another has too", panel.Title)
		}
		ids = append(ids, panel.ID)
		for _, target := range panel.Targets {
			expressions++
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			fmt.Fprintf(&rules, "      - { record: 'dashboard:expression%d', expr: %q }\n", expressions, expr)
		}
	}
	if expressions < len(plain.Panels)/2 {
		t.Fatalf("%d expressions in %d panels", expressions, len(plain.Panels))
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	tool(t, "grafana", "promtool", "check", "rules", file)
}
