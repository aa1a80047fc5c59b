// Package throwaway runs a Postgres that is thrown away afterwards, for the demo
// and for tests: from the server binaries on this machine, also when called by
// root, or in a container.
//
// A Server's processes belong to who started it: Stop ends them and removes all
// that they wrote.
package throwaway

import (
	"context"
	"errors"
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/mend"
)

// Server is a Postgres that lives until Stop.
type Server struct {
	URL     string // of its database postgres, as a superuser
	Version string
	From    string // "local binaries in …" or "image …"

	stop func() error
	data string // the data directory, "" in a container
	bin  string
	as   *owner
	port int
}

// Stop ends the server and removes its data. It may be called more than once.
func (s *Server) Stop() error {
	stop := s.stop
	s.stop = func() error { return nil }
	return stop()
}

// Options say what to start.
type Options struct {
	BinDir   string            // server binaries; "" looks for them
	Settings map[string]string // for postgresql.conf, over those that logical decoding needs
	Image    string            // for StartContainer; "" is postgres:17
}

// settings are those of every throwaway server: logical decoding, loopback only,
// and no waiting for a disk whose contents nobody will miss.
func (o Options) settings() map[string]string {
	all := map[string]string{
		"wal_level": "logical", "max_replication_slots": "64", "max_wal_senders": "64", "max_connections": "200",
		"fsync": "off", "shared_buffers": "128MB", "max_wal_size": "2GB", "checkpoint_timeout": "15min",
		"logging_collector": "off", "autovacuum_naptime": "10s",
	}
	for name, value := range o.Settings {
		all[name] = value
	}
	return all
}

// ErrNoPostgres says that there is nothing to start a Postgres from.
var ErrNoPostgres = errors.New("neither Postgres server binaries nor a Docker daemon on this machine")

// Start starts from local binaries where there are any, and else in a container.
func Start(ctx context.Context, o Options) (*Server, error) {
	server, err := StartLocal(ctx, o)
	if !errors.Is(err, ErrNoBinaries) {
		return server, err
	}
	server, err = StartContainer(ctx, o)
	if errors.Is(err, ErrNoDocker) {
		return nil, mend.With(ErrNoPostgres, "install Postgres (on Debian: apt-get install postgresql) or start a Docker daemon")
	}
	if err != nil {
		return nil, fmt.Errorf("no local server binaries, and in a container: %w", err)
	}
	return server, nil
}
