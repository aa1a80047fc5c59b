// Command cdc-relay streams the inserts of a Postgres outbox table to HTTP
// receivers.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/cdc-relay/cdc-relay/internal/mend"
	"github.com/cdc-relay/cdc-relay/internal/provision"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // usage, config, or a setting of Postgres that a person must change
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if os.Getenv("GOGC") == "" {
		// What lives is a window of events, small beside what passes through: collecting
		// half as often costs some megabytes and saves a tenth of the processor's time.
		debug.SetGCPercent(200)
	}
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and gives the process's exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	var quiet quietError
	if errors.As(err, &quiet) {
		return quiet.code
	}
	err = provision.Explain(err, provision.Options{}) // whatever the command, a missing right has its mend
	fmt.Fprintf(stderr, "Error: %v\n", err)
	if try := mend.Of(err); try != "" {
		fmt.Fprintf(stderr, "Try:   %s\n", try)
		return exitUsage
	}
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// usageError is a command line that doesn't fit the command.
type usageError struct{ error }

// quietError ends the process with a code after the command has said why.
type quietError struct{ code int }

func (e quietError) Error() string { return fmt.Sprintf("exit code %d", e.code) }
