package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// TestG2BodyIsThePayloadText compares bodies with what Postgres gives for the
// payload, byte for byte.
func TestG2BodyIsThePayloadText(t *testing.T) {
	t.Parallel()
	documents := map[string]string{
		"big number":   `{"n": 123456789012345678901234567890.12345678901234567890, "e": 1e400}`,
		"float":        `[0.1, 3.14159265358979312, 1.7976931348623157e308, 5e-324]`,
		"escapes":      `{"a": "tab\tquote\"slash\/unicode\u00e9\u2028", "b": "\\u0041"}`,
		"emoji":        `{"☕": "👩‍👩‍👧‍👦 café"}`,
		"spaces":       `{  "b" :1,"a":   [ 1,2 , 3 ]   }`,
		"duplicates":   `{"a": 1, "a": 2}`,
		"nested 1 MiB": strings.Repeat(`{"a":[`, 500) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat(`]}`, 500),
		"scalar":       `"just text"`,
	}
	for _, kind := range []string{"jsonb", "json", "text"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := setup(t, "")
			b.Exec(t, fmt.Sprintf(`CREATE TABLE outbox_events (id uuid PRIMARY KEY, aggregate_type text, aggregate_id uuid,
				event_type text, payload %s, processed_at timestamptz)`, kind))
			b.run(t, "init")
			b.start(t)
			for name, document := range documents {
				if kind == "jsonb" && name == "big number" {
					document = strings.Replace(document, "1e400", "1e40", 1)
				}
				b.Exec(t, `INSERT INTO outbox_events (id, event_type, payload) VALUES (gen_random_uuid(), $1, $2::text::`+kind+`)`, name, document)
			}
			for _, got := range b.receiver.await(len(documents)) {
				want := database.One[string](t, b.Database, `SELECT payload::text FROM outbox_events WHERE id::text = $1`, got.id())
				if got.body != want {
					t.Errorf("%s: the body has %d bytes and differs from payload::text with %d", got.header.Get("Cdc-Relay-Event-Type"), len(got.body), len(want))
				}
				wantType := "application/json"
				if kind == "text" {
					wantType = "text/plain; charset=utf-8"
				}
				if contentType := got.header.Get("Content-Type"); contentType != wantType {
					t.Errorf("Content-Type is %q, want %q", contentType, wantType)
				}
			}
			if bad := b.receiver.badSignatures(); len(bad) > 0 {
				t.Errorf("signatures that don't verify: %v", bad)
			}
		})
	}
}

// TestBinaryPayload sends bytea as its bytes, whatever the database's own
// bytea_output is.
func TestBinaryPayload(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.Exec(t, `ALTER DATABASE `+b.Name+` SET bytea_output = 'escape'`)
	b.Exec(t, `CREATE TABLE outbox_events (id uuid PRIMARY KEY, aggregate_type text, aggregate_id uuid,
		event_type text, payload bytea, processed_at timestamptz)`)
	b.run(t, "init")
	b.start(t)
	want := "\x00\x01\xff binary \\ \x80"
	b.Exec(t, `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), $1)`, []byte(want))
	got := b.receiver.await(1)[0]
	if got.body != want {
		t.Errorf("body %q, want %q", got.body, want)
	}
	if contentType := got.header.Get("Content-Type"); contentType != "application/octet-stream" {
		t.Errorf("Content-Type is %q", contentType)
	}
}
