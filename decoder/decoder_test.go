package decoder

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

var testTable = Table{Schema: "public", Name: "outbox_events", Columns: Columns{
	ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type", Payload: "payload", Headers: "headers",
}}

var testColumns = []testColumn{
	{"id", 2950}, {"aggregate_type", 1043}, {"aggregate_id", 2950}, {"event_type", 1043}, {"payload", 3802}, {"headers", 3802},
}

var commitTime = time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)

// decodeAll decodes messages and gives what they made, or the first error.
func decodeAll(t *testing.T, messages ...[]byte) ([]Message, error) {
	t.Helper()
	d := New(testTable)
	var decoded []Message
	for _, m := range messages {
		message, err := d.Decode(m)
		if err != nil {
			return decoded, err
		}
		if message != nil {
			decoded = append(decoded, message)
		}
	}
	return decoded, nil
}

func TestDecodeTransaction(t *testing.T) {
	t.Parallel()
	row := func(id string) []byte {
		return insertMessage(7, id, "order", "a-1", "order.paid", `{"total": 10.50}`, `{"traceparent": "00"}`)
	}
	got, err := decodeAll(t,
		beginMessage(100, commitTime),
		relationMessage(7, "public", "outbox_events", testColumns...),
		relationMessage(8, "public", "orders", testColumn{"id", 20}),
		insertMessage(8, "1"), // another table of the publication takes no index
		row("e-0"), row("e-1"),
		commitMessage(100, 140),
		beginMessage(200, commitTime), row("e-2"), commitMessage(200, 240))
	if err != nil {
		t.Fatal(err)
	}
	event := func(id string, commit outbox.LSN, index uint32) Insert {
		return Insert{&outbox.Event{
			Position: outbox.Position{Commit: commit, Index: index},
			ID:       id, AggregateType: "order", AggregateID: "a-1", HasAggregate: true, EventType: "order.paid",
			Payload: []byte(`{"total": 10.50}`), Headers: []byte(`{"traceparent": "00"}`), CommitTime: commitTime,
		}}
	}
	want := []Message{
		Begin{FinalLSN: 100, CommitTime: commitTime},
		event("e-0", 100, 0), event("e-1", 100, 1),
		Commit{100, 140},
		Begin{FinalLSN: 200, CommitTime: commitTime},
		event("e-2", 200, 0),
		Commit{200, 240},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeRowsThatCanNotBeSent(t *testing.T) {
	t.Parallel()
	bytea := append([]testColumn(nil), testColumns...)
	bytea[4].oid = oidBytea
	cases := map[string]struct {
		columns []testColumn
		values  []any
		defect  string
		payload string
	}{
		"NULL payload":      {testColumns, []any{"e", null{}, null{}, null{}, null{}, null{}}, "column payload is NULL", ""},
		"unchanged payload": {testColumns, []any{"e", null{}, null{}, null{}, unchanged{}, null{}}, "column payload is not in the row", ""},
		"NULL id":           {testColumns, []any{null{}, null{}, null{}, null{}, "{}", null{}}, "column id is NULL", "{}"},
		"empty id":          {testColumns, []any{"", null{}, null{}, null{}, "{}", null{}}, "column id is empty", "{}"},
		"short row":         {testColumns, []any{"e", null{}}, "column payload is NULL", ""},
		"bytea":             {bytea, []any{"e", null{}, null{}, null{}, `\x00ff`, null{}}, "", "\x00\xff"},
		"bytea not hex":     {bytea, []any{"e", null{}, null{}, null{}, `a\000`, null{}}, "column payload: bytea is not in hex form", `a\000`},
		"bytea half a byte": {bytea, []any{"e", null{}, null{}, null{}, `\x0`, null{}}, "column payload: bytea in hex form", `\x0`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := decodeAll(t, beginMessage(100, commitTime),
				relationMessage(7, "public", "outbox_events", c.columns...), insertMessage(7, c.values...))
			if err != nil {
				t.Fatalf("such a row must not end the stream: %v", err)
			}
			event := got[1].(Insert).Event
			if !strings.HasPrefix(event.Defect, c.defect) || (c.defect == "") != (event.Defect == "") {
				t.Errorf("defect %q, want %q", event.Defect, c.defect)
			}
			if string(event.Payload) != c.payload {
				t.Errorf("payload %q, want %q", event.Payload, c.payload)
			}
		})
	}
}

func TestDecodeFollowsTheRelation(t *testing.T) {
	t.Parallel()
	reordered := []testColumn{{"extra", 25}, {"payload", 25}, {"headers", 25}, {"event_type", 25}, {"aggregate_id", 20}, {"aggregate_type", 25}, {"id", 20}}
	got, err := decodeAll(t, beginMessage(100, commitTime),
		relationMessage(7, "public", "outbox_events", reordered...),
		insertMessage(7, "?", "text", null{}, "t", "42", "a", "9"))
	if err != nil {
		t.Fatal(err)
	}
	event := got[1].(Insert).Event
	want := &outbox.Event{
		Position: outbox.Position{Commit: 100}, ID: "9", AggregateType: "a", AggregateID: "42", HasAggregate: true,
		EventType: "t", Payload: []byte("text"), Kind: outbox.Text, CommitTime: commitTime,
	}
	if diff := cmp.Diff(want, event); diff != "" {
		t.Error(diff)
	}
}

func TestDecodeStopsWhenANeededColumnIsGone(t *testing.T) {
	t.Parallel()
	_, err := decodeAll(t, beginMessage(100, commitTime), relationMessage(7, "public", "outbox_events", testColumns[:4]...))
	var missing *MissingColumnError
	if !errors.As(err, &missing) || missing.Column != "payload" {
		t.Errorf("error %v, want one about the column payload", err)
	}
}

func TestDecodeRefusesBrokenMessages(t *testing.T) {
	t.Parallel()
	begin := beginMessage(100, commitTime)
	relation := relationMessage(7, "public", "outbox_events", testColumns...)
	cases := map[string][][]byte{
		"empty":                       {{}},
		"unknown type":                {{'?'}},
		"begin within a transaction":  {begin, begin},
		"commit of another":           {begin, commitMessage(101, 140)},
		"commit that ends too early":  {begin, commitMessage(100, 100)},
		"row without relation":        {begin, insertMessage(7, "e")},
		"row outside of a begin":      {relation, insertMessage(7, "e")},
		"more columns than relation":  {begin, relation, insertMessage(7, "e", "", "", "", "", "", "")},
		"column length beyond bounds": {begin, relation, []byte("I\x00\x00\x00\x07N\x00\x01t\xff\xff\xff\xff")},
	}
	for name, messages := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := decodeAll(t, messages...); err == nil {
				t.Error("no error")
			}
		})
	}
}

// TestDecodeTruncated cuts each message at every length.
func TestDecodeTruncated(t *testing.T) {
	t.Parallel()
	before := [][]byte{beginMessage(100, commitTime), relationMessage(7, "public", "outbox_events", testColumns...)}
	whole := [][]byte{
		before[0], before[1],
		insertMessage(7, "e-0", "order", "a-1", "order.paid", "{}", null{}),
		commitMessage(100, 140),
	}
	for i, message := range whole {
		for length := range message {
			d := New(testTable)
			for _, m := range before[:min(i, 2)] {
				if _, err := d.Decode(m); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := d.Decode(message[:length]); err == nil {
				t.Errorf("message %q cut to %d of %d bytes gives no error", message[0], length, len(message))
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(beginMessage(100, commitTime), insertMessage(7, "e", null{}, "a", "t", "{}", unchanged{}))
	f.Add(relationMessage(7, "public", "outbox_events", testColumns...), commitMessage(100, 140))
	f.Add([]byte("I\x00\x00\x00\x07N\x00\x01t\x7f\xff\xff\xff"), []byte("R\x00\x00\x00\x07a\x00b\x00d\xff\xff"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d := New(testTable)
		for _, m := range [][]byte{beginMessage(100, commitTime), relationMessage(7, "public", "outbox_events", testColumns...), first, second} {
			message, err := d.Decode(m)
			if err != nil {
				continue
			}
			if insert, ok := message.(Insert); ok && insert.Event.ID == "" && insert.Event.Defect == "" {
				t.Error("an event without an id and without a defect")
			}
		}
	})
}
