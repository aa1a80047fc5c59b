package e2e

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// traceCollector takes spans by OTLP over HTTP, as an OpenTelemetry collector does.
type traceCollector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*trace.Span
	key   string // of the last export
}

func newTraceCollector(t *testing.T) *traceCollector {
	c := &traceCollector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("an export to %s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.key = r.Header.Get("X-Api-Key")
		for _, of := range export.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// of gives the spans of one trace by their names; those of the same name in order.
func (c *traceCollector) of(id string) map[string][]*trace.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string][]*trace.Span{}
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == id {
			found[s.Name] = append(found[s.Name], s)
		}
	}
	return found
}

const tracedOutbox = "outbox: { columns: { headers: headers } }\n"

// startTraced starts the program over an outbox with a column for headers.
func (b *bundle) startTraced(t *testing.T) *relay {
	t.Helper()
	b.Exec(t, `CREATE TABLE outbox_events (id uuid PRIMARY KEY, aggregate_type text, aggregate_id uuid,
		event_type text, payload jsonb, headers jsonb, created_at timestamptz DEFAULT now(), processed_at timestamptz)`)
	if code, _, errs := b.run(t, "init"); code != 0 {
		t.Fatalf("init: exit code %d\n%s", code, errs)
	}
	return b.start(t)
}

// TestTraces: from the span of the application, which its row names in traceparent, by
// way of decoding, the queue and each attempt, to the receiver's request.
func TestTraces(t *testing.T) {
	t.Parallel()
	spans := newTraceCollector(t)
	b := setup(t, fmt.Sprintf(tracedOutbox+"tracing: { endpoint: %q, headers: { X-Api-Key: key } }\n", spans.URL))
	var failed sync.Map
	b.receiver.answering(func(w http.ResponseWriter, r request) {
		if _, again := failed.LoadOrStore(r.id(), true); !again {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	const traced, parent, other = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "1bf7651916cd43dd8448eb211c80319c"
	relay := b.startTraced(t)
	insert := func(aggregate, headers string) {
		b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
			VALUES (gen_random_uuid(), 'order', md5($1)::uuid, 'order.created', '{}', $2::jsonb)`, aggregate, headers)
	}
	insert("a", `{"TraceParent":"00-`+traced+`-`+parent+`-01","tracestate":"vendor=1"}`)
	insert("b", `{"traceparent":"00-`+other+`-`+parent+`-00"}`) // the application records no spans of it
	insert("c", `{}`)
	eventually(t, "each to be sent twice", func() bool { return len(b.receiver.requests()) == 6 })
	b.confirmed(t)
	relay.stop(t)

	found := spans.of(traced)
	for name, count := range map[string]int{"deliver main": 1, "decode": 1, "queue": 1, "attempt 1": 1, "attempt 2": 1} {
		if len(found[name]) != count {
			t.Fatalf("%d spans %q, want %d; there are %v", len(found[name]), name, count, found)
		}
	}
	root := found["deliver main"][0]
	if got := hex.EncodeToString(root.ParentSpanId); got != parent {
		t.Errorf("the delivery is a child of %s, want the application's span %s", got, parent)
	}
	decode, queue := found["decode"][0], found["queue"][0]
	first, second := found["attempt 1"][0], found["attempt 2"][0]
	for _, s := range []*trace.Span{decode, queue, first, second} {
		if string(s.ParentSpanId) != string(root.SpanId) || s.StartTimeUnixNano < root.StartTimeUnixNano || s.EndTimeUnixNano > root.EndTimeUnixNano {
			t.Errorf("span %s is not a part of the delivery's", s.Name)
		}
	}
	if decode.EndTimeUnixNano != queue.StartTimeUnixNano || queue.EndTimeUnixNano > first.StartTimeUnixNano || first.EndTimeUnixNano > second.StartTimeUnixNano {
		t.Error("the spans don't follow one another")
	}
	if first.Status.GetCode() != trace.Status_STATUS_CODE_ERROR || second.Status.GetCode() != trace.Status_STATUS_CODE_UNSET || root.Status.GetCode() != trace.Status_STATUS_CODE_UNSET {
		t.Errorf("statuses %v, %v, %v; want that the first attempt alone failed", first.Status, second.Status, root.Status)
	}
	attempts := map[string]*trace.Span{"1": first, "2": second}
	var unsampled, fresh int
	for _, r := range b.receiver.requests() {
		got := r.header.Get("Traceparent")
		switch {
		case strings.Contains(got, traced):
			want := fmt.Sprintf("00-%s-%x-01", traced, attempts[r.header.Get("Cdc-Relay-Attempt")].SpanId)
			if got != want || r.header.Get("Tracestate") != "vendor=1" || len(r.header.Values("Traceparent")) != 1 {
				t.Errorf("the request of attempt %s has %v, %q; want %s", r.header.Get("Cdc-Relay-Attempt"), r.header.Values("Traceparent"), r.header.Get("Tracestate"), want)
			}
		case strings.Contains(got, other):
			unsampled++
			if !strings.HasSuffix(got, "-00") {
				t.Errorf("a trace that isn't recorded is sent on as %s", got)
			}
		case len(spans.of(strings.Split(got, "-")[1])["deliver main"]) == 1:
			fresh++
		}
	}
	if unsampled != 2 || fresh != 2 || len(spans.of(other)) != 0 {
		t.Errorf("%d requests of the trace that isn't recorded, %d of one begun here, want 2 and 2; %d spans of the former, want none", unsampled, fresh, len(spans.of(other)))
	}
	if spans.key != "key" {
		t.Errorf("exported with key %q, want that of the config", spans.key)
	}
}

// TestWithoutTraces the row's own traceparent goes to the receiver as it is, and a
// collector that is away keeps nothing waiting.
func TestWithoutTraces(t *testing.T) {
	t.Parallel()
	for name, section := range map[string]string{
		"off":  tracedOutbox,
		"away": fmt.Sprintf(tracedOutbox+"tracing: { endpoint: \"http://%s\", sample_ratio: 0 }\n", freeAddress(t)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, section)
			relay := b.startTraced(t)
			const own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
			b.Exec(t, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
				VALUES (gen_random_uuid(), 'order', gen_random_uuid(), 'order.created', '{}', jsonb_build_object('traceparent', $1::text))`, own)
			b.confirmed(t)
			got := b.receiver.requests()[0].header.Get("Traceparent")
			if same := got == own; same != (name == "off") || !strings.HasPrefix(got, own[:36]) {
				t.Errorf("the request has traceparent %s", got)
			}
			relay.stop(t)
		})
	}
}
