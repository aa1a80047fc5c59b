package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/demo"
)

func newDemoReceiverCommand() *cobra.Command {
	var listen, secret string
	command := &cobra.Command{
		Use:   "receiver",
		Short: "Only receive: verify each delivery's signature, and print a line of it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			handler, err := demo.NewPrinter(secret, command.OutOrStdout())
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
