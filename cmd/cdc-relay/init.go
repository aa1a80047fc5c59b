package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newInitCommand(g *globals) *cobra.Command {
	var printSQL bool
	var serverVersion int
	command := &cobra.Command{
		Use:   "init",
		Short: "Create what is missing in Postgres: tables, publication, slot",
		Long: `Create what is missing in Postgres: the relay's tables (by versioned migrations),
the outbox table, the publication and the replication slot. Safe to run again.

With --print-sql nothing is changed and no connection is made: the statements
are printed for a DBA.`,
		RunE: func(command *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			if printSQL {
				statements, err := provision.SQL(cfg.provisioning(), serverVersion)
				if err != nil {
					return err
				}
				return g.print(map[string]string{"sql": statements}, func(w io.Writer) { io.WriteString(w, statements) })
			}
			steps, err := initialize(command.Context(), cfg)
			if err != nil {
				return err
			}
			return g.print(steps, func(w io.Writer) {
				for _, s := range steps {
					fmt.Fprintf(w, "%-44s %s\n", s.Object, s.Done)
				}
			})
		},
	}
	command.Flags().BoolVar(&printSQL, "print-sql", false, "print the SQL for a DBA and change nothing")
	command.Flags().IntVar(&serverVersion, "server-version", 17, "the server's major version, for --print-sql")
	return command
}

func initialize(ctx context.Context, cfg Config) ([]provision.Step, error) {
	var steps []provision.Step
	pool, err := cfg.pool(ctx)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
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
