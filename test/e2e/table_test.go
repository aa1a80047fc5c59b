package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// bodies gives the bodies of requests in the order of their arrival.
func bodies(requests []request) []string {
	all := make([]string, len(requests))
	for i, r := range requests {
		all[i] = r.body
	}
	return all
}

// TestStatementsOnTheOutbox: every way to insert is delivered, in order; UPDATE,
// DELETE and TRUNCATE make no deliveries.
func TestStatementsOnTheOutbox(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	b.start(t)
	aggregate := "11111111-1111-1111-1111-111111111111"
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
		SELECT gen_random_uuid(), 'order', $1::uuid, 'multi', to_jsonb(n) FROM generate_series(1, 500) n`, aggregate)
	var copied strings.Builder
	for n := 501; n <= 1000; n++ {
		fmt.Fprintf(&copied, "00000000-0000-0000-0000-%012d\torder\t%s\tcopy\t%d\n", n, aggregate, n)
	}
	if _, err := b.Conn.PgConn().CopyFrom(t.Context(), strings.NewReader(copied.String()),
		`COPY outbox_events (id, aggregate_type, aggregate_id, event_type, payload) FROM STDIN`); err != nil {
		t.Fatal(err)
	}
	b.Exec(t, `UPDATE outbox_events SET payload = '"updated"'`)
	b.Exec(t, `DELETE FROM outbox_events WHERE event_type = 'multi'`)
	b.Exec(t, `TRUNCATE outbox_events`)
	b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload) VALUES (gen_random_uuid(), 'order', $1, '1001')`, aggregate)
	got := b.receiver.await(1001)
	b.confirmed(t)
	for i, body := range bodies(got) {
		if body != fmt.Sprint(i+1) {
			t.Fatalf("arrival %d has body %s", i+1, body)
		}
	}
	if n := len(b.receiver.requests()); n != 1001 {
		t.Errorf("%d requests, want 1001", n)
	}
}

// TestQuotedTableWithBigintIDs: a table of somebody's own, with mixed case names,
// another schema, types and column order, a headers column and extra columns.
func TestQuotedTableWithBigintIDs(t *testing.T) {
	t.Parallel()
	b := setup(t, `
outbox:
  table: '"My App"."Outbox.Events"'
  columns: { id: ID, payload: Body, aggregate_type: "", aggregate_id: orderNo, event_type: Kind, headers: Extra, processed_at: doneAt, created_at: "" }
`)
	b.Exec(t, `CREATE SCHEMA "My App"`)
	b.Exec(t, `CREATE TABLE "My App"."Outbox.Events" (junk int, "Body" json, "Extra" jsonb, "Kind" text, "orderNo" bigint,
		"ID" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "doneAt" timestamptz)`)
	if code, _, stderr := b.run(t, "init"); code != 0 {
		t.Fatal(stderr)
	}
	b.start(t)
	b.Exec(t, `INSERT INTO "My App"."Outbox.Events" ("Body", "Extra", "Kind", "orderNo") VALUES ('{"b":1,  "a":2}', '{"traceparent": "00-01"}', 'Order Paid', 7)`)
	got := b.receiver.await(1)[0]
	want := map[string]string{
		"Idempotency-Key": "1", "Webhook-Id": "1", "Cdc-Relay-Event-Type": "Order Paid", "Cdc-Relay-Aggregate-Id": "7",
		"Traceparent": "00-01", "Content-Type": "application/json", "Cdc-Relay-Attempt": "1",
	}
	for name, value := range want {
		if got.header.Get(name) != value {
			t.Errorf("%s is %q, want %q", name, got.header.Get(name), value)
		}
	}
	if got.body != `{"b":1,  "a":2}` {
		t.Errorf("body %s", got.body)
	}
	b.confirmed(t)
	if !database.One[bool](t, b.Database, `SELECT "doneAt" IS NOT NULL FROM "My App"."Outbox.Events"`) {
		t.Error("the row is not marked")
	}
}

func TestPartitionedOutbox(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.Exec(t, `CREATE TABLE outbox_events (id uuid, aggregate_type text, aggregate_id uuid, event_type text, payload jsonb,
		created_at timestamp DEFAULT now(), processed_at timestamp, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day)`)
	b.Exec(t, `CREATE TABLE outbox_day_1 PARTITION OF outbox_events FOR VALUES IN (1)`)
	b.run(t, "init")
	b.start(t)
	insert := func(day, n int) {
		b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, payload, day)
			VALUES (gen_random_uuid(), 'a', '11111111-1111-1111-1111-111111111111', to_jsonb($2::int), $1)`, day, n)
	}
	insert(1, 1)
	b.Exec(t, `CREATE TABLE outbox_day_2 PARTITION OF outbox_events FOR VALUES IN (2)`) // while streaming
	insert(2, 2)
	insert(1, 3)
	if diff := cmp.Diff([]string{"1", "2", "3"}, bodies(b.receiver.await(3))); diff != "" {
		t.Error(diff)
	}
	b.confirmed(t)
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM outbox_events WHERE processed_at IS NULL`); n != 0 {
		t.Errorf("%d rows are not marked", n)
	}
}

// TestNullAggregateHasNoOrder: rows without an aggregate don't wait for each other.
func TestNullAggregateHasNoOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	release := make(chan struct{})
	b.receiver.answering(func(_ http.ResponseWriter, r request) {
		if r.body == "1" {
			<-release
		}
	})
	b.start(t)
	b.Exec(t, `INSERT INTO outbox_events (id, payload) VALUES (gen_random_uuid(), '1'), (gen_random_uuid(), '2')`)
	b.receiver.await(2) // the second came while the first was held
	close(release)
	b.confirmed(t)
}

// TestColumnsChangeMidStream: the stream goes on with the new shape of the table,
// and stops, confirming nothing, when a needed column is gone.
func TestColumnsChangeMidStream(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	b.run(t, "init")
	relay := b.start(t)
	insert := func(payload string) {
		b.Exec(t, `INSERT INTO outbox_events (id, event_type, payload) VALUES (gen_random_uuid(), 'e', $1::text::jsonb)`, payload)
	}
	insert("1")
	b.Exec(t, `ALTER TABLE outbox_events ADD COLUMN extra text DEFAULT 'x'`)
	insert("2")
	b.Exec(t, `ALTER TABLE outbox_events DROP COLUMN extra`)
	b.Exec(t, `ALTER TABLE outbox_events ALTER COLUMN event_type TYPE text`)
	insert("3")
	b.receiver.await(3)
	b.confirmed(t)
	b.Exec(t, `ALTER TABLE outbox_events RENAME COLUMN payload TO body`)
	before := database.One[string](t, b.Database, `SELECT pg_current_wal_flush_lsn()::text`)
	b.Exec(t, `INSERT INTO outbox_events (id, body) VALUES (gen_random_uuid(), '4')`)
	<-relay.done
	if code := relay.cmd.ProcessState.ExitCode(); code == 0 {
		t.Error("exit code 0 with a needed column gone")
	}
	if !strings.Contains(relay.log.String(), `has no column \"payload\"`) {
		t.Error("the log doesn't name the column")
	}
	if database.One[bool](t, b.Database, `SELECT confirmed_flush_lsn > $2::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, b.Name, before) {
		t.Error("the row that could not be read was confirmed")
	}
	b.Exec(t, `ALTER TABLE outbox_events RENAME COLUMN body TO payload`)
	// The row was written under the other name, so the stream sees that name again:
	// the mend is to configure it, or, as here, to go on from a restart that maps it.
	b.configure(t, b.destination("main", b.receiver.URL)+"outbox: { columns: { payload: body } }\n")
	if code, _, stderr := b.run(t, "doctor"); code != 2 || stderr != "" {
		t.Errorf("doctor with the old name: exit code %d, %s", code, stderr)
	}
}
