package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/mend"
)

// Grant is a right that the relay's role needs while it runs.
type Grant struct {
	Privileges []string
	On         string         // SCHEMA or TABLE
	Object     pgx.Identifier // schema, or schema and table
	Column     string         // of the table; "" for all of it
}

// SQL is the statement that gives the right to a role.
func (g Grant) SQL(role string) string {
	column := ""
	if g.Column != "" {
		column = " (" + quote(g.Column) + ")"
	}
	return fmt.Sprintf("GRANT %s%s ON %s %s TO %s", strings.Join(g.Privileges, ", "), column, g.On, g.Object.Sanitize(), quote(role))
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// Use says which parts of the product a role is for.
type Use struct {
	Relay        bool
	DeletesRows  bool           // of the outbox, when they are settled and old
	Inbox        pgx.Identifier // nil for none
	EntityStates pgx.Identifier
}

// Grants are the rights that a role needs beside that of replication, and no more: what
// `cdc-relay init` creates belongs to somebody else then.
func Grants(o Options) []Grant {
	use := o.Use
	var grants []Grant
	add := func(on pgx.Identifier, privileges ...string) {
		kind := "TABLE"
		if len(on) == 1 {
			kind = "SCHEMA"
		}
		grants = append(grants, Grant{Privileges: privileges, On: kind, Object: on})
	}
	var schemas []string
	uses := func(schema string) {
		if !slices.Contains(schemas, schema) {
			schemas = append(schemas, schema)
			add(pgx.Identifier{schema}, "USAGE")
		}
	}
	own := func(table string, privileges ...string) { add(pgx.Identifier{o.Schema, table}, privileges...) }

	uses(o.Schema)
	own("schema_version", "SELECT")
	own("instances", "SELECT", "INSERT", "UPDATE", "DELETE")
	own("samples", "SELECT", "INSERT", "DELETE")
	own("audit", "SELECT", "INSERT", "UPDATE")
	if use.Relay {
		own("deliveries", "SELECT", "INSERT", "DELETE")
		own("dead_letters", "SELECT", "INSERT", "UPDATE", "DELETE")
		own("paused_destinations", "SELECT", "INSERT", "UPDATE", "DELETE")
		own("checkpoints", "SELECT", "INSERT", "UPDATE", "DELETE")
		own("slot_state", "SELECT", "INSERT", "UPDATE", "DELETE")
		own("backlog", "SELECT", "INSERT", "DELETE")
		own("replays", "SELECT", "INSERT", "UPDATE")
		own("trimmed", "SELECT", "INSERT", "UPDATE")
		outbox := pgx.Identifier{o.Outbox.Schema, o.Outbox.Table}
		uses(o.Outbox.Schema)
		add(outbox, "SELECT")
		if o.Mark {
			grants = append(grants, Grant{Privileges: []string{"UPDATE"}, On: "TABLE", Object: outbox, Column: o.Columns.ProcessedAt})
		}
		if use.DeletesRows {
			add(outbox, "DELETE")
		}
	}
	if use.Inbox != nil {
		uses(use.Inbox[0])
		add(use.Inbox, "SELECT", "INSERT", "UPDATE", "DELETE")
		uses(use.EntityStates[0])
		add(use.EntityStates, "SELECT", "INSERT", "UPDATE")
	}
	return grants
}

// RoleSQL is what gives a role all that it needs, for a DBA.
func RoleSQL(role string, o Options) string {
	var b strings.Builder
	if o.Use.Relay {
		fmt.Fprintf(&b, "ALTER ROLE %s REPLICATION; -- on RDS and Aurora: GRANT rds_replication TO %[1]s;\n", quote(role))
	}
	for _, g := range Grants(o) {
		b.WriteString(g.SQL(role) + ";\n")
	}
	return b.String()
}

// GrantTo gives a role all that it needs. It wants to be run by the owner of the tables.
func GrantTo(ctx context.Context, conn *pgx.Conn, role string, o Options) (Step, error) {
	step := Step{Object: "role " + role, Done: "granted"}
	var replicates, byMembership bool
	err := conn.QueryRow(ctx, `SELECT r.rolsuper OR r.rolreplication OR `+replicatesByMembership+`, to_regrole('rds_replication') IS NOT NULL
		FROM pg_roles r WHERE r.rolname = $1`, role).Scan(&replicates, &byMembership)
	if errors.Is(err, pgx.ErrNoRows) {
		return step, mend.With(fmt.Errorf("there is no role %s", role), fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '…'", quote(role)))
	}
	if err != nil {
		return step, fmt.Errorf("look up role %s: %w", role, err)
	}
	var statements []string
	if o.Use.Relay && !replicates {
		statement := fmt.Sprintf("ALTER ROLE %s REPLICATION", quote(role))
		if byMembership {
			statement = "GRANT rds_replication TO " + quote(role)
		}
		statements = append(statements, statement)
	}
	for _, g := range Grants(o) {
		statements = append(statements, g.SQL(role))
	}
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return step, mend.With(fmt.Errorf("%s: %w", s, err), "let the owner of the tables, or a superuser, run it")
		}
	}
	return step, nil
}

// Privileges looks whether the connection's own role has all that it needs.
func Privileges(ctx context.Context, conn *pgx.Conn, o Options) Finding {
	f := Finding{Check: "privileges", OK: true}
	if err := CheckGrants(ctx, conn, o); err != nil {
		f.OK, f.Detail, f.Try = false, err.Error(), mend.Of(err)
	}
	return f
}

// CheckGrants tells which rights the connection's own role lacks. Objects that aren't
// there are told of by other checks.
func CheckGrants(ctx context.Context, conn *pgx.Conn, o Options) error {
	var role string
	if err := conn.QueryRow(ctx, `SELECT current_user`).Scan(&role); err != nil {
		return fmt.Errorf("look up privileges: %w", err)
	}
	var lacking, statements []string
	for _, g := range Grants(o) {
		for _, privilege := range g.Privileges {
			held, err := g.held(ctx, conn, privilege)
			if err != nil {
				return fmt.Errorf("look up privileges on %s: %w", g.Object.Sanitize(), err)
			}
			if !held {
				one := Grant{Privileges: []string{privilege}, On: g.On, Object: g.Object, Column: g.Column}
				lacking = append(lacking, fmt.Sprintf("%s on %s", privilege, g.Object.Sanitize()))
				statements = append(statements, one.SQL(role))
			}
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	return mend.With(fmt.Errorf("role %s lacks %s", role, strings.Join(lacking, ", ")), strings.Join(statements, "; "))
}

func (g Grant) held(ctx context.Context, conn *pgx.Conn, privilege string) (held bool, err error) {
	if g.On == "SCHEMA" {
		err = conn.QueryRow(ctx, `SELECT coalesce((SELECT has_schema_privilege(oid, $2) FROM pg_namespace WHERE nspname = $1), true)`, g.Object[0], privilege).Scan(&held)
		return held, err
	}
	check := `has_table_privilege(c.oid, $3)`
	args := []any{g.Object[0], g.Object[1], privilege}
	if g.Column != "" {
		check = `coalesce((SELECT has_column_privilege(c.oid, a.attnum, $3) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = $4), true)`
		args = append(args, g.Column)
	}
	// Looked up by the catalog: names can't be resolved within a schema that the role
	// may not use.
	err = conn.QueryRow(ctx, `SELECT coalesce((SELECT `+check+` FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2), true)`, args...).Scan(&held)
	return held, err
}
