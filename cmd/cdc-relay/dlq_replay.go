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

	"github.com/cdc-relay/cdc-relay/internal/operations"
)

// replayShow shows how far the sending again of dead letters is.
type replayShow struct {
	desk *operations.Desk
	ctx  context.Context // of the command
	out  io.Writer

	progress *progress
	told     bool // that no relay runs
}

func (s *replayShow) tell(r operations.LetterReplay) {
	if s.progress == nil {
		s.progress = newProgress(s.out, r.Total)
	}
	sent := r.Handed - r.Scheduled
	s.progress.set(sent)
	if sent >= r.Total {
		s.progress.finish()
	}
	if r.Scheduled > 0 && !s.told && !s.desk.Streamed(s.ctx) {
		s.told = true
		fmt.Fprintln(s.out, "no relay is running; what is scheduled is sent as soon as one does")
	}
}

// finishReplay prints how far the replay came, also when it was interrupted.
func (g *globals) finishReplay(r operations.LetterReplay, err error) error {
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	printed := g.print(r, func(w io.Writer) {
		fmt.Fprintf(w, "replay %s: %d delivered, %d dead again, %d still scheduled\n", r.ID, r.Delivered, r.Dead, r.Scheduled)
		if r.Interrupted {
			fmt.Fprintln(w, "interrupted: what is scheduled is sent all the same; run the command again for the rest")
		}
	})
	if printed != nil {
		return printed
	}
	if r.Interrupted || r.Dead > 0 {
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
