package main

import (
	"time"
)

// Config is the whole configuration, as the YAML file spells it. Every setting
// can be given by an environment variable too: CDC_RELAY_ and the path of its
// keys in capitals, as in CDC_RELAY_DATABASE_URL or CDC_RELAY_DESTINATIONS_0_URL.
type Config struct {
	Database        DatabaseConfig      `yaml:"database" envPrefix:"DATABASE_"`
	Outbox          OutboxConfig        `yaml:"outbox" envPrefix:"OUTBOX_"`
	Slot            SlotConfig          `yaml:"slot" envPrefix:"SLOT_"`
	Destinations    []DestinationConfig `yaml:"destinations" envPrefix:"DESTINATIONS"`
	Retry           RetryConfig         `yaml:"retry" envPrefix:"RETRY_"`
	Window          WindowConfig        `yaml:"window" envPrefix:"WINDOW_"`
	Settle          SettleConfig        `yaml:"settle" envPrefix:"SETTLE_"`
	DeliveryLog     DeliveryLogConfig   `yaml:"delivery_log" envPrefix:"DELIVERY_LOG_"`
	Parking         ParkingConfig       `yaml:"parking" envPrefix:"PARKING_"`
	CircuitBreaker  BreakerConfig       `yaml:"circuit_breaker" envPrefix:"CIRCUIT_BREAKER_"`
	Checkpoints     CheckpointsConfig   `yaml:"checkpoints" envPrefix:"CHECKPOINTS_"`
	Alerts          AlertsConfig        `yaml:"alerts" envPrefix:"ALERTS_"`
	Inbox           InboxConfig         `yaml:"inbox" envPrefix:"INBOX_"`
	Admin           AdminConfig         `yaml:"admin" envPrefix:"ADMIN_"`
	Tracing         TracingConfig       `yaml:"tracing" envPrefix:"TRACING_"`
	Log             LogConfig           `yaml:"log" envPrefix:"LOG_"`
	ShutdownTimeout time.Duration       `yaml:"shutdown_timeout" env:"SHUTDOWN_TIMEOUT"`
}

// DatabaseConfig says where the outbox is.
type DatabaseConfig struct {
	URL            string `yaml:"url" env:"URL"`
	ReplicationURL string `yaml:"replication_url" env:"REPLICATION_URL"` // when url goes through a pooler
	Schema         string `yaml:"schema" env:"SCHEMA"`                   // of the relay's own tables
}

// OutboxConfig says what the outbox table looks like.
type OutboxConfig struct {
	Table         string        `yaml:"table" env:"TABLE"`
	Columns       ColumnsConfig `yaml:"columns" envPrefix:"COLUMNS_"`
	MarkProcessed bool          `yaml:"mark_processed" env:"MARK_PROCESSED"`
	Retention     time.Duration `yaml:"retention" env:"RETENTION"`         // after which processed rows are deleted; 0 never
	ForgottenAge  time.Duration `yaml:"forgotten_age" env:"FORGOTTEN_AGE"` // an unsettled row as old as this is told of
}

// ColumnsConfig names the outbox's columns; an empty name says that there is none.
type ColumnsConfig struct {
	ID            string `yaml:"id" env:"ID"`
	AggregateType string `yaml:"aggregate_type" env:"AGGREGATE_TYPE"`
	AggregateID   string `yaml:"aggregate_id" env:"AGGREGATE_ID"`
	EventType     string `yaml:"event_type" env:"EVENT_TYPE"`
	Payload       string `yaml:"payload" env:"PAYLOAD"`
	Headers       string `yaml:"headers" env:"HEADERS"`
	CreatedAt     string `yaml:"created_at" env:"CREATED_AT"`
	ProcessedAt   string `yaml:"processed_at" env:"PROCESSED_AT"`
}

// SlotConfig names the slot and the publication.
type SlotConfig struct {
	Name        string `yaml:"name" env:"NAME"`
	Publication string `yaml:"publication" env:"PUBLICATION"`
	OnLost      string `yaml:"on_lost" env:"ON_LOST"` // recover or fail
	Failover    bool   `yaml:"failover" env:"FAILOVER"`
}

// DestinationConfig is one place that events go to.
type DestinationConfig struct {
	Name                 string        `yaml:"name" env:"NAME"`
	Kind                 string        `yaml:"kind" env:"KIND"`
	URL                  string        `yaml:"url" env:"URL"`
	Secrets              []string      `yaml:"secrets" env:"SECRETS"`
	SecretsFile          string        `yaml:"secrets_file" env:"SECRETS_FILE"` // one secret a line
	Signature            string        `yaml:"signature" env:"SIGNATURE"`
	Match                MatchConfig   `yaml:"match" envPrefix:"MATCH_"`
	Timeout              time.Duration `yaml:"timeout" env:"TIMEOUT"`
	Concurrency          int           `yaml:"concurrency" env:"CONCURRENCY"`
	Ordering             string        `yaml:"ordering" env:"ORDERING"`
	OnDead               string        `yaml:"on_dead" env:"ON_DEAD"` // continue or block
	RateLimit            float64       `yaml:"rate_limit" env:"RATE_LIMIT"`
	ContentType          string        `yaml:"content_type" env:"CONTENT_TYPE"`
	TLS                  TLSConfig     `yaml:"tls" envPrefix:"TLS_"`
	AllowPrivateNetworks bool          `yaml:"allow_private_networks" env:"ALLOW_PRIVATE_NETWORKS"`
}

// TLSConfig is about a destination's certificates; its fields name PEM files.
type TLSConfig struct {
	CAFile   string `yaml:"ca_file" env:"CA_FILE"`     // trusted instead of the system's
	CertFile string `yaml:"cert_file" env:"CERT_FILE"` // the client's
	KeyFile  string `yaml:"key_file" env:"KEY_FILE"`
}

// MatchConfig says which events a destination wants.
type MatchConfig struct {
	EventTypes     []string `yaml:"event_types" env:"EVENT_TYPES"`
	AggregateTypes []string `yaml:"aggregate_types" env:"AGGREGATE_TYPES"`
	Expression     string   `yaml:"expression" env:"EXPRESSION"`
}

// RetryConfig says when a failed delivery is tried again.
type RetryConfig struct {
	Inline        InlineConfig    `yaml:"inline" envPrefix:"INLINE_"`
	Schedule      []time.Duration `yaml:"schedule" env:"SCHEDULE"`
	MaxRetryAfter time.Duration   `yaml:"max_retry_after" env:"MAX_RETRY_AFTER"`
}

// ParkingConfig is about events that wait for a later attempt in the dead letters' table.
type ParkingConfig struct {
	Enabled bool `yaml:"enabled" env:"ENABLED"`
	MaxRows int  `yaml:"max_rows" env:"MAX_ROWS"` // more stop the reading
}

// BreakerConfig says when a destination counts as down.
type BreakerConfig struct {
	FailureShare float64       `yaml:"failure_share" env:"FAILURE_SHARE"` // 0 turns it off
	MinRounds    int           `yaml:"min_rounds" env:"MIN_ROUNDS"`
	Window       time.Duration `yaml:"window" env:"WINDOW"`
	Pause        time.Duration `yaml:"pause" env:"PAUSE"`
}

// AlertsConfig says who is told of dead letters.
type AlertsConfig struct {
	URLs []AlertConfig `yaml:"urls" envPrefix:"URLS"`
}

// AlertConfig is one who is told. In the file it may be the URL alone.
type AlertConfig struct {
	URL                  string   `yaml:"url" env:"URL"`
	Type                 string   `yaml:"type" env:"TYPE"`
	RoutingKey           string   `yaml:"routing_key" env:"ROUTING_KEY"`
	Secrets              []string `yaml:"secrets" env:"SECRETS"`
	AllowPrivateNetworks bool     `yaml:"allow_private_networks" env:"ALLOW_PRIVATE_NETWORKS"`
}

// InlineConfig is about the attempts made at once.
type InlineConfig struct {
	Attempts int           `yaml:"attempts" env:"ATTEMPTS"`
	MinWait  time.Duration `yaml:"min_wait" env:"MIN_WAIT"`
	MaxWait  time.Duration `yaml:"max_wait" env:"MAX_WAIT"`
}

// WindowConfig bounds what is in flight.
type WindowConfig struct {
	Events int `yaml:"events" env:"EVENTS"`
	Bytes  int `yaml:"bytes" env:"BYTES"`
}

// SettleConfig says how outcomes are batched.
type SettleConfig struct {
	BatchSize int           `yaml:"batch_size" env:"BATCH_SIZE"`
	MaxDelay  time.Duration `yaml:"max_delay" env:"MAX_DELAY"`
}

// DeliveryLogConfig is about the record of what was delivered.
type DeliveryLogConfig struct {
	Enabled   bool          `yaml:"enabled" env:"ENABLED"`
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
}

// CheckpointsConfig is about saved LSNs.
type CheckpointsConfig struct {
	Every     time.Duration `yaml:"every" env:"EVERY"`         // between two that are saved without a name
	Retention time.Duration `yaml:"retention" env:"RETENTION"` // of those
	Hold      HoldConfig    `yaml:"hold" envPrefix:"HOLD_"`
}

// HoldConfig limits what checkpoints with held WAL may cost.
type HoldConfig struct {
	MaxBytes int64         `yaml:"max_bytes" env:"MAX_BYTES"` // of WAL, each
	MaxAge   time.Duration `yaml:"max_age" env:"MAX_AGE"`
}

// AdminConfig is about the relay's own HTTP: probes, metrics, the API and the admin page.
type AdminConfig struct {
	Listen        string   `yaml:"listen" env:"LISTEN"`                   // "" serves none
	Token         string   `yaml:"token" env:"TOKEN"`                     // of operators
	TokenFile     string   `yaml:"token_file" env:"TOKEN_FILE"`           // holds it instead
	ReadToken     string   `yaml:"read_token" env:"READ_TOKEN"`           // of those who may only look
	ReadTokenFile string   `yaml:"read_token_file" env:"READ_TOKEN_FILE"` // holds it instead
	Redact        []string `yaml:"redact" env:"REDACT"`                   // JSON paths of payloads that are not shown
}

// TracingConfig is about OpenTelemetry traces.
type TracingConfig struct {
	Endpoint    string            `yaml:"endpoint" env:"ENDPOINT"` // OTLP over HTTP; "" makes no traces
	Headers     map[string]string `yaml:"headers" env:"HEADERS"`
	SampleRatio float64           `yaml:"sample_ratio" env:"SAMPLE_RATIO"` // of events whose row names no span
	ServiceName string            `yaml:"service_name" env:"SERVICE_NAME"`
}

// LogConfig is about the relay's own log.
type LogConfig struct {
	Level  string `yaml:"level" env:"LEVEL"`
	Format string `yaml:"format" env:"FORMAT"` // json or console
}

// defaultConfig is what holds where neither file nor environment says otherwise.
func defaultConfig() Config {
	return Config{
		Database: DatabaseConfig{Schema: "cdc_relay"},
		Outbox: OutboxConfig{
			Table: "public.outbox_events",
			Columns: ColumnsConfig{
				ID: "id", AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type",
				Payload: "payload", CreatedAt: "created_at", ProcessedAt: "processed_at",
			},
			MarkProcessed: true,
			ForgottenAge:  time.Hour,
		},
		Slot: SlotConfig{Name: "cdc_relay", Publication: "cdc_relay", OnLost: "recover", Failover: true},
		Retry: RetryConfig{
			Inline:        InlineConfig{Attempts: 3, MinWait: 200 * time.Millisecond, MaxWait: 2 * time.Second},
			Schedule:      []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute},
			MaxRetryAfter: 15 * time.Minute,
		},
		Parking:        ParkingConfig{Enabled: true, MaxRows: 1_000_000},
		CircuitBreaker: BreakerConfig{FailureShare: 0.5, MinRounds: 20, Window: 10 * time.Second, Pause: 30 * time.Second},
		Window:         WindowConfig{Events: 8192, Bytes: 32 << 20},
		Settle:         SettleConfig{BatchSize: 1000, MaxDelay: 5 * time.Millisecond},
		DeliveryLog:    DeliveryLogConfig{Enabled: true, Retention: 168 * time.Hour},
		Checkpoints: CheckpointsConfig{
			Every: time.Minute, Retention: 168 * time.Hour, Hold: HoldConfig{MaxBytes: 10 << 30, MaxAge: 24 * time.Hour},
		},
		Inbox:           defaultInbox(),
		Tracing:         TracingConfig{SampleRatio: 1, ServiceName: "cdc-relay"},
		Log:             LogConfig{Level: "info", Format: "json"},
		ShutdownTimeout: 30 * time.Second,
	}
}

// applyDefaults fills in what a destination leaves unsaid.
func (d *DestinationConfig) applyDefaults() {
	if d.Kind == "" {
		d.Kind = "http"
	}
	if d.Signature == "" {
		d.Signature = "standard"
	}
	if d.Timeout == 0 {
		d.Timeout = 10 * time.Second
	}
	if d.Concurrency == 0 {
		d.Concurrency = 64
	}
	if d.Ordering == "" {
		d.Ordering = "aggregate"
	}
	if d.OnDead == "" {
		d.OnDead = "continue"
	}
}
