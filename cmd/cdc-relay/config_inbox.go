package main

import (
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
)

// InboxConfig is about inbound webhooks. Nothing of it runs without listen.
type InboxConfig struct {
	Listen     string           `yaml:"listen" env:"LISTEN"`
	PublicURL  string           `yaml:"public_url" env:"PUBLIC_URL"` // for schemes that sign the URL
	Table      string           `yaml:"table" env:"TABLE"`
	Partners   []PartnerConfig  `yaml:"partners" envPrefix:"PARTNERS"`
	Machines   []MachineConfig  `yaml:"machines" envPrefix:"MACHINES"`
	Processing ProcessingConfig `yaml:"processing" envPrefix:"PROCESSING_"`
}

// PartnerConfig is who sends webhooks.
type PartnerConfig struct {
	Name        string        `yaml:"name" env:"NAME"`
	Preset      string        `yaml:"preset" env:"PRESET"`
	Secrets     []string      `yaml:"secrets" env:"SECRETS"`
	SecretsFile string        `yaml:"secrets_file" env:"SECRETS_FILE"` // one secret a line
	Scheme      SchemeConfig  `yaml:"scheme" envPrefix:"SCHEME_"`      // for preset generic
	Verify      string        `yaml:"verify" env:"VERIFY"`             // none takes what anybody sends
	MaxAge      time.Duration `yaml:"max_age" env:"MAX_AGE"`
	MaxFuture   time.Duration `yaml:"max_future" env:"MAX_FUTURE"`
	MaxBody     int64         `yaml:"max_body" env:"MAX_BODY"` // bytes
	RateLimit   float64       `yaml:"rate_limit" env:"RATE_LIMIT"`
	EventID     []string      `yaml:"event_id" env:"EVENT_ID"` // header:Name or json:path; the first that is there
	EventType   []string      `yaml:"event_type" env:"EVENT_TYPE"`
	EntityKey   []string      `yaml:"entity_key" env:"ENTITY_KEY"`
	Split       string        `yaml:"split" env:"SPLIT"`
	MissingID   string        `yaml:"missing_id" env:"MISSING_ID"` // reject or hash
	VerifyToken string        `yaml:"verify_token" env:"VERIFY_TOKEN"`
	Topics      []string      `yaml:"topics" env:"TOPICS"`
}

// SchemeConfig is how a partner signs that no preset knows.
type SchemeConfig struct {
	Header          string        `yaml:"header" env:"HEADER"`
	Form            string        `yaml:"form" env:"FORM"`
	Prefix          string        `yaml:"prefix" env:"PREFIX"`
	Separator       string        `yaml:"separator" env:"SEPARATOR"`
	TimestampKey    string        `yaml:"timestamp_key" env:"TIMESTAMP_KEY"`
	SignatureKey    string        `yaml:"signature_key" env:"SIGNATURE_KEY"`
	Version         string        `yaml:"version" env:"VERSION"`
	Algorithm       string        `yaml:"algorithm" env:"ALGORITHM"`
	Encoding        string        `yaml:"encoding" env:"ENCODING"`
	SecretEncoding  string        `yaml:"secret_encoding" env:"SECRET_ENCODING"`
	Template        string        `yaml:"template" env:"TEMPLATE"`
	TimestampHeader string        `yaml:"timestamp_header" env:"TIMESTAMP_HEADER"`
	TimestampUnit   string        `yaml:"timestamp_unit" env:"TIMESTAMP_UNIT"`
	IDHeader        string        `yaml:"id_header" env:"ID_HEADER"`
	MaxAge          time.Duration `yaml:"max_age" env:"MAX_AGE"`
}

// MachineConfig is a state machine of entities.
type MachineConfig struct {
	Name        string             `yaml:"name" env:"NAME"`
	Partners    []string           `yaml:"partners" env:"PARTNERS"`
	States      []string           `yaml:"states" env:"STATES"`
	Initial     string             `yaml:"initial" env:"INITIAL"`
	Final       []string           `yaml:"final" env:"FINAL"`
	Transitions []TransitionConfig `yaml:"transitions" envPrefix:"TRANSITIONS"`
}

// TransitionConfig is one move of a machine.
type TransitionConfig struct {
	Event string   `yaml:"event" env:"EVENT"`
	From  []string `yaml:"from" env:"FROM"`
	To    string   `yaml:"to" env:"TO"`
}

// ProcessingConfig is about what happens with stored events. Without a handler and
// without machines they stay PENDING, for somebody else to process.
type ProcessingConfig struct {
	Workers   int             `yaml:"workers" env:"WORKERS"`
	Handler   HandlerConfig   `yaml:"handler" envPrefix:"HANDLER_"`
	Schedule  []time.Duration `yaml:"schedule" env:"SCHEDULE"`
	Defer     DeferConfig     `yaml:"defer" envPrefix:"DEFER_"`
	Retention time.Duration   `yaml:"retention" env:"RETENTION"` // of processed events; also how long a duplicate is recognised
}

// HandlerConfig says what makes an event's effect: one of the two.
type HandlerConfig struct {
	Function             string        `yaml:"function" env:"FUNCTION"` // schema.function, called with the row
	URL                  string        `yaml:"url" env:"URL"`           // of the team's own service
	Secrets              []string      `yaml:"secrets" env:"SECRETS"`
	SecretsFile          string        `yaml:"secrets_file" env:"SECRETS_FILE"` // one secret a line
	Timeout              time.Duration `yaml:"timeout" env:"TIMEOUT"`
	AllowPrivateNetworks bool          `yaml:"allow_private_networks" env:"ALLOW_PRIVATE_NETWORKS"`
}

// DeferConfig bounds how long an event that came too early waits.
type DeferConfig struct {
	MaxAge time.Duration `yaml:"max_age" env:"MAX_AGE"`
	Every  time.Duration `yaml:"every" env:"EVERY"`
	Most   int           `yaml:"most" env:"MOST"` // tries; 0 for any number
}

func defaultInbox() InboxConfig {
	return InboxConfig{
		Table: "public.webhook_inbox",
		Processing: ProcessingConfig{
			Workers: 16, Schedule: []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute},
			Handler: HandlerConfig{Timeout: 10 * time.Second, AllowPrivateNetworks: true},
			Defer:   DeferConfig{MaxAge: 24 * time.Hour, Every: time.Minute}, Retention: 45 * 24 * time.Hour,
		},
	}
}

func (p *PartnerConfig) applyDefaults() {
	if p.Preset == "" {
		p.Preset = "generic"
	}
}

// inboxTables are where the inbox is. The config was checked, so the name parses.
func (c *Config) inboxTables() inbox.Tables {
	name, _ := catalog.ParseName(c.Inbox.Table)
	return inbox.Tables{Inbox: pgx.Identifier{name.Schema, name.Table}, Schema: c.Database.Schema}
}

func (c *InboxConfig) partners() []inbox.Partner {
	partners := make([]inbox.Partner, 0, len(c.Partners))
	for _, p := range c.Partners {
		scheme := inbox.Scheme(p.Scheme)
		partners = append(partners, inbox.Partner{
			Name: p.Name, Preset: p.Preset, Secrets: p.Secrets, Scheme: &scheme, Verify: p.Verify, MaxAge: p.MaxAge, MaxFuture: p.MaxFuture,
			MaxBody: p.MaxBody, RateLimit: p.RateLimit, EventID: p.EventID, EventType: p.EventType, EntityKey: p.EntityKey, Split: p.Split,
			MissingID: p.MissingID, VerifyToken: p.VerifyToken, Topics: p.Topics,
		})
	}
	return partners
}

func (c *InboxConfig) machines() []inbox.Machine {
	machines := make([]inbox.Machine, 0, len(c.Machines))
	for _, m := range c.Machines {
		transitions := make([]inbox.Transition, 0, len(m.Transitions))
		for _, t := range m.Transitions {
			transitions = append(transitions, inbox.Transition(t))
		}
		machines = append(machines, inbox.Machine{
			Name: m.Name, Partners: m.Partners, States: m.States, Initial: m.Initial, Final: m.Final, Transitions: transitions,
		})
	}
	return machines
}

// processes tells whether stored events are processed here.
func (c *InboxConfig) processes() bool {
	return c.Processing.Handler.Function != "" || c.Processing.Handler.URL != "" || len(c.Machines) > 0
}

// handler gives what makes events' effects; nil where machines alone decide.
func (c *Config) inboxHandler() (inbox.Handler, error) {
	h := c.Inbox.Processing.Handler
	switch {
	case h.Function != "":
		name, err := catalog.ParseName(h.Function)
		return inbox.SQLHandler{Function: pgx.Identifier{name.Schema, name.Table}, Tables: c.inboxTables()}, err
	case h.URL != "":
		return inbox.NewHTTPHandler(inbox.HTTPHandlerOptions{
			URL: h.URL, Secrets: h.Secrets, Timeout: h.Timeout,
			Transport: dispatcher.NewTransport(dispatcher.TransportOptions{
				Connections: c.Inbox.Processing.Workers, ConnectTimeout: min(h.Timeout, 5*time.Second), AllowPrivateNetworks: h.AllowPrivateNetworks,
			}),
		})
	}
	return nil, nil
}

func (c *Config) checkInbox(src source) error {
	in := &c.Inbox
	if in.Listen == "" {
		return nil
	}
	if _, err := catalog.ParseName(in.Table); err != nil {
		return src.at("inbox.table", err.Error())
	}
	if in.PublicURL != "" {
		if u, err := url.Parse(in.PublicURL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return src.at("inbox.public_url", "is not an http or https URL with a host")
		}
	}
	if len(in.Partners) == 0 {
		return src.at("inbox.partners", "is empty; nobody could send anything")
	}
	for i, p := range in.partners() {
		if _, err := inbox.NewHandler(inbox.Options{Partners: []inbox.Partner{p}, Tables: c.inboxTables()}); err != nil {
			return src.at(fmt.Sprintf("inbox.partners[%d]", i), err.Error())
		}
	}
	if _, err := inbox.NewHandler(inbox.Options{Partners: in.partners(), Tables: c.inboxTables()}); err != nil {
		return src.at("inbox.partners", err.Error())
	}
	if in.PublicURL == "" {
		for i, p := range in.Partners {
			if p.Preset == "twilio" || p.Preset == "square" || p.Preset == "hubspot" {
				return src.at("inbox.public_url", fmt.Sprintf("is empty; partner %s signs the URL (inbox.partners[%d])", p.Name, i))
			}
		}
	}
	return c.checkProcessing(src)
}

func (c *Config) checkProcessing(src source) error {
	p := c.Inbox.Processing
	for i, wait := range p.Schedule {
		if wait <= 0 {
			return src.at(fmt.Sprintf("inbox.processing.schedule[%d]", i), "must be above 0")
		}
	}
	switch {
	case p.Workers < 1:
		return src.at("inbox.processing.workers", "must be 1 or more")
	case p.Defer.MaxAge <= 0, p.Defer.Every <= 0, p.Defer.Most < 0:
		return src.at("inbox.processing.defer", "max_age and every must be above 0, most not negative")
	case p.Retention < 45*24*time.Hour && p.Retention != 0:
		return src.at("inbox.processing.retention", "must be 1080h (45 days) or more, or 0 for ever: a duplicate that comes later is not recognised")
	case p.Handler.Function != "" && p.Handler.URL != "":
		return src.at("inbox.processing.handler", "has both function and url; there is one handler")
	case p.Handler.Timeout <= 0:
		return src.at("inbox.processing.handler.timeout", "must be above 0")
	}
	if p.Handler.URL != "" {
		if u, err := url.Parse(p.Handler.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return src.at("inbox.processing.handler.url", "is not an http or https URL with a host")
		}
	}
	if _, err := c.inboxHandler(); err != nil {
		return src.at("inbox.processing.handler", err.Error())
	}
	if _, err := inbox.NewProcessor(inbox.ProcessorOptions{Tables: c.inboxTables(), Machines: c.Inbox.machines(), Workers: 1}); err != nil {
		return src.at("inbox.machines", err.Error())
	}
	return nil
}
