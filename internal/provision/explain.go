package provision

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/mend"
)

// SQLSTATE codes that have a mend.
// https://www.postgresql.org/docs/current/errcodes-appendix.html
const (
	codeInsufficientPrivilege      = "42501"
	codeInvalidPassword            = "28P01"
	codeInvalidAuthorization       = "28000"
	codeInvalidCatalogName         = "3D000"
	codeTooManyConnections         = "53300"
	codeConfigurationLimitExceeded = "53400"
	codeNotInPrerequisiteState     = "55000"
)

// Explain adds to an error of Postgres what puts it right, where that is known.
func Explain(err error, o Options) error {
	var pg *pgconn.PgError
	if mend.Of(err) != "" || !errors.As(err, &pg) {
		return err
	}
	switch pg.Code {
	case codeInsufficientPrivilege:
		return mend.With(err, privilegeMend(pg, o))
	case codeConfigurationLimitExceeded:
		return mend.With(err, "every replication slot is taken: drop one that nobody uses (SELECT slot_name, active FROM pg_replication_slots), or raise max_replication_slots and restart Postgres")
	case codeNotInPrerequisiteState:
		if strings.Contains(pg.Message, "wal_level") {
			return mend.With(err, walLevelMend)
		}
	}
	return err
}

const walLevelMend = "ALTER SYSTEM SET wal_level = logical; and restart Postgres (on RDS and Aurora: rds.logical_replication = 1, on Cloud SQL: cloudsql.logical_decoding = on, on Azure: wal_level in the server parameters)"

func replicationMend(role string) string {
	return fmt.Sprintf("ALTER ROLE %s REPLICATION (on RDS and Aurora: GRANT rds_replication TO %s)", role, role)
}

func privilegeMend(pg *pgconn.PgError, o Options) string {
	switch {
	case strings.Contains(pg.Message, "replication"), strings.Contains(pg.Detail, "REPLICATION"):
		return replicationMend("the_relay's_role")
	case strings.Contains(pg.Message, "must be owner"):
		return fmt.Sprintf("let the owner of %s run what `cdc-relay init --print-sql` prints", o.Outbox)
	default:
		return "let a DBA run `cdc-relay init --grant-to ROLE`, or what it prints with --print-sql; cdc-relay doctor names each grant that is missing"
	}
}

// ExplainConnect adds to an error of connecting what puts it right.
func ExplainConnect(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case codeInvalidPassword, codeInvalidAuthorization:
			return mend.With(err, "check user and password in database.url, and that pg_hba.conf lets this host in")
		case codeInsufficientPrivilege:
			return mend.With(err, "GRANT CONNECT ON DATABASE … TO the relay's role; or, where another right is missing, cdc-relay doctor names it")
		case codeInvalidCatalogName:
			return mend.With(err, "check the database name in database.url")
		case codeTooManyConnections:
			return mend.With(err, "raise max_connections, or give the relay's role connections of its own")
		}
	}
	return err
}
