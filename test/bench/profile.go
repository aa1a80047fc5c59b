package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// profile drains a backlog, writes what pprof knows of the relay meanwhile, and tells
// which of Postgres' processes took how long for an event.
func (b *bench) profile(ctx context.Context) (err error) {
	r := newReceiver()
	defer r.Close()
	admin, err := freeAddress()
	if err != nil {
		return err
	}
	config := destinationTo(r.URL, "") + fmt.Sprintf("admin: { listen: %q, token: %q }\n", admin, profileToken)
	s, err := b.start(ctx, "profile", config)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	if err := s.end(); err != nil {
		return err
	}
	if err := backlog(ctx, s.url, b.events); err != nil {
		return err
	}
	end, err := s.flushed(ctx)
	if err != nil {
		return err
	}
	before, err := b.postgresProcesses()
	if err != nil {
		return err
	}
	if err := s.launch(config); err != nil {
		return err
	}
	if err := reach(r, 1); err != nil {
		return err
	}
	began := time.Now()
	takers, profiling := errgroup.WithContext(ctx)
	seconds := max(2, b.events/15_000) // it drains for longer
	for name, path := range map[string]string{"cpu": "profile?seconds=" + strconv.Itoa(seconds), "allocs": "allocs?seconds=" + strconv.Itoa(seconds)} {
		takers.Go(func() error {
			return saveProfile(profiling, "http://"+admin+"/debug/pprof/"+path, filepath.Join(b.profiles, name+".pprof"))
		})
	}
	if err := takers.Wait(); err != nil {
		return err
	}
	if err := reach(r, b.events); err != nil {
		return err
	}
	if err := s.confirmed(ctx, end); err != nil {
		return err
	}
	fmt.Printf("drained %d events, %.0f a second; cpu.pprof and allocs.pprof are in %s\n", b.events, float64(b.events)/time.Since(began).Seconds(), b.profiles)
	after, err := b.postgresProcesses()
	if err != nil {
		return err
	}
	for name, used := range after {
		if used -= before[name]; used > 0 {
			fmt.Printf("  %5.1f µs an event: postgres %s\n", float64(used.Microseconds())/float64(b.events), name)
		}
	}
	return nil
}

const profileToken = "of-the-bench-of-the-bench-of-the-bench"

func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func saveProfile(ctx context.Context, url, file string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+profileToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, response.Body)
	return firstError(err, out.Close())
}
