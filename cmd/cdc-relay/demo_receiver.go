package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func newDemoReceiverCommand() *cobra.Command {
	var listen, secret string
	command := &cobra.Command{
		Use:   "receiver",
		Short: "Only receive: verify each delivery's signature, and print a line of it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			handler, err := printingReceiver(secret, command.OutOrStdout())
			if err != nil {
				return usageError{fmt.Errorf("--secret: %w", err)}
			}
			return serveReceiver(command.Context(), listen, handler, command.ErrOrStderr())
		},
	}
	command.Flags().StringVar(&listen, "listen", "127.0.0.1:8090", "address")
	command.Flags().StringVar(&secret, "secret", "", "the destination's secret, whsec_…")
	return command
}

// printingReceiver answers what verifies with 204 and prints it, and all else with 401.
func printingReceiver(secret string, out io.Writer) (http.Handler, error) {
	verifier, err := webhook.NewWebhook(secret)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 10<<20))
		if err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		header := r.Header
		if err := verifier.Verify(body, header); err != nil {
			fmt.Fprintf(out, "refused %q: %v\n", header.Get("Idempotency-Key"), err)
			http.Error(w, "signature does not verify", http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(out, "%s %q attempt %s at %s: %q\n", header.Get("Idempotency-Key"), header.Get("Cdc-Relay-Event-Type"), header.Get("Cdc-Relay-Attempt"), header.Get("Cdc-Relay-Lsn"), body[:min(len(body), 200)])
		w.WriteHeader(http.StatusNoContent)
	}), nil
}

func serveReceiver(ctx context.Context, address string, handler http.Handler, out io.Writer) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for deliveries: %w", err)
	}
	fmt.Fprintf(out, "receiving at http://%s\n", listener.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	parts, running := errgroup.WithContext(ctx)
	parts.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("receive: %w", err)
		}
		return nil
	})
	parts.Go(func() error {
		<-running.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return server.Shutdown(ending)
	})
	return parts.Wait()
}
