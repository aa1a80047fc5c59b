package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newInitCommand(g *globals) *cobra.Command {
	var printSQL bool
	var serverVersion int
	var grantTo string
	command := &cobra.Command{
		Use:   "init",
		Short: "Create what is missing in Postgres: tables, publication, slot",
		Long: `Create what is missing in Postgres: the relay's tables (by versioned migrations),
the outbox table, the inbox table, the publication and the replication slot. Safe to
run again.

Where the config has an inbox and no destinations, only the inbox is created: a slot
that nobody reads from would keep all WAL.

With --grant-to the named role gets all that the relay needs while it runs, and no
more: then the relay need not own what this command creates.

With --print-sql nothing is changed and no connection is made: the statements
are printed for a DBA.`,
		RunE: func(command *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			if printSQL {
				statements, err := initSQL(cfg, serverVersion, grantTo)
				if err != nil {
					return err
				}
				return g.print(map[string]string{"sql": statements}, func(w io.Writer) { io.WriteString(w, statements) })
			}
			steps, err := initialize(command.Context(), cfg)
			if err != nil {
				return err
			}
			if grantTo != "" {
				step, err := grant(command.Context(), cfg, grantTo)
				if err != nil {
					return err
				}
				steps = append(steps, step)
			}
			return g.print(steps, func(w io.Writer) {
				for _, s := range steps {
					fmt.Fprintf(w, "%-44s %s\n", s.Object, s.Done)
				}
			})
		},
	}
	command.Flags().BoolVar(&printSQL, "print-sql", false, "print the SQL for a DBA and change nothing")
	command.Flags().StringVar(&grantTo, "grant-to", "", "the role that the relay runs as, when that is another than this one")
	command.Flags().IntVar(&serverVersion, "server-version", 17, "the server's major version, for --print-sql")
	return command
}

// inboxAlone tells whether the config is about the inbox and no relay.
func (c *Config) inboxAlone() bool { return !c.relays() && c.Inbox.Listen != "" }

// initSQL is what initialize does, for a DBA.
func initSQL(cfg Config, serverVersion int, role string) (statements string, err error) {
	if cfg.inboxAlone() {
		statements, err = provision.TablesSQL(cfg.Database.Schema)
	} else {
		statements, err = provision.SQL(cfg.provisioning(), serverVersion)
	}
	if err != nil {
		return "", err
	}
	inboxStatements, err := cfg.inboxTables().SQL()
	if err != nil {
		return "", err
	}
	if role != "" {
		inboxStatements += "\n-- What the relay's role needs.\n" + provision.RoleSQL(role, cfg.provisioning())
	}
	return strings.TrimSpace(statements+"\n"+inboxStatements) + "\n", nil
}

func grant(ctx context.Context, cfg Config, role string) (step provision.Step, err error) {
	err = cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		step, err = provision.GrantTo(ctx, conn, role, cfg.provisioning())
		return err
	})
	return step, err
}

func initialize(ctx context.Context, cfg Config) ([]provision.Step, error) {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var steps []provision.Step
	if cfg.inboxAlone() {
		steps, err = initializeTables(ctx, cfg)
	} else {
		steps, err = initializeRelay(ctx, cfg, pool)
	}
	if err != nil {
		return steps, err
	}
	tables := cfg.inboxTables()
	complete, err := inbox.Complete(ctx, pool, tables)
	if err != nil {
		return steps, provision.ExplainConnect(err)
	}
	done := "exists"
	if !complete {
		done = "created"
		if err := inbox.Migrate(ctx, pool, tables); err != nil {
			return steps, err
		}
	}
	return append(steps, provision.Step{Object: "inbox " + cfg.Inbox.Table, Done: done}), nil
}

// initializeTables makes the tables that an inbox without a relay has use for too.
func initializeTables(ctx context.Context, cfg Config) (steps []provision.Step, err error) {
	err = cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		step, err := provision.InitTables(ctx, conn, cfg.provisioning())
		steps = []provision.Step{step}
		return err
	})
	return steps, err
}

func initializeRelay(ctx context.Context, cfg Config, pool *pgxpool.Pool) (steps []provision.Step, err error) {
	err = cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		if err := provision.CheckServer(ctx, conn); err != nil {
			return err
		}
		return provisionSlot(ctx, conn, cfg, cfg.backlog(pool), func(s provision.Step) { steps = append(steps, s) }, func(reason string) {
			steps = append(steps, provision.Step{Object: "slot " + cfg.Slot.Name, Done: "was lost: " + reason})
		})
	})
	return steps, err
}

// withConnection calls use with a connection of its own.
func (c *Config) withConnection(ctx context.Context, use func(*pgx.Conn) error) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return use(conn)
}
