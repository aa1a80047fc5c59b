package e2e

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/throwaway"
)

// TestConfigMistakes: each names file, line and key, and exits with 2.
func TestConfigMistakes(t *testing.T) {
	t.Parallel()
	ok := "database: { url: postgres://localhost/x }\n"
	cases := map[string]struct{ text, want string }{
		"unknown key":       {ok + "slot:\n  nmae: x\n", ":3:3: unknown field \"nmae\""},
		"not YAML":          {ok + "slot: [\n", "cdc-relay.yaml:"},
		"wrong type":        {ok + "window: { events: many }\n", ":2:19:"},
		"bad URL":           {ok + "destinations:\n  - name: a\n    url: ftp://x\n    secrets: [ s ]\n", ":4:10: destinations[0].url: is not an http or https URL"},
		"duplicate name":    {ok + "destinations:\n  - { name: a, url: http://x, secrets: [ s ] }\n  - { name: a, url: http://x, secrets: [ s ] }\n", `:4:13: destinations[1].name: two destinations are called "a"`},
		"no secret":         {ok + "destinations:\n  - { name: a, url: http://x }\n", "destinations[0].secrets: is empty"},
		"empty secret":      {ok + "destinations:\n  - { name: a, url: http://x, secrets: [ \"\" ] }\n", ":3:40: destinations[0].secrets: secret 1: it is empty"},
		"bad secret":        {ok + "destinations:\n  - { name: a, url: http://x, secrets: [ \"whsec_!!\" ] }\n", "no base64 after it"},
		"bad glob":          {ok + "destinations:\n  - { name: a, url: http://x, secrets: [ s ], match: { event_types: [ \"[\" ] } }\n", "destinations[0].match: event_types"},
		"bad expression":    {ok + "destinations:\n  - { name: a, url: http://x, secrets: [ s ], match: { expression: \"payload.\" } }\n", "destinations[0].match: expression"},
		"unknown scheme":    {ok + "destinations:\n  - { name: a, url: http://x, secrets: [ s ], signature: nobody }\n", "no signature scheme is called"},
		"bad table":         {ok + "outbox: { table: a.b.c }\n", ":2:18: outbox.table"},
		"bad slot":          {ok + "slot: { name: Has-Capitals }\n", ":2:15: slot.name"},
		"unset environment": {"database: { url: \"${CDC_RELAY_E2E_NOT_SET}\" }\n", ":1:18: environment variable CDC_RELAY_E2E_NOT_SET is not set"},
		"no database":       {"log: { level: info }\n", "database.url"},
		"bad level":         {ok + "log: { level: loud }\n", ":2:15: log.level"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "cdc-relay.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, _, stderr := command(t, "--config", path, "run")
			if code != 2 || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, "Try:") {
				t.Errorf("exit code %d, want 2 and %q:\n%s", code, c.want, stderr)
			}
		})
	}
}

func TestUsageMistakes(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"nonsense"}, {"run", "extra"}, {"run", "--nonsense"}, {"version", "--output", "xml"}} {
		if code, _, stderr := command(t, args...); code != 2 || stderr == "" {
			t.Errorf("%v: exit code %d, %q", args, code, stderr)
		}
	}
}

// TestEnvironmentOverrides: each setting has a variable, which wins over the file.
func TestEnvironmentOverrides(t *testing.T) {
	b := setup(t, "")
	t.Setenv("CDC_RELAY_SLOT_NAME", "Wrong-Name")
	if code, _, stderr := b.run(t, "status"); code != 2 || !strings.Contains(stderr, "slot.name") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	t.Setenv("CDC_RELAY_SLOT_NAME", b.Name)
	t.Setenv("CDC_RELAY_DESTINATIONS_0_SECRETS", "")
	if code, _, stderr := b.run(t, "status"); code != 0 {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestServerMistakes starts a server without logical decoding.
func TestServerMistakes(t *testing.T) {
	t.Parallel()
	server, err := throwaway.Start(t.Context(), throwaway.Options{
		BinDir: os.Getenv("CDC_RELAY_TEST_BIN_DIR"),
		Image:  os.Getenv("CDC_RELAY_TEST_IMAGE"), Settings: map[string]string{"wal_level": "replica"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	b := setup(t, "")
	b.URL = server.URL
	b.configure(t, b.destination("main", b.receiver.URL))
	for _, args := range [][]string{{"run"}, {"init"}} {
		code, _, stderr := b.run(t, args...)
		if code != 2 || !strings.Contains(stderr, "wal_level is replica") || !strings.Contains(stderr, "ALTER SYSTEM SET wal_level = logical") {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	code, stdout, _ := b.run(t, "doctor")
	if code != 2 || !strings.Contains(stdout, "wal_level is replica") {
		t.Errorf("doctor: exit code %d: %s", code, stdout)
	}
}

// TestRoleMistakes: a role without REPLICATION, and one without rights.
func TestRoleMistakes(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	role := "r_" + b.Name
	b.Exec(t, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() {
		b.Conn.Exec(context.Background(), "DROP OWNED BY "+role)
		b.Conn.Exec(context.Background(), "DROP ROLE "+role)
	})
	u, err := url.Parse(b.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	b.URL = u.String()
	b.configure(t, b.destination("main", b.receiver.URL))
	code, _, stderr := b.run(t, "init")
	if code != 2 || !strings.Contains(stderr, "ALTER ROLE "+role+" REPLICATION") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	b.Exec(t, "ALTER ROLE "+role+" REPLICATION")
	code, _, stderr = b.run(t, "init")
	if code != 2 || !strings.Contains(stderr, "permission denied") || !strings.Contains(stderr, "--print-sql") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestTableMistakes: an outbox without the columns.
func TestTableMistakes(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.Exec(t, `CREATE TABLE outbox_events (id uuid PRIMARY KEY, payload jsonb, aggregate_type text, aggregate_id uuid, processed_at timestamp)`)
	code, _, stderr := b.run(t, "run")
	if code != 2 || !strings.Contains(stderr, `no column "event_type"`) || !strings.Contains(stderr, "outbox.columns.event_type") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	b.Exec(t, `ALTER TABLE outbox_events ADD COLUMN event_type text, DROP COLUMN processed_at`)
	code, _, stderr = b.run(t, "run")
	if code != 2 || !strings.Contains(stderr, "ADD COLUMN") || !strings.Contains(stderr, "outbox.mark_processed") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestPublicationMistakes: a publication of the same name that doesn't hold the
// table, or doesn't publish inserts.
func TestPublicationMistakes(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.Exec(t, `CREATE PUBLICATION `+b.Name)
	code, _, stderr := b.run(t, "init")
	if code != 2 || !strings.Contains(stderr, "ALTER PUBLICATION") || !strings.Contains(stderr, "ADD TABLE") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	b.Exec(t, `ALTER PUBLICATION `+b.Name+` ADD TABLE outbox_events`)
	b.Exec(t, `ALTER PUBLICATION `+b.Name+` SET (publish = 'update')`)
	if code, _, stderr := b.run(t, "init"); code != 2 || !strings.Contains(stderr, "does not publish inserts") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestReplicationURLMistakes: a replication URL that leads to something that isn't the server.
func TestReplicationURLMistakes(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.configure(t, b.destination("main", b.receiver.URL))
	t.Run("doctor", func(t *testing.T) {
		text, err := os.ReadFile(b.config)
		if err != nil {
			t.Fatal(err)
		}
		broken := strings.Replace(string(text), "database: {", `database: { replication_url: "postgres://127.0.0.1:1/x?sslmode=disable",`, 1)
		if err := os.WriteFile(b.config, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		code, stdout, _ := b.run(t, "doctor")
		if code != 2 || !strings.Contains(stdout, "database.replication_url") {
			t.Errorf("exit code %d: %s", code, stdout)
		}
	})
}

// TestInit is safe to repeat, and what --print-sql prints does the same.
func TestInit(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	for range 2 {
		if code, _, stderr := b.run(t, "init"); code != 0 {
			t.Fatal(stderr)
		}
	}
	if code, stdout, stderr := b.run(t, "doctor", "--output", "json"); code != 0 {
		t.Errorf("doctor after init: exit code %d: %s%s", code, stdout, stderr)
	}
	other := setup(t, "")
	_, statements, _ := other.run(t, "init", "--print-sql", "--server-version", "15")
	psql, err := pgx.Connect(t.Context(), other.URL+"&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer psql.Close(context.Background())
	transaction, slot, _ := strings.Cut(statements, "COMMIT;")
	for _, statement := range []string{transaction + "COMMIT;", slot} {
		if _, err := psql.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%v:\n%s", err, statement)
		}
	}
	if code, stdout, stderr := other.run(t, "doctor"); code != 0 {
		t.Errorf("doctor after the printed SQL: exit code %d: %s%s", code, stdout, stderr)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	relay := b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), '1')`)
	b.receiver.await(1)
	b.confirmed(t)
	code, stdout, stderr := b.run(t, "status", "--output", "json")
	if code != 0 {
		t.Fatal(stderr)
	}
	var status struct {
		Slot struct {
			Exists, Active bool
			Lag            int64 `json:"lag_bytes"`
		}
		Unprocessed  int `json:"unprocessed_events"`
		Destinations []struct {
			Name      string
			Delivered int
		}
	}
	if err := json.Unmarshal([]byte(stdout), &status); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if !status.Slot.Exists || !status.Slot.Active || status.Unprocessed != 0 || len(status.Destinations) != 1 || status.Destinations[0].Delivered != 1 {
		t.Errorf("status %s", stdout)
	}
	if code, stdout, _ := b.run(t, "status"); code != 0 || !strings.Contains(stdout, "1 delivered") || !strings.Contains(stdout, "streaming") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	relay.stop(t)
}
