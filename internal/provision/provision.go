// Package provision sets up, and checks, what the relay needs in Postgres: its
// own tables, the outbox, the publication and the slot. Everything here may be
// repeated; what is there already is left as it is. It starts no goroutine.
package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/sql"
)

// Options name what is set up. Names are unquoted.
type Options struct {
	Schema      string // of the relay's own tables
	Outbox      catalog.Name
	Columns     Columns
	Publication string
	Slot        string
	Failover    bool // make the slot one that standbys keep up with, on 17 and newer
	Mark        bool // processed_at is set, so it has to be there
	Use         Use

	// CreateSlot makes the slot, when it is missing.
	CreateSlot func(ctx context.Context, failover bool) error
}

// Columns are the outbox's columns; an empty name is a column that there isn't.
type Columns struct {
	ID, AggregateType, AggregateID, EventType, Payload, Headers, CreatedAt, ProcessedAt string
}

// Step is one thing that Init did, or found done.
type Step struct {
	Object string `json:"object"`
	Done   string `json:"done"` // "created", "exists", "migrated to version 2"
}

// Init creates what is missing, in the order in which the pieces need each
// other: the publication before the slot, since decoding looks it up at the
// slot's position.
func Init(ctx context.Context, conn *pgx.Conn, o Options, report func(Step)) error {
	steps := []struct {
		object string
		ensure func(context.Context, *pgx.Conn, Options) (string, error)
	}{
		{"schema " + o.Schema, ensureTables},
		{"outbox " + o.Outbox.String(), ensureOutbox},
		{"publication " + o.Publication, ensurePublication},
		{"slot " + o.Slot, ensureSlot},
	}
	for _, step := range steps {
		done, err := step.ensure(ctx, conn, o)
		if err != nil {
			return fmt.Errorf("%s: %w", step.object, Explain(err, o))
		}
		report(Step{Object: step.object, Done: done})
	}
	return nil
}

// InitTables creates what is missing of the relay's own tables alone, for an inbox
// that has no relay beside it.
func InitTables(ctx context.Context, conn *pgx.Conn, o Options) (Step, error) {
	done, err := ensureTables(ctx, conn, o)
	if err != nil {
		return Step{}, fmt.Errorf("schema %s: %w", o.Schema, Explain(err, o))
	}
	return Step{Object: "schema " + o.Schema, Done: done}, nil
}

func ensureTables(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	// CREATE SCHEMA IF NOT EXISTS wants the right to create even where the schema
	// exists, which a least-privilege role lacks.
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, o.Schema).Scan(&exists); err != nil {
		return "", fmt.Errorf("look up schema: %w", err)
	}
	if !exists {
		if _, err := conn.Exec(ctx, `CREATE SCHEMA IF NOT EXISTS `+pgx.Identifier{o.Schema}.Sanitize()); err != nil {
			return "", fmt.Errorf("create schema: %w", err)
		}
	}
	version, err := TablesVersion(ctx, conn, o.Schema)
	if err != nil {
		return "", err
	}
	latest, err := LatestVersion(o.Schema)
	if err != nil {
		return "", err
	}
	if version >= latest {
		return fmt.Sprintf("at version %d", version), nil
	}
	migrator, err := migrate.NewMigrator(ctx, conn, versionTable(o.Schema))
	if err != nil {
		return "", fmt.Errorf("prepare migrations: %w", err)
	}
	if err := load(migrator, o.Schema); err != nil {
		return "", err
	}
	if err := migrator.Migrate(ctx); err != nil {
		return "", fmt.Errorf("migrate: %w", err)
	}
	return fmt.Sprintf("migrated to version %d", latest), nil
}

func versionTable(schema string) string {
	return pgx.Identifier{schema, "schema_version"}.Sanitize()
}

func load(migrator *migrate.Migrator, schema string) error {
	migrator.Data = map[string]any{"schema": pgx.Identifier{schema}.Sanitize()}
	if err := migrator.LoadMigrations(sql.Migrations()); err != nil {
		return fmt.Errorf("load migrations: %w", err)
	}
	return nil
}

// LatestVersion is the version that this program's migrations lead to.
func LatestVersion(schema string) (int32, error) {
	migrator := &migrate.Migrator{}
	if err := load(migrator, schema); err != nil {
		return 0, err
	}
	return int32(len(migrator.Migrations)), nil
}

// TablesVersion is the version that the relay's tables are at, 0 for none.
func TablesVersion(ctx context.Context, q catalog.Querier, schema string) (int32, error) {
	var exists bool
	if err := q.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, versionTable(schema)).Scan(&exists); err != nil {
		return 0, fmt.Errorf("look up schema version: %w", err)
	}
	if !exists {
		return 0, nil
	}
	var version int32
	if err := q.QueryRow(ctx, `SELECT version FROM `+versionTable(schema)).Scan(&version); err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, nil
}

func ensureOutbox(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	table, err := catalog.Read(ctx, conn, o.Outbox)
	if err == nil {
		return "exists", CheckColumns(table, o)
	}
	if !errors.Is(err, catalog.ErrNoTable) {
		return "", err
	}
	statement, err := outboxStatement(o)
	if err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, statement); err != nil {
		return "", fmt.Errorf("create table: %w", err)
	}
	return "created", nil
}

func outboxStatement(o Options) (string, error) {
	quoted := func(name string) string {
		if name == "" {
			return ""
		}
		return pgx.Identifier{name}.Sanitize()
	}
	c := o.Columns
	processedAt := c.ProcessedAt
	if processedAt == "" {
		processedAt = "processed_at"
	}
	return sql.Outbox(map[string]string{
		"table": o.Outbox.Sanitize(), "id": quoted(c.ID), "payload": quoted(c.Payload),
		"aggregate_type": quoted(c.AggregateType), "aggregate_id": quoted(c.AggregateID),
		"event_type": quoted(c.EventType), "headers": quoted(c.Headers),
		"created_at": quoted(c.CreatedAt), "processed_at": quoted(processedAt),
	})
}

// CheckColumns tells which configured column the table lacks.
func CheckColumns(table catalog.Table, o Options) error {
	c := o.Columns
	wanted := []struct{ key, column string }{
		{"id", c.ID},
		{"payload", c.Payload},
		{"aggregate_type", c.AggregateType},
		{"aggregate_id", c.AggregateID},
		{"event_type", c.EventType},
		{"headers", c.Headers},
	}
	if o.Mark {
		wanted = append(wanted, struct{ key, column string }{"processed_at", c.ProcessedAt})
	}
	for _, w := range wanted {
		if w.column == "" || table.Columns[w.column] != "" {
			continue
		}
		try := fmt.Sprintf("set outbox.columns.%s to the name of the column that holds it", w.key)
		switch w.key {
		case "id", "payload":
		case "processed_at":
			try = fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s timestamp; or set outbox.mark_processed to false",
				o.Outbox.Sanitize(), pgx.Identifier{w.column}.Sanitize())
		default:
			try += `, or to "" if the table has none`
		}
		return mend.With(fmt.Errorf("table %s has no column %q", o.Outbox, w.column), try)
	}
	return nil
}

func ensurePublication(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	var exists bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)`, o.Publication).Scan(&exists); err != nil {
		return "", fmt.Errorf("look up publication: %w", err)
	}
	if exists {
		return "exists", CheckPublication(ctx, conn, o)
	}
	if _, err := conn.Exec(ctx, publicationStatement(o)); err != nil {
		return "", fmt.Errorf("create publication: %w", err)
	}
	return "created", nil
}

func publicationStatement(o Options) string {
	return fmt.Sprintf(`CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true)`,
		pgx.Identifier{o.Publication}.Sanitize(), o.Outbox.Sanitize())
}

// ErrUnpublished says that inserts into the outbox don't reach the slot at present.
var ErrUnpublished = errors.New("the publication does not carry the outbox")

// CheckOutbox looks the outbox up in the catalog. Its error is ErrUnpublished when
// there is no such table, or when the publication doesn't carry its inserts.
func CheckOutbox(ctx context.Context, q catalog.Querier, o Options) (oid uint32, err error) {
	table, err := catalog.Read(ctx, q, o.Outbox)
	if errors.Is(err, catalog.ErrNoTable) {
		return 0, mend.With(fmt.Errorf("%w: %w", ErrUnpublished, err), "rename the table back, or set outbox.table to its new name")
	}
	if err != nil {
		return 0, err
	}
	return table.OID, CheckPublication(ctx, q, o)
}

// CheckPublication tells whether the publication carries the outbox's inserts: the
// error is ErrUnpublished if not.
func CheckPublication(ctx context.Context, q catalog.Querier, o Options) error {
	name := pgx.Identifier{o.Publication}.Sanitize()
	var inserts, viaRoot, listed bool
	err := q.QueryRow(ctx, `SELECT p.pubinsert, p.pubviaroot,
		EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3)
		FROM pg_publication p WHERE p.pubname = $1`, o.Publication, o.Outbox.Schema, o.Outbox.Table).Scan(&inserts, &viaRoot, &listed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return unpublished(publicationStatement(o), "publication %q does not exist", o.Publication)
	case err != nil:
		return fmt.Errorf("look up publication: %w", err)
	case !inserts:
		return unpublished(fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", name), "publication %q does not publish inserts", o.Publication)
	case !listed && !viaRoot:
		return unpublished(fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true); and, where the table is not in it yet, ALTER PUBLICATION %s ADD TABLE %s", name, name, o.Outbox.Sanitize()),
			"publication %q does not publish %s under its own name", o.Publication, o.Outbox)
	case !listed:
		return unpublished(fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", name, o.Outbox.Sanitize()), "publication %q does not hold table %s", o.Publication, o.Outbox)
	}
	return nil
}

func unpublished(try, format string, args ...any) error {
	return mend.With(fmt.Errorf("%w: %s", ErrUnpublished, fmt.Sprintf(format, args...)), try)
}

func ensureSlot(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	found, err := CheckSlot(ctx, conn, o)
	if err != nil {
		return "", err
	}
	if found {
		return "exists", nil
	}
	if err := o.CreateSlot(ctx, o.Failover && serverVersion(conn.PgConn()) >= 17); err != nil {
		return "", fmt.Errorf("create slot: %w", err)
	}
	return "created", nil
}

func slotStatement(o Options, version int) string {
	name := strings.ReplaceAll(o.Slot, "'", "''")
	if o.Failover && version >= 17 {
		return fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, false, true)`, name)
	}
	return fmt.Sprintf(`SELECT pg_create_logical_replication_slot('%s', 'pgoutput')`, name)
}

// CheckSlot tells whether the slot is there, and what is wrong with it if it is.
func CheckSlot(ctx context.Context, q catalog.Querier, o Options) (found bool, err error) {
	var plugin, database, current, walStatus string
	err = q.QueryRow(ctx, `SELECT coalesce(plugin, ''), coalesce(database, ''), current_database(), coalesce(wal_status, '')
		FROM pg_replication_slots WHERE slot_name = $1`, o.Slot).Scan(&plugin, &database, &current, &walStatus)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look up slot: %w", err)
	case plugin != "pgoutput":
		return true, mend.With(fmt.Errorf("slot %q is there but not for pgoutput (plugin %q)", o.Slot, plugin), "set slot.name to a name of the relay's own")
	case database != current:
		return true, mend.With(fmt.Errorf("slot %q belongs to database %q", o.Slot, database), "set slot.name to a name that no other database uses: slots are named across the whole server")
	}
	return true, nil
}

// serverVersion is the server's major version.
func serverVersion(conn *pgconn.PgConn) int {
	var major int
	fmt.Sscanf(conn.ParameterStatus("server_version"), "%d", &major)
	return major
}

// SQL gives the statements by which a DBA does what Init would, on a server of
// the given major version.
func SQL(o Options, version int) (string, error) {
	tables, err := TablesSQL(o.Schema)
	if err != nil {
		return "", err
	}
	outboxTable, err := outboxStatement(o)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- What `cdc-relay init` does, for a server of version %d. Leave out what is there already.\n\n", version)
	fmt.Fprintf(&b, "BEGIN;\n\n%s%s\n\n%s;\n\nCOMMIT;\n\n", tables, strings.TrimSpace(outboxTable), publicationStatement(o))
	fmt.Fprintf(&b, "-- In a transaction of its own.\n%s;\n", slotStatement(o, version))
	return b.String(), nil
}

// TablesSQL gives the statements that create the relay's own tables.
func TablesSQL(schema string) (string, error) {
	migrator := &migrate.Migrator{}
	if err := load(migrator, schema); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE SCHEMA %s;\n\n", pgx.Identifier{schema}.Sanitize())
	for _, m := range migrator.Migrations {
		fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(m.UpSQL))
	}
	fmt.Fprintf(&b, "CREATE TABLE %s (version int4 NOT NULL);\n", versionTable(schema))
	fmt.Fprintf(&b, "INSERT INTO %s VALUES (%d);\n\n", versionTable(schema), len(migrator.Migrations))
	return b.String(), nil
}

// SlotLost tells why the slot can't be streamed from: "" when it can.
func SlotLost(ctx context.Context, q catalog.Querier, o Options) (reason string, err error) {
	var state string
	err = q.QueryRow(ctx, `SELECT to_jsonb(s)::text FROM pg_replication_slots s WHERE slot_name = $1`, o.Slot).Scan(&state)
	if errors.Is(err, pgx.ErrNoRows) {
		return "it does not exist any more", nil
	}
	if err != nil {
		return "", fmt.Errorf("look up slot: %w", err)
	}
	// Which columns there are depends on the server's version.
	var slot struct {
		WALStatus    string `json:"wal_status"`
		Invalidation string `json:"invalidation_reason"`
		Conflicting  bool   `json:"conflicting"`
	}
	if err := json.Unmarshal([]byte(state), &slot); err != nil {
		return "", fmt.Errorf("look up slot: %w", err)
	}
	switch {
	case slot.Invalidation != "":
		return "the server invalidated it: " + slot.Invalidation, nil
	case slot.WALStatus == "lost":
		return "the server removed WAL that it needed (wal_status lost)", nil
	case slot.Conflicting:
		return "it conflicts with recovery", nil
	}
	return "", nil
}

// SlotActive tells whether somebody streams the slot.
func SlotActive(ctx context.Context, q catalog.Querier, o Options) (active bool, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce((SELECT active FROM pg_replication_slots WHERE slot_name = $1), false)`, o.Slot).Scan(&active)
	if err != nil {
		return false, fmt.Errorf("look up slot: %w", err)
	}
	return active, nil
}

// DropSlot drops the slot if it is there.
func DropSlot(ctx context.Context, conn *pgx.Conn, o Options) error {
	_, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, o.Slot)
	if err != nil {
		return fmt.Errorf("drop slot %q: %w", o.Slot, err)
	}
	return nil
}
