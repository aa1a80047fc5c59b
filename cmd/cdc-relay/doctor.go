package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/checkpoint/saved"
	"github.com/cdc-relay/cdc-relay/inbox"
	"github.com/cdc-relay/cdc-relay/internal/catalog"
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
			findings, err := examine(command.Context(), cfg)
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

// examine makes the checks of what the config has.
func examine(ctx context.Context, cfg Config) ([]provision.Finding, error) {
	replication, err := cfg.replication()
	if err != nil {
		return nil, err
	}
	findings := []provision.Finding{{
		Check: "config", OK: true, Detail: fmt.Sprintf("%d destinations, %d partners", len(cfg.Destinations), len(cfg.Inbox.Partners)),
	}}
	err = cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		if !cfg.inboxAlone() {
			findings = append(findings, provision.Doctor(ctx, conn, replication, cfg.provisioning())...)
			findings = append(findings, checkForgotten(ctx, cfg))
			findings = append(findings, checkHeld(ctx, conn, cfg)...)
			findings = append(findings, checkProcesses(ctx, cfg)...)
		}
		if cfg.inboxAlone() {
			findings = append(findings, provision.Privileges(ctx, conn, cfg.provisioning()))
		}
		if cfg.Inbox.Listen != "" {
			findings = append(findings, examineInbox(ctx, conn, cfg)...)
		}
		return nil
	})
	return findings, err
}

// examineInbox checks the inbox's tables, and whether the SQL handler is there.
func examineInbox(ctx context.Context, conn *pgx.Conn, cfg Config) []provision.Finding {
	tables := cfg.inboxTables()
	f := provision.Finding{Check: "inbox table", Detail: cfg.Inbox.Table}
	switch complete, err := inbox.Complete(ctx, conn, tables); {
	case err != nil:
		f.Detail, f.Try = err.Error(), fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO the_role, and on %s", tables.Inbox.Sanitize(), tables.States().Sanitize())
		return []provision.Finding{f}
	case !complete:
		f.Detail, f.Try = cfg.Inbox.Table+" is not there, or lacks columns", "cdc-relay init"
		return []provision.Finding{f}
	}
	f.OK = true
	findings := []provision.Finding{f}
	if name := cfg.Inbox.Processing.Handler.Function; name != "" {
		findings = append(findings, examineHandler(ctx, conn, name, tables))
	}
	return findings
}

func examineHandler(ctx context.Context, conn *pgx.Conn, function string, tables inbox.Tables) provision.Finding {
	f := provision.Finding{Check: "inbox handler", OK: true, Detail: function}
	name, err := catalog.ParseName(function)
	var found bool
	if err == nil {
		signature := pgx.Identifier{name.Schema, name.Table}.Sanitize() + "(" + tables.Inbox.Sanitize() + ")"
		err = conn.QueryRow(ctx, `SELECT to_regprocedure($1) IS NOT NULL AND has_function_privilege(to_regprocedure($1), 'EXECUTE')`, signature).Scan(&found)
	}
	if err != nil || !found {
		f.OK, f.Detail = false, function+" is no function that takes a row of the inbox, or the role may not execute it"
		f.Try = fmt.Sprintf("CREATE FUNCTION %s(event %s) RETURNS text …", function, tables.Inbox.Sanitize())
	}
	return f
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

// checkProcesses tells what the running processes tell of themselves, which is what
// status and the admin page show too.
func checkProcesses(ctx context.Context, cfg Config) []provision.Finding {
	pool, err := cfg.pool(ctx)
	if err != nil {
		return nil
	}
	defer pool.Close()
	o, err := cfg.desk(pool).Overview(ctx, false)
	if err != nil {
		return nil // what is missing is told by the other checks
	}
	f := provision.Finding{Check: "processes", OK: true, Detail: "none runs"}
	var running []string
	for _, i := range o.Instances {
		text := i.Host + " " + i.State
		if i.Reason != "" {
			text += ": " + i.Reason
		}
		running = append(running, text)
	}
	if len(running) > 0 {
		f.Detail = strings.Join(running, "; ")
	}
	streamer := o.Streamer()
	if f.OK = o.Slot.Active || len(running) == 0; !f.OK {
		f.Try = "look in the log of these processes for why none streams the slot"
	}
	findings := []provision.Finding{f}
	if streamer == nil {
		return findings
	}
	for _, d := range streamer.Live.Destinations {
		if d.Circuit == "open" {
			findings = append(findings, provision.Finding{
				Check: "destination " + d.Name, Detail: "its circuit breaker is open: it counts as down, and its events are parked",
				Try: fmt.Sprintf("mend the receiver; cdc-relay dlq list --destination %s shows what it answered", d.Name),
			})
		}
	}
	return findings
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
