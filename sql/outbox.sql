-- The outbox that `cdc-relay init` makes where there is none.
CREATE TABLE {{.table}} (
  {{.id}} UUID PRIMARY KEY,
{{- if .aggregate_type}}
  {{.aggregate_type}} VARCHAR(50),
{{- end}}
{{- if .aggregate_id}}
  {{.aggregate_id}} UUID,
{{- end}}
{{- if .event_type}}
  {{.event_type}} VARCHAR(100),
{{- end}}
  {{.payload}} JSONB NOT NULL,
{{- if .headers}}
  {{.headers}} JSONB,
{{- end}}
{{- if .created_at}}
  {{.created_at}} TIMESTAMP DEFAULT NOW(),
{{- end}}
  {{.processed_at}} TIMESTAMP   -- null until every matching destination has it
);
