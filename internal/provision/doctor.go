package provision

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/catalog"
	"github.com/cdc-relay/cdc-relay/internal/mend"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
	Try    string `json:"try,omitempty"` // the mend, when not OK
}

// CheckServer refuses a server on which logical decoding can't work.
func CheckServer(ctx context.Context, conn *pgx.Conn) error {
	if v := serverVersion(conn.PgConn()); v < 14 {
		return mend.With(fmt.Errorf("the server is PostgreSQL %d", v), "upgrade to 14 or newer")
	}
	var level string
	if err := conn.QueryRow(ctx, `SHOW wal_level`).Scan(&level); err != nil {
		return fmt.Errorf("read wal_level: %w", err)
	}
	if level != "logical" {
		return mend.With(fmt.Errorf("wal_level is %s, not logical", level), walLevelMend)
	}
	return checkRole(ctx, conn)
}

// replicatesByMembership is true of a role r of a managed service that replicates by
// being a member of another.
const replicatesByMembership = `EXISTS (SELECT FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser', 'azure_pg_admin', 'cloudsqlsuperuser')
	AND pg_has_role(r.oid, m.oid, 'member'))`

// checkRole asks for the attribute and for membership: on RDS the attribute is
// false although replication works.
func checkRole(ctx context.Context, conn *pgx.Conn) error {
	var role string
	var allowed bool
	err := conn.QueryRow(ctx, `SELECT quote_ident(r.rolname), r.rolsuper OR r.rolreplication OR `+replicatesByMembership+`
		FROM pg_roles r WHERE r.rolname = current_user`).Scan(&role, &allowed)
	if err != nil {
		return fmt.Errorf("look up role: %w", err)
	}
	if !allowed {
		return mend.With(fmt.Errorf("role %s may not replicate", role), replicationMend(role))
	}
	return nil
}

// CheckReplication opens a replication connection and asks the server who it is,
// which a pooler in between refuses or can't answer.
func CheckReplication(ctx context.Context, config *pgconn.Config) error {
	config = config.Copy()
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err == nil {
		defer conn.Close(ctx)
		var results []*pgconn.Result
		if results, err = conn.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll(); err == nil && len(results) == 1 && len(results[0].Rows) == 1 {
			return nil
		}
		if err == nil {
			err = errors.New("IDENTIFY_SYSTEM gives no row")
		}
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == codeInsufficientPrivilege || pg != nil && pg.Code == codeInvalidAuthorization {
		return mend.With(fmt.Errorf("replication connection: %w", err), replicationMend("the_relay's_role")+", and let it in by pg_hba.conf")
	}
	return mend.With(fmt.Errorf("replication connection: %w", err),
		"if database.url goes through a pooler such as PgBouncer, set database.replication_url to the server itself")
}

// Doctor makes every check, each told apart from the others, so that one run
// names everything that is to be mended.
func Doctor(ctx context.Context, conn *pgx.Conn, replication *pgconn.Config, o Options) []Finding {
	checks := []struct {
		name string
		run  func() (detail string, err error)
	}{
		{"server", func() (string, error) {
			return "PostgreSQL " + conn.PgConn().ParameterStatus("server_version"), CheckServer(ctx, conn)
		}},
		{"replication connection", func() (string, error) { return "", CheckReplication(ctx, replication) }},
		{"replication slots", func() (string, error) { return checkFreeSlots(ctx, conn, o) }},
		{"wal senders", func() (string, error) { return checkWALSenders(ctx, conn) }},
		{"relay tables", func() (string, error) { return checkTables(ctx, conn, o) }},
		{"outbox table", func() (string, error) { return checkOutbox(ctx, conn, o) }},
		{"privileges", func() (string, error) { return "", CheckGrants(ctx, conn, o) }},
		{"publication", func() (string, error) { return o.Publication, CheckPublication(ctx, conn, o) }},
		{"slot", func() (string, error) { return checkSlotState(ctx, conn, o) }},
	}
	findings := make([]Finding, 0, len(checks))
	for _, check := range checks {
		detail, err := check.run()
		f := Finding{Check: check.name, OK: err == nil, Detail: detail}
		if err != nil {
			err = Explain(err, o)
			f.Detail, f.Try = err.Error(), mend.Of(err)
		}
		findings = append(findings, f)
	}
	return findings
}

func checkFreeSlots(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	var most, used int
	var ours bool
	err := conn.QueryRow(ctx, `SELECT current_setting('max_replication_slots')::int, count(*), coalesce(bool_or(slot_name = $1), false)
		FROM pg_replication_slots`, o.Slot).Scan(&most, &used, &ours)
	if err != nil {
		return "", fmt.Errorf("count replication slots: %w", err)
	}
	detail := fmt.Sprintf("%d of %d used", used, most)
	if used >= most && !ours {
		return "", mend.With(fmt.Errorf("no replication slot is free: %s", detail),
			"drop one that nobody uses (SELECT slot_name, active FROM pg_replication_slots), or raise max_replication_slots and restart Postgres")
	}
	return detail, nil
}

func checkWALSenders(ctx context.Context, conn *pgx.Conn) (string, error) {
	var most, used int
	err := conn.QueryRow(ctx, `SELECT current_setting('max_wal_senders')::int, count(*) FROM pg_stat_replication`).Scan(&most, &used)
	if err != nil {
		return "", fmt.Errorf("count WAL senders: %w", err)
	}
	detail := fmt.Sprintf("%d of %d used", used, most)
	if used >= most {
		return "", mend.With(fmt.Errorf("no WAL sender is free: %s", detail), "raise max_wal_senders and restart Postgres")
	}
	return detail, nil
}

func checkTables(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	version, err := TablesVersion(ctx, conn, o.Schema)
	if err != nil {
		return "", err
	}
	latest, err := LatestVersion(o.Schema)
	if err != nil {
		return "", err
	}
	if version < latest {
		return "", mend.With(fmt.Errorf("tables in schema %s are at version %d, this program wants %d", o.Schema, version, latest), "cdc-relay init")
	}
	return fmt.Sprintf("schema %s at version %d", o.Schema, version), nil
}

func checkOutbox(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	table, err := catalog.Read(ctx, conn, o.Outbox)
	if errors.Is(err, catalog.ErrNoTable) {
		return "", mend.With(err, "cdc-relay init creates it; for a table of your own set outbox.table, exactly as it is written in the catalog")
	}
	if err != nil {
		return "", err
	}
	if err := CheckColumns(table, o); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, payload %s", o.Outbox, table.Columns[o.Columns.Payload]), nil
}

func checkSlotState(ctx context.Context, conn *pgx.Conn, o Options) (string, error) {
	found, err := CheckSlot(ctx, conn, o)
	if err != nil {
		return "", err
	}
	if !found {
		return "", mend.With(fmt.Errorf("slot %q does not exist", o.Slot), "cdc-relay init")
	}
	var status string
	var held int64
	err = conn.QueryRow(ctx, `SELECT coalesce(wal_status, 'reserved'),
		coalesce(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END, restart_lsn), 0)::bigint
		FROM pg_replication_slots WHERE slot_name = $1`, o.Slot).Scan(&status, &held)
	if err != nil {
		return "", fmt.Errorf("look up slot: %w", err)
	}
	detail := fmt.Sprintf("%s, wal_status %s, holds %d bytes of WAL", o.Slot, status, held)
	if status == "lost" {
		return "", mend.With(fmt.Errorf("slot %q is lost: the server removed WAL that it needed", o.Slot),
			"raise max_slot_wal_keep_size, drop the slot with pg_drop_replication_slot and run cdc-relay init")
	}
	return detail, nil
}
