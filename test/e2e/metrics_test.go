package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// TestMetricsThatAreWatched: every metric that an alert or the dashboard asks for is
// there, with the labels that it is asked by, in a process that has done some of
// everything.
func TestMetricsThatAreWatched(t *testing.T) {
	t.Parallel()
	inbox := freeAddress(t)
	a := setupAdmin(t, fmt.Sprintf("inbox: { listen: %q, partners: [ { name: shop, preset: standard, secrets: [ %s ] } ], processing: { handler: { url: %q, secrets: [ %s ] } } }\n", inbox, secret, "http://"+freeAddress(t), secret))
	a.receiver.answering(func(w http.ResponseWriter, r request) {
		if r.header.Get("Cdc-Relay-Event-Type") == "order.gone" {
			w.WriteHeader(http.StatusGone)
		}
	})
	inbound := &inboxBundle{bundle: a.bundle, address: inbox}
	inbound.deliver(t, "evt-1", `{}`) // its handler is away, so it stays
	a.run(t, "checkpoint", "save", "before")
	a.insert(t, "order.paid", `{}`)
	a.insert(t, "order.gone", `{}`)
	a.confirmed(t)
	if code, _, errs := a.run(t, "replay", "--from-checkpoint", "before", "--event-type", "order.paid"); code != 0 {
		t.Fatalf("replay: exit code %d\n%s", code, errs)
	}
	eventually(t, "the replay's end", func() bool {
		return database.One[int](t, a.Database, `SELECT count(*)::int FROM cdc_relay.replays WHERE state = 'DONE'`) == 1
	})
	wanted := watchedMetrics(t)
	if len(wanted) < 30 {
		t.Fatalf("alerts and dashboard ask for %d metrics", len(wanted))
	}
	var lacking []string
	defer func() {
		if t.Failed() {
			t.Logf("lacking: %s", strings.Join(lacking, ", "))
		}
	}()
	eventually(t, "all metrics", func() bool {
		there := a.metrics(t)
		lacking = nil
		for name, labels := range wanted {
			for _, label := range append(labels, "") {
				if !there[name][label] {
					lacking = append(lacking, name+" "+label)
				}
			}
		}
		return len(lacking) == 0
	})
}

// metrics gives the labels of each metric of a scrape; each has the label "" too.
func (a *administered) metrics(t *testing.T) map[string]map[string]bool {
	t.Helper()
	_, text := a.ask(t, http.MethodGet, "/metrics", operatorToken, "")
	found := map[string]map[string]bool{}
	sample := regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? `)
	label := regexp.MustCompile(`([a-z_]+)="`)
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		parts := sample.FindStringSubmatch(lines.Text())
		if parts == nil {
			continue
		}
		if found[parts[1]] == nil {
			found[parts[1]] = map[string]bool{"": true}
		}
		for _, l := range label.FindAllStringSubmatch(parts[2], -1) {
			found[parts[1]][l[1]] = true
		}
	}
	return found
}

// watchedMetrics gives what alerts and dashboard ask for: metrics, and the labels
// that they are chosen by, without those that Prometheus adds.
func watchedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	wanted := map[string][]string{}
	metric := regexp.MustCompile(`\b((?:cdc_relay|process|go)_[a-z_]+)\b(?:\{([^}]*)\})?`)
	label := regexp.MustCompile(`([a-z_]+)=`)
	for _, path := range []string{"../../deploy/prometheus/alerts.yaml", "../../deploy/grafana/cdc-relay.json"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, `expr`) {
				continue
			}
			for _, m := range metric.FindAllStringSubmatch(line, -1) {
				wanted[m[1]] = append(wanted[m[1]], "")
				for _, l := range label.FindAllStringSubmatch(m[2], -1) {
					if l[1] != "job" {
						wanted[m[1]] = append(wanted[m[1]], l[1])
					}
				}
			}
		}
	}
	return wanted
}
