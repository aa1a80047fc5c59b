package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/provision"
)

func newDoctorCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check server settings, privileges, slot, tables and config, each failure with its mend",
		RunE: func(command *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			replication, err := cfg.replication()
			if err != nil {
				return err
			}
			findings := []provision.Finding{{Check: "config", OK: true, Detail: fmt.Sprintf("%d destinations", len(cfg.Destinations))}}
			err = cfg.withConnection(command.Context(), func(conn *pgx.Conn) error {
				findings = append(findings, provision.Doctor(command.Context(), conn, replication, cfg.provisioning())...)
				findings = append(findings, checkForgotten(command.Context(), cfg))
				return nil
			})
			if err != nil {
				return err
			}
			healthy := true
			for _, f := range findings {
				healthy = healthy && f.OK
			}
			if err := g.print(findings, func(w io.Writer) { printFindings(w, findings) }); err != nil {
				return err
			}
			if !healthy {
				return quietError{exitUsage}
			}
			return nil
		},
	}
}

func printFindings(w io.Writer, findings []provision.Finding) {
	for _, f := range findings {
		mark := "ok"
		if !f.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(w, "%-5s %-24s %s\n", mark, f.Check, f.Detail)
		if f.Try != "" {
			fmt.Fprintf(w, "      %-24s try: %s\n", "", f.Try)
		}
	}
}

// checkForgotten looks for unsettled rows that the slot has passed by.
func checkForgotten(ctx context.Context, cfg Config) provision.Finding {
	f := provision.Finding{Check: "forgotten rows", OK: true, Detail: "none"}
	pool, err := cfg.pool(ctx)
	if err == nil {
		defer pool.Close()
		var n int64
		if n, err = cfg.keeper(pool, zerolog.Nop()).CountForgotten(ctx); n > 0 {
			f.OK, f.Detail = false, fmt.Sprintf("%d unsettled rows are older than %s, and the slot has passed them by", n, cfg.Outbox.ForgottenAge)
			f.Try = fmt.Sprintf("stop the relay, SELECT pg_drop_replication_slot('%s'), and start it: unsettled rows are then sent from the table", cfg.Slot.Name)
		}
	}
	if err != nil {
		f.Detail = "not looked for: " + err.Error() // what is missing is told by the other checks
	}
	return f
}
