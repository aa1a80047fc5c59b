package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// program is the path of the binary under test, built once by TestMain.
var program string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cdc-relay-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "cdc-relay")
	args := []string{"build", "-o", program}
	if os.Getenv("CDC_RELAY_TEST_RACE") != "" {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "../../cmd/cdc-relay")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		return 1
	}
	return database.Run(m)
}

const secret = "whsec_c2VjcmV0IG9mIHRoZSBlbmQgdG8gZW5kIHRlc3Rz"

// bundle is what one test works with: a database, a receiver and a config file.
type bundle struct {
	*database.Database
	receiver *receiver
	config   string
}

// setup makes the bundle of a test. extra is appended to the config file.
func setup(t *testing.T, extra string) *bundle {
	t.Helper()
	b := &bundle{Database: database.New(t), receiver: newReceiver(t)}
	b.configure(t, b.destination("main", b.receiver.URL)+extra)
	return b
}

// destination is a destinations section with one entry.
func (b *bundle) destination(name, url string) string {
	return fmt.Sprintf(`
destinations:
  - name: %s
    url: %s
    secrets: [ %s ]
    allow_private_networks: true
`, name, url, secret)
}

func (b *bundle) configure(t *testing.T, rest string) {
	t.Helper()
	b.config = filepath.Join(t.TempDir(), "cdc-relay.yaml")
	text := fmt.Sprintf("database: { url: %q }\nslot: { name: %s, publication: %s }\nlog: { level: debug }\n%s", b.URL, b.Name, b.Name, rest)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs one command to its end.
func (b *bundle) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return command(t, append([]string{"--config", b.config}, args...)...)
}

func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatalf("run %v: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// background starts one command and doesn't wait for it.
func (b *bundle) background(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, append([]string{"--config", b.config}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return cmd
}

// relay is a running process of the program.
type relay struct {
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{}
}

// start starts `cdc-relay run`; when the test ends it is killed if still there.
func (b *bundle) start(t *testing.T) *relay {
	t.Helper()
	r := &relay{log: &logBuffer{}, done: make(chan struct{})}
	r.cmd = exec.Command(program, "--config", b.config, "run")
	r.cmd.Stderr = r.log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.cmd.Wait()
		close(r.done)
	}()
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("the relay's log:\n%s", r.log.tail(60))
		}
	})
	return r
}

func (r *relay) kill() {
	r.cmd.Process.Kill()
	<-r.done
}

// stop ends the relay by SIGTERM and wants exit code 0.
func (r *relay) stop(t *testing.T) {
	t.Helper()
	r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.done:
	case <-time.After(60 * time.Second):
		t.Fatal("the relay didn't stop within a minute of SIGTERM")
	}
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		t.Fatalf("exit code %d after SIGTERM, want 0", code)
	}
}

// logBuffer keeps what the relay logs.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBuffer) tail(lines int) string {
	all := strings.Split(b.String(), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// request is what a receiver got.
type request struct {
	at     time.Time
	header http.Header
	body   string
}

func (r request) id() string { return r.header.Get("Idempotency-Key") }

// receiver records what arrives, verifies it by the Standard Webhooks library,
// and answers as the test says.
type receiver struct {
	URL    string
	t      *testing.T
	mu     sync.Mutex
	got    []request
	ok     []request // those that were answered 2xx
	bad    []string
	answer func(http.ResponseWriter, request)
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t}
	server := httptest.NewServer(r)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	r.URL = server.URL + "/hooks"
	return r
}

// answering sets how requests are answered; without it the answer is 200.
func (r *receiver) answering(answer func(http.ResponseWriter, request)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, h *http.Request) {
	body, err := io.ReadAll(h.Body)
	if err != nil {
		return // the relay was killed in the middle
	}
	verifier, err := webhook.NewWebhook(secret)
	if err != nil {
		r.t.Error(err)
		return
	}
	got := request{at: time.Now(), header: h.Header.Clone(), body: string(body)}
	verified := verifier.Verify(body, h.Header)
	r.mu.Lock()
	r.got = append(r.got, got)
	if verified != nil {
		r.bad = append(r.bad, got.id()+": "+verified.Error())
	}
	answer := r.answer
	r.mu.Unlock()
	answered := &answerWriter{ResponseWriter: w}
	if answer != nil {
		answer(answered, got)
	}
	if !answered.spoiled && answered.status < 300 {
		r.mu.Lock()
		r.ok = append(r.ok, got)
		r.mu.Unlock()
	}
}

// answerWriter tells what a test answered.
type answerWriter struct {
	http.ResponseWriter
	status  int
	spoiled bool // answered in a way that is no acknowledgement, whatever its status
}

func (w *answerWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// accepted gives the requests that were answered 2xx.
func (r *receiver) accepted() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.ok...)
}

func (r *receiver) requests() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.got...)
}

func (r *receiver) badSignatures() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.bad...)
}

// await waits until n requests came.
func (r *receiver) await(n int) []request {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d requests", n), func() bool { return len(r.requests()) >= n })
	return r.requests()
}

// eventually waits for a condition that other processes bring about.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute in vain for %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// confirmed waits until the slot's confirmed position has reached the end of
// everything written so far.
func (b *bundle) confirmed(t *testing.T) {
	t.Helper()
	end := database.One[string](t, b.Database, `SELECT pg_current_wal_flush_lsn()::text`)
	eventually(t, "confirmation of "+end, func() bool {
		return database.One[bool](t, b.Database, `SELECT coalesce(bool_and(confirmed_flush_lsn >= $2::pg_lsn), false)
			FROM pg_replication_slots WHERE slot_name = $1`, b.Name, end)
	})
}

// forget lets go of what came so far.
func (r *receiver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.ok = nil, nil
}

// dropSlot drops the slot, whoever streams it and comes back to it.
func (b *bundle) dropSlot(t *testing.T) {
	t.Helper()
	eventually(t, "the slot to be dropped", func() bool {
		_, _ = b.Conn.Exec(t.Context(), `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, b.Name)
		_, err := b.Conn.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, b.Name)
		return err == nil
	})
}
