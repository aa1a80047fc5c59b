package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// TracingOptions say where spans go, by OTLP over HTTP.
// https://opentelemetry.io/docs/specs/otlp/#otlphttp
type TracingOptions struct {
	Endpoint string            // URL, such as http://collector:4318; without a path, that of the protocol is taken
	Headers  map[string]string // of each export, for collectors that want a key
	Ratio    float64           // of the events whose rows name no span; the others do as their span says
	Service  string
	Version  string
}

// NewTracing returns what makes tracers. Spans are exported in batches by a goroutine
// of its own, which Shutdown ends; what a collector doesn't take is dropped and told
// to OpenTelemetry's error handler, so that no event waits for it.
func NewTracing(ctx context.Context, o TracingOptions) (*trace.TracerProvider, error) {
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("make an exporter of traces: %w", err)
	}
	if strings.Trim(endpoint.Path, "/") == "" {
		endpoint.Path = "/v1/traces" // where collectors listen for them
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(endpoint.String()), otlptracehttp.WithHeaders(o.Headers))
	if err != nil {
		return nil, fmt.Errorf("make an exporter of traces: %w", err)
	}
	return trace.NewTracerProvider(
		trace.WithBatcher(exporter),
		trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(o.Ratio))),
		trace.WithResource(resource.NewSchemaless(attribute.String("service.name", o.Service), attribute.String("service.version", o.Version))),
	), nil
}
