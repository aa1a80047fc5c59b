package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// leastPrivileged is a bundle whose config is used by a role that has been granted
// what `init --grant-to` grants, and owns nothing.
type leastPrivileged struct {
	*inboxBundle
	role   string
	grants []string // statements
}

func setupRole(t *testing.T) *leastPrivileged {
	t.Helper()
	b := inboxSetup(t, effectsHandler, "")
	r := &leastPrivileged{inboxBundle: b, role: "r_" + b.Name}
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, []byte(b.destination("main", b.receiver.URL)+quickRetries+"outbox: { retention: 1h }\n")...)
	if err := os.WriteFile(b.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	b.effects(t)
	b.Exec(t, "CREATE ROLE "+r.role+" LOGIN")
	t.Cleanup(func() {
		b.Conn.Exec(context.Background(), "DROP OWNED BY "+r.role)
		b.Conn.Exec(context.Background(), "DROP ROLE "+r.role)
	})
	b.Exec(t, "REVOKE ALL ON SCHEMA public FROM PUBLIC") // what everybody may by default is no grant of ours
	b.Exec(t, "GRANT INSERT ON effects TO "+r.role+"; GRANT USAGE ON SEQUENCE effects_n_seq TO "+r.role)
	if code, out, errs := b.run(t, "init", "--grant-to", r.role); code != 0 || !strings.Contains(out, "granted") {
		t.Fatalf("init --grant-to: exit code %d\n%s%s", code, out, errs)
	}
	_, printed, _ := b.run(t, "init", "--print-sql", "--grant-to", r.role)
	r.grants = regexp.MustCompile(`(?m)^GRANT .* TO "`+r.role+`"`).FindAllString(printed, -1)

	u, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(r.role)
	text = []byte(strings.ReplaceAll(string(text), b.URL, u.String()))
	if err := os.WriteFile(b.config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestG9LeastPrivilegedRole: every command works for a role with exactly the grants
// that init gives.
func TestG9LeastPrivilegedRole(t *testing.T) {
	t.Parallel()
	b := setupRole(t)
	refuse := newToggle(1)
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		if r.header.Get("Cdc-Relay-Event-Type") == "order.gone" && refuse.load() > 0 {
			w.WriteHeader(http.StatusGone)
		}
	})
	must := func(args ...string) string {
		t.Helper()
		code, out, errs := b.run(t, args...)
		if code != 0 {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errs)
		}
		return out
	}
	must("init")
	relay := b.startInbox(t)
	must("checkpoint", "save", "before", "--hold")
	for range 3 {
		b.insert(t, "order.gone", `{}`)
		b.insert(t, "order.paid", `{}`)
	}
	b.confirmed(t)
	b.deliver(t, "evt-1", `{"type":"x","order":"1"}`)
	b.deliver(t, "evt-2", `{"type":"x","order":"2","fail":true}`)
	b.becomes(t, "evt-1", "PROCESSED", "APPLIED")
	letters := func(state string) int {
		return database.One[int](t, b.Database, `SELECT count(*)::int FROM cdc_relay.dead_letters WHERE state = '`+state+`'`)
	}
	eventually(t, "three dead letters", func() bool { return letters("DEAD") == 3 })

	if out := must("status"); !strings.Contains(out, "streaming") {
		t.Errorf("status says:\n%s", out)
	}
	must("doctor")
	must("checkpoint", "list", "--all")
	must("dlq", "list")
	first := database.One[string](t, b.Database, `SELECT min(id)::text FROM cdc_relay.dead_letters`)
	must("dlq", "show", first)
	must("dlq", "discard", first, "--reason", "a test")
	refuse.store(0)
	must("dlq", "replay", "--all")
	eventually(t, "the dead to be delivered", func() bool { return letters("DELIVERED") == 2 })
	must("destination", "pause", "main", "--reason", "a test")
	must("destination", "resume", "main")
	must("replay", "--from-checkpoint", "before", "--dry-run")
	must("replay", "--from-checkpoint", "before")
	must("replay", "list")
	must("checkpoint", "drop", "before")
	must("inbox", "list")
	id := database.One[string](t, b.Database, `SELECT id::text FROM webhook_inbox WHERE partner_event_id = 'evt-2'`)
	must("inbox", "show", id)
	must("inbox", "replay", "--partner", "shop")
	must("inbox", "discard", id, "--reason", "a test")
	relay.stop(t)
	b.dropSlot(t)
	b.insert(t, "order.paid", `{}`) // known to the table alone
	sent := len(b.receiver.accepted())
	again := b.startInbox(t)
	eventually(t, "the row from before the new slot", func() bool { return len(b.receiver.accepted()) > sent })
	b.confirmed(t)
	again.stop(t)
	relay.log.Write([]byte(again.log.String()))
	if log := relay.log.String(); strings.Contains(log, "permission denied") {
		t.Error("the relay may not do what it wants to; its log:\n" + log)
	}
}

// TestG9MissingGrant: without any one of the grants, the program doesn't start, doctor
// fails, and both name the statement that mends it; a command that reads works,
// or fails with a mend.
func TestG9MissingGrant(t *testing.T) {
	t.Parallel()
	b := setupRole(t)
	if len(b.grants) < 15 {
		t.Fatalf("%d grants: %v", len(b.grants), b.grants)
	}
	statement := regexp.MustCompile(`^GRANT ([A-Z, ]+?)((?: \("[^)]*"\))?) ON (.*) TO`)
	for _, grant := range b.grants {
		parts := statement.FindStringSubmatch(grant)
		if parts == nil {
			t.Fatalf("statement %q", grant)
		}
		for privilege := range strings.SplitSeq(parts[1], ", ") {
			what := fmt.Sprintf("%s%s ON %s", privilege, parts[2], parts[3])
			b.Exec(t, fmt.Sprintf("REVOKE %s FROM %s", what, b.role))
			mended := fmt.Sprintf("GRANT %s TO %q", what, b.role)
			if code, out, _ := b.run(t, "doctor"); code != 2 || !strings.Contains(out, mended) {
				t.Errorf("without %s, doctor: exit code %d\n%s", what, code, out)
			}
			if code, _, errs := b.run(t, "run"); code != 2 || !strings.Contains(errs, "Try: ") {
				t.Errorf("without %s, run: exit code %d\n%s", what, code, errs)
			}
			for _, args := range [][]string{{"status"}, {"dlq", "list"}, {"checkpoint", "list"}, {"inbox", "list"}, {"replay", "list"}} {
				if privilege != "SELECT" && privilege != "USAGE" {
					break // what only reads has no use for the others
				}
				if code, _, errs := b.run(t, args...); code != 0 && !strings.Contains(errs, "Try: ") {
					t.Errorf("without %s, %v: exit code %d\n%s", what, args, code, errs)
				}
			}
			b.Exec(t, grant)
		}
	}
	b.Exec(t, fmt.Sprintf("ALTER ROLE %s NOREPLICATION", b.role))
	for _, args := range [][]string{{"run"}, {"checkpoint", "save", "x", "--hold"}} {
		if code, _, errs := b.run(t, args...); code != 2 || !strings.Contains(errs, "REPLICATION") {
			t.Errorf("without REPLICATION, %v: exit code %d\n%s", args, code, errs)
		}
	}
}

// TestRoleFile: sql/role.sql, for those who read before they run, is what init prints.
func TestRoleFile(t *testing.T) {
	t.Parallel()
	b := inboxSetup(t, "", "outbox: { retention: 24h }\ndestinations: [ { name: main, url: \"https://example.com\", secrets: [ "+secret+" ] } ]\n")
	_, printed, _ := b.run(t, "init", "--print-sql", "--grant-to", "cdc_relay")
	file, err := os.ReadFile("../../sql/role.sql")
	if err != nil {
		t.Fatal(err)
	}
	of := func(text string) []string {
		return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
			return !strings.HasPrefix(line, "GRANT") && !strings.HasPrefix(line, "ALTER ROLE")
		})
	}
	if got, want := of(string(file)), of(printed); !slices.Equal(got, want) {
		t.Errorf("sql/role.sql has\n%s\nand init prints\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestServiceFiles: the statements for each managed Postgres run, and where they are
// enough by themselves, the relay's role may replicate.
func TestServiceFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../sql/services/*.sql")
	if err != nil || len(files) != 4 {
		t.Fatalf("files %v: %v", files, err)
	}
	d := database.New(t)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		role := "r_" + d.Name
		// Other tests share the server: its own settings stay as they are.
		statements := regexp.MustCompile(`(?m)^ALTER SYSTEM .*$`).ReplaceAllString(strings.ReplaceAll(string(text), "cdc_relay", role), "")
		tx, err := d.Conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(statements, "rds_replication") {
			statements = "CREATE ROLE rds_replication;" + statements
		}
		if _, err := tx.Exec(t.Context(), statements); err != nil {
			t.Errorf("%s: %v", file, err)
		} else {
			var allowed bool
			err := tx.QueryRow(t.Context(), `SELECT rolreplication OR pg_has_role(oid, (SELECT oid FROM pg_roles WHERE rolname = 'rds_replication'), 'member') FROM pg_roles WHERE rolname = $1`, role).Scan(&allowed)
			if err != nil || !allowed {
				t.Errorf("%s: its role may not replicate (%v)", file, err)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
