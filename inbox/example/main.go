// Command example is a service that embeds the inbox: it takes in Stripe's webhooks
// and notes each paid invoice in a table of its own, once.
//
//	DATABASE_URL=postgres://… STRIPE_SECRET=whsec_… go run ./inbox/example
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/inbox"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	log := zerolog.New(os.Stderr).With().Timestamp().Logger()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	tables := inbox.Tables{Inbox: pgx.Identifier{"public", "webhook_inbox"}, Schema: "cdc_relay"}
	if err := inbox.Migrate(ctx, pool, tables); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS paid_invoices (invoice text, cents bigint)`); err != nil {
		return err
	}
	processor, err := inbox.NewProcessor(inbox.ProcessorOptions{
		Database: pool, Tables: tables, Handler: invoices{}, Workers: 2,
		Schedule: []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute},
		Defer:    inbox.Deferral{MaxAge: 24 * time.Hour, Every: time.Minute}, Grace: 10 * time.Second, Log: log,
	})
	if err != nil {
		return err
	}
	receiver, err := inbox.NewHandler(inbox.Options{
		Database: pool, Tables: tables, Stored: processor.Wake, Log: log,
		Partners: []inbox.Partner{{
			Name: "stripe", Preset: "stripe", Secrets: []string{os.Getenv("STRIPE_SECRET")}, EntityKey: []string{"json:data.object.id"},
		}},
	})
	if err != nil {
		return err
	}
	return serve(ctx, receiver, processor)
}

// serve runs both until ctx ends.
func serve(ctx context.Context, receiver http.Handler, processor *inbox.Processor) error {
	listen := os.Getenv("LISTEN")
	if listen == "" {
		listen = "127.0.0.1:8081"
	}
	server := &http.Server{Addr: listen, Handler: receiver, ReadHeaderTimeout: 5 * time.Second}
	parts, running := errgroup.WithContext(ctx)
	parts.Go(func() error { return processor.Run(running) })
	parts.Go(func() error {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	parts.Go(func() error {
		<-running.Done()
		return server.Shutdown(context.WithoutCancel(ctx))
	})
	return parts.Wait()
}

// invoices makes the effect of a paid invoice.
type invoices struct{}

// Handle implements inbox.Handler. What it does with tx is committed together with the
// event's status: an event that comes twice, or whose worker dies, has one effect.
func (invoices) Handle(ctx context.Context, tx pgx.Tx, e inbox.Event) (inbox.Answer, error) {
	if e.Type != "invoice.paid" {
		return inbox.Answer{Verdict: inbox.Rejected, Reason: "not of interest"}, nil
	}
	_, err := tx.Exec(ctx, `INSERT INTO paid_invoices (invoice, cents) VALUES ($1, $2)`,
		e.EntityKey, gjson.GetBytes(e.Payload, "data.object.amount_paid").Int())
	if err != nil {
		return inbox.Answer{}, fmt.Errorf("note the invoice: %w", err)
	}
	return inbox.Answer{Verdict: inbox.Applied}, nil
}
