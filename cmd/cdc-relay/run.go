package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/mend"
)

func newRunCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Stream the outbox to its destinations, and take in webhooks, until stopped",
		Long: `Stream the outbox to its destinations, and take in webhooks, until SIGTERM or
SIGINT: the relay runs where the config has destinations, the inbox where it has
inbox.listen.

What is missing in Postgres for them (tables, publication, slot) is created first,
as by "cdc-relay init". On a signal the relay reads no more, lets what is in flight
finish within shutdown_timeout, settles and confirms it; the inbox takes nothing
more, and finishes what it is processing. Then the process exits with 0.

SIGHUP reads the configuration again and puts its destinations and retries, and the
inbox's partners, in force, secrets among them, without a pause. One that has a mistake is refused,
loudly, and the old one stays.`,
		RunE: func(command *cobra.Command, _ []string) error {
			cfg, err := g.load()
			if err != nil {
				return err
			}
			if !cfg.relays() && cfg.Inbox.Listen == "" {
				return mend.With(fmt.Errorf("there is nothing to run: the config has no destinations and no inbox"), "add one under destinations, or set inbox.listen")
			}
			log := newLogger(cfg.Log, command.ErrOrStderr())
			log.Info().Str("version", programVersion()).Int("destinations", len(cfg.Destinations)).Int("partners", len(cfg.Inbox.Partners)).Msg("starting")
			reloads, stop := g.watchReloads(command.Context(), log)
			defer stop()
			err = serve(command.Context(), cfg, reloads, log)
			if command.Context().Err() != nil && errors.Is(err, context.Canceled) {
				err = nil // asked to stop before it had begun
			}
			if err != nil {
				log.Error().Err(err).Msg("ended")
				return err
			}
			log.Info().Msg("stopped")
			return nil
		},
	}
}

// newLogger makes the process's logger. The config was checked, so the level parses.
func newLogger(c LogConfig, w io.Writer) zerolog.Logger {
	level, _ := zerolog.ParseLevel(c.Level)
	if c.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.RFC3339}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// watchReloads reads the configuration again at each SIGHUP. stop ends that and
// waits for it.
func (g *globals) watchReloads(ctx context.Context, log zerolog.Logger) (reloads <-chan Config, stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	fresh := make(chan Config)
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-hangups:
			case <-ctx.Done():
				return
			}
			cfg, err := g.load()
			if err != nil {
				log.Error().Err(err).Msg("reloaded config refused; the old one stays in force")
				continue
			}
			select {
			case fresh <- cfg:
			case <-ctx.Done():
				return
			}
		}
	})
	return fresh, func() {
		signal.Stop(hangups)
		cancel()
		watching.Wait()
	}
}
