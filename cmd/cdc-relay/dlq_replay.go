package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/cdc-relay/cdc-relay/internal/deadletter"
)

const (
	replayBatch = 1000 // dead letters scheduled in one transaction
	replayAhead = 4000 // the most that are scheduled and not sent
)

// replayRun schedules dead letters batch by batch and follows them.
type replayRun struct {
	letters *deadletter.Store
	running func(context.Context) bool // whether a relay runs
	filter  deadletter.Filter
	id      string
	detach  bool
	out     io.Writer

	total     int
	scheduled int
	progress  deadletter.Progress
}

// replayResult is what the command prints at its end.
type replayResult struct {
	ReplayID string `json:"replay_id"`
	deadletter.Progress
	Interrupted bool `json:"interrupted,omitempty"`
}

func (r *replayRun) run(ctx context.Context) error {
	tallies, err := r.letters.Tallies(ctx, r.filter)
	if err != nil {
		return err
	}
	for _, t := range tallies {
		r.total += t.Count
	}
	show := newProgress(r.out, r.total)
	more := true
	told := false
	for {
		if more && r.progress.Scheduled < replayAhead {
			n, err := r.letters.Replay(ctx, r.filter, r.id, replayBatch)
			if err != nil {
				return err
			}
			r.scheduled += n
			more = n > 0
		}
		if r.progress, err = r.letters.Progress(ctx, r.id); err != nil {
			return err
		}
		show.set(r.scheduled - r.progress.Scheduled)
		if !more && (r.detach || r.progress.Scheduled == 0) {
			show.finish()
			return nil
		}
		if more && r.progress.Scheduled < replayAhead {
			continue
		}
		if !told && !r.running(ctx) {
			told = true
			fmt.Fprintln(r.out, "no relay is running; what is scheduled is sent as soon as one does")
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// finishReplay prints how far the replay came, also when it was interrupted.
func (g *globals) finishReplay(r *replayRun, err error) error {
	interrupted := errors.Is(err, context.Canceled)
	if err != nil && !interrupted {
		return err
	}
	result := replayResult{ReplayID: r.id, Progress: r.progress, Interrupted: interrupted}
	printed := g.print(result, func(w io.Writer) {
		fmt.Fprintf(w, "replay %s: %d delivered, %d dead again, %d still scheduled\n", r.id, r.progress.Delivered, r.progress.Dead, r.progress.Scheduled)
		if interrupted {
			fmt.Fprintln(w, "interrupted: what is scheduled is sent all the same; run the command again for the rest")
		}
	})
	if printed != nil {
		return printed
	}
	if interrupted || r.progress.Dead > 0 {
		return quietError{exitFailed}
	}
	return nil
}

// progress is a bar on a terminal and plain lines elsewhere.
type progress struct {
	out   io.Writer
	total int
	bar   *progressbar.ProgressBar
	told  time.Time
}

func newProgress(out io.Writer, total int) *progress {
	p := &progress{out: out, total: total}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(out), progressbar.OptionShowCount(), progressbar.OptionClearOnFinish())
	}
	return p
}

func (p *progress) set(done int) {
	if p.bar != nil {
		_ = p.bar.Set(done) // a bar that can't be drawn is no reason to stop
		return
	}
	if now := time.Now(); now.Sub(p.told) >= 2*time.Second {
		p.told = now
		fmt.Fprintf(p.out, "%d of %d\n", done, p.total)
	}
}

func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
