package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
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
				findings = append(findings, checkHeld(command.Context(), conn, cfg)...)
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

// checkHeld tells what each checkpoint with held WAL costs.
func checkHeld(ctx context.Context, conn *pgx.Conn, cfg Config) []provision.Finding {
	held, err := saved.NewStore(conn, cfg.Database.Schema, cfg.Slot.Name).List(ctx, saved.Which{Held: true})
	if err != nil {
		return nil // what is missing is told by the other checks
	}
	limits := cfg.Checkpoints.Hold
	var findings []provision.Finding
	for _, c := range held {
		age := time.Since(c.SavedAt).Round(time.Second)
		f := provision.Finding{Check: "checkpoint " + c.Name, OK: !c.Lost, Detail: fmt.Sprintf("holds %s of WAL of at most %s, for %s of at most %s",
			byteCount(c.HeldBytes), byteCount(limits.MaxBytes), age, limits.MaxAge)}
		if c.Lost {
			f.Detail, f.Try = "its held WAL is lost (slot "+c.HeldSlot+")", "cdc-relay checkpoint drop "+c.Name
		}
		findings = append(findings, f)
	}
	return findings
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
