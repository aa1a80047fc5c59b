package throwaway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoBinaries says that this machine has no Postgres server binaries.
var ErrNoBinaries = errors.New("no Postgres server binaries found")

// StartLocal starts a server from binaries on this machine. Postgres refuses to
// run as root, so for root the processes run as user postgres, or nobody.
func StartLocal(ctx context.Context, o Options) (*Server, error) {
	bin, err := findBinaries(o.BinDir)
	if err != nil {
		return nil, err
	}
	as, err := serverOwner()
	if err != nil {
		return nil, err
	}
	data, err := os.MkdirTemp("", "cdc-relay-postgres-")
	if err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	s := &Server{From: "local binaries in " + bin, bin: bin, data: data, as: as}
	s.stop = s.stopLocal
	if err := s.initialize(ctx, o); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := s.StartAgain(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// findBinaries looks for a directory that holds both initdb and postgres.
func findBinaries(preferred string) (string, error) {
	candidates := []string{preferred}
	if preferred == "" {
		installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
		sort.Slice(installed, func(i, j int) bool { return majorOf(installed[i]) > majorOf(installed[j]) })
		candidates = installed
		if initdb, err := exec.LookPath("initdb"); err == nil {
			if resolved, err := filepath.EvalSymlinks(initdb); err == nil {
				candidates = append(candidates, filepath.Dir(resolved))
			}
		}
		more, _ := filepath.Glob("/opt/homebrew/opt/postgresql*/bin")
		candidates = append(append(candidates, more...), "/usr/local/pgsql/bin", "/usr/pgsql/bin")
	}
	for _, dir := range candidates {
		if isExecutable(filepath.Join(dir, "initdb")) && isExecutable(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", ErrNoBinaries
}

func majorOf(bin string) int {
	major, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
	return major
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}

// owner is the user that the server runs as; nil is this process's own.
type owner struct{ uid, gid int }

func serverOwner() (*owner, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		return &owner{uid, gid}, nil
	}
	return nil, errors.New("a Postgres server refuses to run as root, and there is no user postgres or nobody to run it as")
}

// command runs a server binary as the server's user.
func (s *Server) command(ctx context.Context, binary string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, binary), args...)
	cmd.Dir = s.data
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	if s.as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.as.uid), Gid: uint32(s.as.gid)}}
	}
	return cmd
}

func (s *Server) initialize(ctx context.Context, o Options) error {
	if s.as != nil {
		if err := os.Chown(s.data, s.as.uid, s.as.gid); err != nil {
			return fmt.Errorf("hand the data directory to the server's user: %w", err)
		}
	}
	data := filepath.Join(s.data, "data")
	out, err := s.command(ctx, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	s.port = port
	settings := o.settings()
	settings["listen_addresses"] = "127.0.0.1"
	settings["port"] = strconv.Itoa(port)
	settings["unix_socket_directories"] = s.data
	var conf strings.Builder
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	file, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open postgresql.conf: %w", err)
	}
	if _, err := file.WriteString(conf.String()); err != nil {
		return errors.Join(fmt.Errorf("write postgresql.conf: %w", err), file.Close())
	}
	s.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	return file.Close()
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// Port is a local server's port on the loopback address.
func (s *Server) Port() int { return s.port }

// StartAgain starts a local server that was halted, and waits until it answers.
func (s *Server) StartAgain(ctx context.Context) error {
	out, err := s.command(ctx, "pg_ctl", "start", "-w", "-t", "120", "-D", filepath.Join(s.data, "data"),
		"-l", filepath.Join(s.data, "log")).CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(s.data, "log"))
		return fmt.Errorf("start Postgres: %w: %s %s", err, bytes.TrimSpace(out), bytes.TrimSpace(log))
	}
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return fmt.Errorf("connect to the throwaway Postgres: %w", err)
	}
	s.Version = conn.PgConn().ParameterStatus("server_version")
	return conn.Close(ctx)
}

// Halt stops a local server without removing its data, in one of pg_ctl's modes:
// smart, fast or immediate.
func (s *Server) Halt(ctx context.Context, mode string) error {
	out, err := s.command(ctx, "pg_ctl", "stop", "-w", "-t", "60", "-m", mode, "-D", filepath.Join(s.data, "data")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("stop Postgres: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// PID is the process id of a local server's main process, whose children the others are.
func (s *Server) PID() (int, error) {
	text, err := os.ReadFile(filepath.Join(s.data, "data", "postmaster.pid"))
	if err != nil {
		return 0, fmt.Errorf("find the server's process: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("postmaster.pid begins with %q, not a process id", line)
	}
	return pid, nil
}

// Kill ends a local server as a power cut would: its main process, and with it the
// others, one of which may be too busy to notice and would keep a new one from
// starting.
func (s *Server) Kill() error {
	pid, err := s.PID()
	if err != nil {
		return err
	}
	children := s.children(pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the server: %w", err)
	}
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL) // it may be gone already
	}
	// Until it is gone, a new one takes it for a server that runs.
	for deadline := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("the killed server, process %d, does not go away", pid)
		}
	}
	return nil
}

// children gives the processes that a process has started.
func (s *Server) children(pid int) (pids []int) {
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil // none, or no pgrep: they notice by themselves
	}
	for line := range strings.Lines(string(out)) {
		if child, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && child > 1 {
			pids = append(pids, child)
		}
	}
	return pids
}

func (s *Server) stopLocal() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var stopped error
	if _, err := os.Stat(filepath.Join(s.data, "data", "postmaster.pid")); err == nil {
		stopped = s.Halt(ctx, "immediate")
	}
	return errors.Join(stopped, os.RemoveAll(s.data))
}
