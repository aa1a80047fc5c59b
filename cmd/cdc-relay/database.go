package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/decoder"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/outboxrow"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

// connect opens one ordinary connection.
func (c *Config) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(c.Database.URL)
	if err != nil {
		return nil, fmt.Errorf("database.url is not a Postgres connection string")
	}
	name(&config.Config)
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, provision.ExplainConnect(fmt.Errorf("connect to the database: %w", err))
	}
	return conn, nil
}

// pool opens the ordinary connections of a command.
func (c *Config) pool(ctx context.Context) (*pgxpool.Pool, error) {
	return c.watchedPool(ctx, 5, func(*pgconn.PgError) {})
}

// watchedPool opens ordinary connections, at most so many unless the URL allows more.
// Of a relay's five one settles and the others, one of them held by a replay under
// way, serve everything else. What the server answers to any of them as an error is
// shown to watch, which must not block.
func (c *Config) watchedPool(ctx context.Context, connections int32, watch func(*pgconn.PgError)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(c.Database.URL)
	if err != nil {
		return nil, fmt.Errorf("database.url is not a Postgres connection string")
	}
	name(&config.ConnConfig.Config)
	config.MaxConns = max(config.MaxConns, connections)
	closes := config.ConnConfig.OnPgError
	config.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		watch(err)
		return closes == nil || closes(conn, err)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, provision.ExplainConnect(fmt.Errorf("connect to the database: %w", err))
	}
	return pool, nil
}

// replication gives the settings of the replication connection.
func (c *Config) replication() (*pgconn.Config, error) {
	url := c.Database.ReplicationURL
	if url == "" {
		url = c.Database.URL
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database.replication_url is not a Postgres connection string")
	}
	name(&config.Config)
	return &config.Config, nil
}

// name makes the relay's connections known as such in pg_stat_activity.
func name(config *pgconn.Config) {
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "cdc-relay"
	}
}

// outboxName is the configured table. The config was checked, so it parses.
func (c *Config) outboxName() catalog.Name {
	name, _ := catalog.ParseName(c.Outbox.Table)
	return name
}

func (c *Config) outboxColumns() outboxrow.Columns {
	columns := c.Outbox.Columns
	return outboxrow.Columns{
		ID: columns.ID, AggregateType: columns.AggregateType, AggregateID: columns.AggregateID, EventType: columns.EventType,
		Payload: columns.Payload, Headers: columns.Headers, CreatedAt: columns.CreatedAt, ProcessedAt: columns.ProcessedAt,
	}
}

func (c *Config) provisioning() provision.Options {
	columns := c.Outbox.Columns
	return provision.Options{
		Schema: c.Database.Schema, Outbox: c.outboxName(),
		Columns: provision.Columns{
			ID: columns.ID, AggregateType: columns.AggregateType, AggregateID: columns.AggregateID,
			EventType: columns.EventType, Payload: columns.Payload, Headers: columns.Headers,
			CreatedAt: columns.CreatedAt, ProcessedAt: columns.ProcessedAt,
		},
		Publication: c.Slot.Publication, Slot: c.Slot.Name, Failover: c.Slot.Failover,
		Mark: c.Outbox.MarkProcessed, Use: c.use(),
	}
}

// use says which rights the configuration asks for.
func (c *Config) use() provision.Use {
	use := provision.Use{Relay: c.relays() || c.Inbox.Listen == "", DeletesRows: c.Outbox.Retention > 0}
	if c.Inbox.Listen != "" {
		tables := c.inboxTables()
		use.Inbox, use.EntityStates = tables.Inbox, tables.States()
	}
	return use
}

func (c *Config) decoderTable() decoder.Table {
	outbox, columns := c.outboxName(), c.Outbox.Columns
	return decoder.Table{
		Schema: outbox.Schema, Name: outbox.Table,
		Columns: decoder.Columns{
			ID: columns.ID, AggregateType: columns.AggregateType, AggregateID: columns.AggregateID,
			EventType: columns.EventType, Payload: columns.Payload, Headers: columns.Headers,
		},
	}
}
