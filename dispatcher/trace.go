package dispatcher

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// traceContext is how a row's headers name the span that wrote it, and how a request
// names the span that sends it.
// https://www.w3.org/TR/trace-context/
var traceContext propagation.TraceContext

// rowTrace puts the span named by the row's headers into the context, if there is one.
func rowTrace(ctx context.Context, e *outbox.Event) context.Context {
	if !bytes.Contains(bytes.ToLower(e.Headers), []byte("traceparent")) {
		return ctx
	}
	// What isn't an object of headers is told of where the request's are made.
	members := map[string]json.RawMessage{}
	if json.Unmarshal(e.Headers, &members) != nil {
		return ctx
	}
	header := http.Header{}
	for name, value := range members {
		addRowHeader(header, name, value)
	}
	return traceContext.Extract(ctx, propagation.HeaderCarrier(header))
}

// traceRound begins the span of a round, as a child of the span that wrote the row.
// The first round's begins when the row was committed, and shows how long the row took
// to be read and decoded, and how long it was queued. The caller ends the span.
func (d *destination) traceRound(ctx context.Context, delivery *delivery) (context.Context, trace.Span) {
	e, now := delivery.event, d.now()
	direct := !e.ReadAt.IsZero() && !delivery.queuedAt.IsZero() && delivery.tries == 0
	begin := now
	if direct {
		begin = e.CommitTime
	}
	ctx, span := d.tracer.Start(rowTrace(ctx, e), "deliver "+d.name, trace.WithTimestamp(begin), trace.WithSpanKind(trace.SpanKindConsumer))
	if !span.IsRecording() {
		return ctx, span
	}
	span.SetAttributes(
		attribute.String("cdc_relay.event.id", e.ID), attribute.String("cdc_relay.event.type", e.EventType),
		attribute.String("cdc_relay.aggregate.type", e.AggregateType), attribute.String("cdc_relay.aggregate.id", e.AggregateID),
		attribute.String("cdc_relay.destination", d.name), attribute.Stringer("cdc_relay.lsn", e.Position),
		attribute.Int("cdc_relay.round", delivery.rounds+1),
	)
	if e.Replay != "" {
		span.SetAttributes(attribute.String("cdc_relay.replay", e.Replay))
	}
	if direct {
		d.phase(ctx, "decode", e.CommitTime, e.ReadAt)
		d.phase(ctx, "queue", e.ReadAt, now)
	}
	return ctx, span
}

// phase records what is over.
func (d *destination) phase(ctx context.Context, name string, from, to time.Time) {
	_, span := d.tracer.Start(ctx, name, trace.WithTimestamp(from))
	span.End(trace.WithTimestamp(to))
}

// endRound says in the span what the round came to.
func endRound(span trace.Span, result Result, err error, at time.Time) {
	if span.IsRecording() {
		switch {
		case err != nil:
			span.SetStatus(codes.Error, "broken off")
		case result.Defect != "":
			span.SetStatus(codes.Error, result.Defect)
		case !result.Verdict.Delivered:
			span.SetStatus(codes.Error, "not delivered")
		}
	}
	span.End(trace.WithTimestamp(at))
}

// begin begins the span of an attempt, and names it in the request in place of the
// row's own.
func (x *exchange) begin(ctx context.Context, header http.Header) {
	if x.sender.options.Tracer == nil {
		return
	}
	number := x.round.First + len(x.attempts)
	ctx, x.span = x.sender.options.Tracer.Start(ctx, "attempt "+strconv.Itoa(number), trace.WithTimestamp(x.started), trace.WithSpanKind(trace.SpanKindClient))
	x.span.SetAttributes(
		attribute.String("http.request.method", http.MethodPost), attribute.String("server.address", x.sender.request.URL.Hostname()),
		attribute.Int("cdc_relay.attempt", number),
	)
	header.Del("Tracestate") // what Inject doesn't set is not this trace's
	traceContext.Inject(ctx, propagation.HeaderCarrier(header))
}

// end says in the attempt's span what came of it.
func (x *exchange) end(a outbox.Attempt) {
	if x.span == nil {
		return
	}
	if a.Status != 0 {
		x.span.SetAttributes(attribute.Int("http.response.status_code", a.Status))
	}
	switch {
	case a.Error != "":
		x.span.SetStatus(codes.Error, a.Error)
	case !x.verdict.Delivered:
		x.span.SetStatus(codes.Error, http.StatusText(a.Status))
	}
	x.span.End(trace.WithTimestamp(a.At.Add(a.Duration)))
	x.span = nil
}
