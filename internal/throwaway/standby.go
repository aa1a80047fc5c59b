package throwaway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Standby starts a streaming standby of a local server, on a port of its own, with
// a physical slot of the given name. The primary is halted for a moment, and its
// data copied, so that no tool is needed that server packages may lack.
func (s *Server) Standby(ctx context.Context, slot string) (*Server, error) {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return nil, fmt.Errorf("connect to the primary: %w", err)
	}
	_, err = conn.Exec(ctx, `SELECT pg_create_physical_replication_slot($1, true)`, slot)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return nil, fmt.Errorf("create the standby's slot: %w", err)
	}
	if err := s.Halt(ctx, "fast"); err != nil {
		return nil, err
	}
	standby, err := s.copy(slot)
	if err := errors.Join(err, s.StartAgain(ctx)); err != nil {
		return nil, err
	}
	if err := standby.StartAgain(ctx); err != nil {
		return nil, errors.Join(err, standby.Stop())
	}
	return standby, nil
}

func (s *Server) copy(slot string) (*Server, error) {
	dir, err := os.MkdirTemp("", "cdc-relay-postgres-")
	if err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	standby := &Server{From: s.From, bin: s.bin, as: s.as, data: dir}
	standby.stop = standby.stopLocal
	data := filepath.Join(dir, "data")
	if out, err := exec.Command("cp", "-a", filepath.Join(s.data, "data"), data).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy the primary's data: %w: %s", err, bytes.TrimSpace(out))
	}
	if standby.port, err = freePort(); err != nil {
		return nil, err
	}
	standby.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", standby.port)
	settings := fmt.Sprintf("port = %s\nunix_socket_directories = '%s'\nprimary_slot_name = '%s'\nprimary_conninfo = 'host=127.0.0.1 port=%d user=postgres dbname=postgres'\n",
		strconv.Itoa(standby.port), dir, slot, s.port)
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open postgresql.conf: %w", err)
	}
	_, err = conf.WriteString(settings)
	if err := errors.Join(err, conf.Close(), os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o600)); err != nil {
		return nil, fmt.Errorf("write the standby's settings: %w", err)
	}
	if s.as != nil {
		err = errors.Join(os.Chown(dir, s.as.uid, s.as.gid), os.Chown(filepath.Join(data, "standby.signal"), s.as.uid, s.as.gid))
	}
	return standby, err
}
