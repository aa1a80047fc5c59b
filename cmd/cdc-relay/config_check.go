package main

import (
	"fmt"
	"net/url"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/internal/admin"
	"github.com/cdc-relay/cdc-relay/internal/alert"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/operations"
	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// check finds the first setting that can't work.
func (c *Config) check(src source) error {
	for _, check := range []func(source) error{
		c.checkDatabase, c.checkOutbox, c.checkDestinations, c.checkNumbers, c.checkParking, c.checkAlerts, c.checkInbox, c.checkAdmin, c.checkTracing, c.checkLog,
	} {
		if err := check(src); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) checkDatabase(src source) error {
	if c.Database.URL == "" {
		return src.at("database.url", "is empty; it says where the outbox is, as in postgres://user@host/database")
	}
	for key, value := range map[string]string{"database.url": c.Database.URL, "database.replication_url": c.Database.ReplicationURL} {
		if value == "" {
			continue
		}
		if _, err := pgx.ParseConfig(value); err != nil {
			// The error would quote the URL, password and all.
			return src.at(key, "is not a Postgres connection string")
		}
	}
	if c.Database.Schema == "" {
		return src.at("database.schema", "is empty")
	}
	return nil
}

// slotName is what Postgres allows.
// https://www.postgresql.org/docs/current/warm-standby.html#STREAMING-REPLICATION-SLOTS-MANIPULATION
var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

func (c *Config) checkOutbox(src source) error {
	if _, err := catalog.ParseName(c.Outbox.Table); err != nil {
		return src.at("outbox.table", err.Error())
	}
	columns := c.Outbox.Columns
	switch {
	case columns.ID == "":
		return src.at("outbox.columns.id", "is empty; events need an id")
	case columns.Payload == "":
		return src.at("outbox.columns.payload", "is empty; there would be nothing to send")
	case c.Outbox.MarkProcessed && columns.ProcessedAt == "":
		return src.at("outbox.columns.processed_at", "is empty while outbox.mark_processed is true")
	case !slotName.MatchString(c.Slot.Name):
		return src.at("slot.name", "a slot's name has 1 to 63 of a-z, 0-9 and _")
	case c.Slot.OnLost != "recover" && c.Slot.OnLost != "fail":
		return src.at("slot.on_lost", fmt.Sprintf("is %q; there are recover and fail", c.Slot.OnLost))
	case c.Outbox.Retention < 0 || c.Outbox.Retention > 0 && !c.Outbox.MarkProcessed:
		return src.at("outbox.retention", "needs outbox.mark_processed, and can't be negative")
	case c.DeliveryLog.Retention <= 0:
		return src.at("delivery_log.retention", "must be above 0")
	case c.Checkpoints.Every <= 0, c.Checkpoints.Retention <= 0, c.Checkpoints.Hold.MaxBytes <= 0, c.Checkpoints.Hold.MaxAge <= 0:
		return src.at("checkpoints", "every, retention and the limits of hold must be above 0")
	case c.Slot.Publication == "":
		return src.at("slot.publication", "is empty")
	}
	return nil
}

func (c *Config) checkDestinations(src source) error {
	seen := make(map[string]bool)
	for i := range c.Destinations {
		d := &c.Destinations[i]
		key := fmt.Sprintf("destinations[%d]", i)
		switch {
		case d.Name == "":
			return src.at(key+".name", "is empty")
		case seen[d.Name]:
			return src.at(key+".name", fmt.Sprintf("two destinations are called %q", d.Name))
		}
		seen[d.Name] = true
		if err := d.check(src, key); err != nil {
			return err
		}
	}
	return nil
}

func (d *DestinationConfig) check(src source, key string) error {
	if d.Kind != "http" {
		return src.at(key+".kind", fmt.Sprintf("is %q; there is http", d.Kind))
	}
	u, err := url.Parse(d.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return src.at(key+".url", "is not an http or https URL with a host")
	}
	if d.Ordering != "aggregate" && d.Ordering != "none" {
		return src.at(key+".ordering", fmt.Sprintf("is %q; there are aggregate and none", d.Ordering))
	}
	if d.OnDead != "continue" && d.OnDead != "block" {
		return src.at(key+".on_dead", fmt.Sprintf("is %q; there are continue and block", d.OnDead))
	}
	if d.Timeout < 0 || d.Concurrency < 0 || d.RateLimit < 0 {
		return src.at(key, "timeout, concurrency and rate_limit can't be negative")
	}
	if _, err := d.TLS.load(); err != nil {
		return src.at(key+".tls", err.Error())
	}
	if len(d.Secrets) == 0 {
		return src.at(key+".secrets", "is empty; requests are signed with it, as in \"whsec_<base64>\"")
	}
	scheme, err := signature.Preset(d.Signature)
	if err != nil {
		return src.at(key+".signature", err.Error())
	}
	if _, err := signature.NewSigner(scheme, d.Secrets); err != nil {
		return src.at(key+".secrets", err.Error())
	}
	if _, err := dispatcher.NewRouter(d.match()); err != nil {
		return src.at(key+".match", err.Error())
	}
	return nil
}

func (d *DestinationConfig) match() dispatcher.Match {
	return dispatcher.Match{EventTypes: d.Match.EventTypes, AggregateTypes: d.Match.AggregateTypes, Expression: d.Match.Expression}
}

func (c *Config) checkNumbers(src source) error {
	inline := c.Retry.Inline
	switch {
	case inline.Attempts < 1:
		return src.at("retry.inline.attempts", "must be 1 or more")
	case inline.MinWait <= 0, inline.MaxWait < inline.MinWait:
		return src.at("retry.inline", "min_wait must be above 0, and max_wait no less than it")
	case c.Retry.MaxRetryAfter <= 0:
		return src.at("retry.max_retry_after", "must be above 0")
	case c.Window.Events < 1:
		return src.at("window.events", "must be 1 or more")
	case c.Window.Bytes < 1:
		return src.at("window.bytes", "must be 1 or more")
	case c.Settle.BatchSize < 1 || c.Settle.MaxDelay < 0:
		return src.at("settle", "batch_size must be 1 or more, max_delay not negative")
	case c.ShutdownTimeout <= 0:
		return src.at("shutdown_timeout", "must be above 0")
	}
	return nil
}

func (c *Config) checkParking(src source) error {
	for i, wait := range c.Retry.Schedule {
		if wait <= 0 {
			return src.at(fmt.Sprintf("retry.schedule[%d]", i), "must be above 0")
		}
	}
	b := c.CircuitBreaker
	switch {
	case c.Parking.MaxRows < 1:
		return src.at("parking.max_rows", "must be 1 or more")
	case b.FailureShare < 0 || b.FailureShare > 1:
		return src.at("circuit_breaker.failure_share", "must be between 0 and 1")
	case b.FailureShare > 0 && (b.MinRounds < 1 || b.Window <= 0 || b.Pause <= 0):
		return src.at("circuit_breaker", "min_rounds must be 1 or more, window and pause above 0")
	}
	return nil
}

func (c *Config) checkAlerts(src source) error {
	for i, a := range c.Alerts.URLs {
		key := fmt.Sprintf("alerts.urls[%d]", i)
		u, err := url.Parse(a.URL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return src.at(key, "is not an http or https URL with a host")
		}
		kind, err := alert.ParseType(a.Type)
		if err != nil {
			return src.at(key+".type", err.Error())
		}
		if kind == alert.PagerDuty && a.RoutingKey == "" {
			return src.at(key+".routing_key", "is empty; PagerDuty wants one")
		}
		if len(a.Secrets) > 0 {
			if _, err := signature.NewSigner(signature.Standard(), a.Secrets); err != nil {
				return src.at(key+".secrets", err.Error())
			}
		}
	}
	return nil
}

func (c *Config) checkAdmin(src source) error {
	a := c.Admin
	if a.Listen == "" {
		return nil
	}
	if err := admin.Check(a.Listen, a.Token); err != nil {
		return src.at("admin.listen", err.Error())
	}
	switch {
	case a.ReadToken != "" && a.Token == "":
		return src.at("admin.read_token", "is set while admin.token is empty, so that anybody may do anything")
	case a.ReadToken != "" && a.ReadToken == a.Token:
		return src.at("admin.read_token", "is the same as admin.token")
	}
	if _, err := operations.NewRedactor(a.Redact); err != nil {
		return src.at("admin.redact", err.Error())
	}
	return nil
}

func (c *Config) checkTracing(src source) error {
	t := c.Tracing
	if t.Endpoint == "" {
		return nil
	}
	if u, err := url.Parse(t.Endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return src.at("tracing.endpoint", "is no http or https URL, such as http://127.0.0.1:4318")
	}
	if !(t.SampleRatio >= 0 && t.SampleRatio <= 1) { // not a number is refused too
		return src.at("tracing.sample_ratio", "must be from 0 to 1")
	}
	return nil
}

func (c *Config) checkLog(src source) error {
	if _, err := zerolog.ParseLevel(c.Log.Level); err != nil || c.Log.Level == "" {
		return src.at("log.level", fmt.Sprintf("is %q; there are trace, debug, info, warn, error", c.Log.Level))
	}
	if c.Log.Format != "json" && c.Log.Format != "console" {
		return src.at("log.format", fmt.Sprintf("is %q; there are json and console", c.Log.Format))
	}
	return nil
}

// relays tells whether the outbox is relayed, or the config is about the inbox alone.
func (c *Config) relays() bool { return len(c.Destinations) > 0 }
