package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/cdc-relay/cdc-relay/internal/demo"
	"github.com/cdc-relay/cdc-relay/internal/provision"
	"github.com/cdc-relay/cdc-relay/internal/throwaway"
)

func newDemoCommand(g *globals) *cobra.Command {
	var length time.Duration
	var rate int
	var admin string
	command := &cobra.Command{
		Use:   "demo",
		Short: "Try it: a throwaway Postgres, a sample writer, a receiver, live figures",
		Long: `Start a throwaway Postgres (from server binaries on this machine, or in a Docker
container), write sample orders in transactions of which every tenth rolls back,
deliver them to a receiver that verifies each signature, and show live figures
until Ctrl-C; the admin page shows the same in a browser. The summary says whether
everything committed arrived once and in order. Nothing is left behind.`,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			if length > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, length)
				defer cancel()
			}
			return runDemo(ctx, g, demoOptions{rate: rate, admin: admin}, command.ErrOrStderr())
		},
	}
	command.AddCommand(newDemoReceiverCommand())
	command.Flags().DurationVar(&length, "for", 0, "end by itself after this time; 0 goes on until Ctrl-C")
	command.Flags().IntVar(&rate, "rate", 200, "transactions a second")
	command.Flags().StringVar(&admin, "admin", "127.0.0.1:9090", "where the admin page listens; at a free port where this one is taken")
	return command
}

type demoOptions struct {
	rate  int    // transactions a second
	admin string // address
}

// demonstration is one run of the demo.
type demonstration struct {
	globals *globals
	server  *throwaway.Server
	cfg     Config
	ledger  *demo.Ledger
	out     io.Writer
	started time.Time
}

func runDemo(ctx context.Context, g *globals, o demoOptions, out io.Writer) (err error) {
	fmt.Fprintln(out, "starting a throwaway Postgres …")
	// Setting up is not cut short by --for, which counts from when it is done.
	server, err := throwaway.Start(context.WithoutCancel(ctx), throwaway.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	fmt.Fprintf(out, "PostgreSQL %s from %s\n", server.Version, server.From)

	d := &demonstration{globals: g, server: server, ledger: demo.NewLedger(), out: out, started: time.Now()}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for deliveries: %w", err)
	}
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()))
	receiver, err := demo.NewReceiver(secret, d.ledger)
	if err != nil {
		return err
	}
	d.cfg = demoConfig(server.URL, "http://"+listener.Addr().String()+"/orders", secret)
	if d.cfg.Admin.Listen, err = freeAddress(o.admin); err != nil {
		return err
	}
	fmt.Fprintf(out, "admin page: http://%s\n", d.cfg.Admin.Listen)
	return d.run(ctx, o.rate, listener, receiver)
}

// freeAddress gives the address if nothing listens there, and else one of the same host
// with a free port.
func freeAddress(address string) (string, error) {
	listener, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(address) // it was good enough to listen at
		listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return "", fmt.Errorf("find an address for the admin page: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func demoConfig(databaseURL, receiverURL, secret string) Config {
	cfg := defaultConfig()
	cfg.Database.URL = databaseURL
	receiver := DestinationConfig{
		Name: "receiver", URL: receiverURL, Secrets: []string{secret}, AllowPrivateNetworks: true,
		Match: MatchConfig{EventTypes: []string{"order.*"}},
	}
	receiver.applyDefaults()
	cfg.Destinations = []DestinationConfig{receiver}
	return cfg
}

// run starts receiver, relay and writer, and stops them in the other order, so
// that what was committed has its time to arrive.
func (d *demonstration) run(ctx context.Context, rate int, listener net.Listener, receiver http.Handler) error {
	base := context.WithoutCancel(ctx)
	if err := d.prepare(base); err != nil {
		return err
	}
	server := &http.Server{Handler: receiver, ReadHeaderTimeout: 10 * time.Second}
	relayContext, stopRelay := context.WithCancel(base)
	defer stopRelay()
	var parts errgroup.Group
	parts.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("receive: %w", err)
		}
		return nil
	})
	parts.Go(func() error {
		log := newLogger(LogConfig{Level: "warn", Format: "console"}, d.out)
		return serve(relayContext, d.cfg, nil, log.Level(zerolog.WarnLevel))
	})

	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	writer := &demo.Writer{URL: d.server.URL, Rate: rate, Ledger: d.ledger, Rolling: 0.1}
	wrote := make(chan error, 1)
	go func() { wrote <- writer.Run(writing) }()
	d.show(ctx)
	stopWriting()
	err := <-wrote
	d.settleDown(base)
	stopRelay()
	err = errors.Join(err, server.Shutdown(base), parts.Wait())
	if err != nil {
		return err
	}
	return d.summarize(base)
}

func (d *demonstration) prepare(ctx context.Context) error {
	if _, err := initialize(ctx, d.cfg); err != nil {
		return err
	}
	return d.cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, demo.Schema)
		return err
	})
}

// settleDown waits, for a while, until what was committed has arrived.
func (d *demonstration) settleDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for d.ledger.Figures().Missing > 0 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// show prints the figures each second: over each other on a terminal, a line
// every other second elsewhere.
func (d *demonstration) show(ctx context.Context) {
	file, isFile := d.out.(*os.File)
	terminal := isFile && term.IsTerminal(int(file.Fd()))
	every := 2 * time.Second
	if terminal {
		every = time.Second
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			if terminal {
				fmt.Fprintln(d.out)
			}
			return
		case <-ticker.C:
		}
		if terminal {
			fmt.Fprint(d.out, "\r\x1b[K")
		}
		fmt.Fprint(d.out, d.figuresLine(context.WithoutCancel(ctx)))
		if !terminal {
			fmt.Fprintln(d.out)
		}
	}
}

func (d *demonstration) figuresLine(ctx context.Context) string {
	f := d.ledger.Figures()
	line := fmt.Sprintf("%4.0fs  committed %d  delivered %d  rolled back, never sent %d  p50 %s  p99 %s",
		time.Since(d.started).Seconds(), f.Committed, f.Delivered, f.RolledBack-f.Invented, milliseconds(f.P50), milliseconds(f.P99))
	err := d.cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		s, err := provision.ReadSlot(ctx, conn, d.cfg.provisioning())
		if err == nil {
			line += fmt.Sprintf("  confirmed %s of %s  WAL held %s", s.Confirmed, s.Flushed, byteCount(s.HeldBytes))
		}
		return err
	})
	if err != nil {
		line += "  (slot: " + err.Error() + ")"
	}
	return line
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1fms", float64(d.Microseconds())/1000)
}

// summary is what the demo comes to.
type summary struct {
	demo.Figures
	Clean     bool   `json:"clean"`
	Confirmed string `json:"confirmed_flush_lsn"`
	Behind    int64  `json:"lag_bytes"`
}

// summarize tells what came of it; anything but a clean run is a failure.
func (d *demonstration) summarize(ctx context.Context) error {
	s := summary{Figures: d.ledger.Figures()}
	s.Clean = s.Figures.Clean()
	err := d.cfg.withConnection(ctx, func(conn *pgx.Conn) error {
		slot, err := provision.ReadSlot(ctx, conn, d.cfg.provisioning())
		s.Confirmed, s.Behind = slot.Confirmed, slot.LagBytes
		return err
	})
	if err != nil {
		return err
	}
	if err := d.globals.print(s, func(w io.Writer) { printSummary(w, s) }); err != nil {
		return err
	}
	if !s.Clean {
		return quietError{exitFailed}
	}
	return nil
}

func printSummary(w io.Writer, s summary) {
	fmt.Fprintf(w, "\ncommitted     %d events\ndelivered     %d\n", s.Committed, s.Delivered)
	fmt.Fprintf(w, "rolled back   %d rows, of which %d were sent\n", s.RolledBack, s.Invented)
	fmt.Fprintf(w, "latency       p50 %s, p99 %s, from commit to receipt\n", milliseconds(s.P50), milliseconds(s.P99))
	fmt.Fprintf(w, "confirmed     %s, %s behind the server\n", s.Confirmed, byteCount(s.Behind))
	if s.Clean {
		fmt.Fprintln(w, "\nEverything that was committed arrived once, in order, with a signature that verifies. Nothing else did.")
		return
	}
	fmt.Fprintf(w, "\nNOT CLEAN: %d missing, %d sent though rolled back, %d twice, %d out of order, %d with a bad signature\n",
		s.Missing, s.Invented, s.Duplicates, s.OutOfOrder, s.BadSignature)
}
