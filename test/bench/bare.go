package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// What the relay is measured against: the same requests without any guarantee, and the
// same work of Postgres without a relay.

// bare is what a bare client came to.
type bare struct {
	rate float64
	cpu  time.Duration
}

// bareClient runs this program as a bare client, in a process of its own as the relay
// is, against a receiver of its own.
func (b *bench) bareClient(ctx context.Context, requests int) (bare, error) {
	r := newReceiver()
	defer r.Close()
	self, err := os.Executable()
	if err != nil {
		return bare{}, err
	}
	cmd := exec.CommandContext(ctx, self, "-client", r.URL, "-events", strconv.Itoa(requests))
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return bare{}, fmt.Errorf("the bare client: %w", err)
	}
	first, last := r.span()
	return bare{float64(r.count()) / last.Sub(first).Seconds(), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

// sendBare posts signed requests over 64 connections, and looks at no more than the
// answers' status.
func sendBare(ctx context.Context, url string, requests int) error {
	const connections = 64
	signer, err := signature.NewSigner(signature.Standard(), []string{secret})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	var left atomic.Int64
	left.Store(int64(requests))
	senders, ctx := errgroup.WithContext(ctx)
	for range connections {
		senders.Go(func() error {
			for left.Add(-1) >= 0 {
				if err := postBare(ctx, client, url, signer); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return senders.Wait()
}

func postBare(ctx context.Context, client *http.Client, url string, signer *signature.Signer) error {
	body, id := []byte(payload), uuid.NewString()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", id)
	for _, h := range signer.Sign(signature.Message{ID: id, Time: time.Now(), Body: body}) {
		request.Header.Set(h.Name, h.Value)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered %s", response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// receiveBare streams a slot to a position and confirms it, as pg_recvlogical does.
func (s *subject) receiveBare(ctx context.Context, slot, publication, until string) error {
	end, err := pglogrepl.ParseLSN(until)
	if err != nil {
		return err
	}
	config, err := pgconn.ParseConfig(s.url)
	if err != nil {
		return err
	}
	config.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	options := pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", fmt.Sprintf("publication_names '%s'", publication)}}
	if err := pglogrepl.StartReplication(ctx, conn, slot, 0, options); err != nil {
		return err
	}
	told := time.Now()
	for at := pglogrepl.LSN(0); at < end; {
		message, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok {
			continue
		}
		switch data.Data[0] {
		case pglogrepl.XLogDataByteID:
			x, err := pglogrepl.ParseXLogData(data.Data[1:])
			if err != nil {
				return err
			}
			at = max(at, x.WALStart)
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data.Data[1:])
			if err != nil {
				return err
			}
			at = max(at, k.ServerWALEnd)
		}
		if time.Since(told) > time.Second || at >= end {
			told = time.Now()
			if err := pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: at}); err != nil {
				return err
			}
		}
	}
	return nil
}

// updateBare marks all rows as processed, a thousand in a statement.
func (s *subject) updateBare(ctx context.Context) error {
	if _, err := s.conn.Exec(ctx, `CREATE TEMP TABLE ordered AS SELECT id, row_number() OVER (ORDER BY created_at) / 1000 AS batch FROM outbox_events; CREATE INDEX ON ordered (batch); ANALYZE ordered`); err != nil {
		return err
	}
	for batch := 0; ; batch++ {
		tag, err := s.conn.Exec(ctx, `UPDATE outbox_events o SET processed_at = now() FROM ordered WHERE ordered.batch = $1 AND o.id = ordered.id`, batch)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
	}
}

// polled has polling relays send what is made unprocessed again, and gives their rate.
func (s *subject) polled(ctx context.Context, destination string, workers, events int) (float64, error) {
	for _, statement := range []string{
		`CREATE INDEX IF NOT EXISTS unprocessed ON outbox_events (created_at) WHERE processed_at IS NULL`,
		fmt.Sprintf(`UPDATE outbox_events SET processed_at = NULL WHERE id IN (SELECT id FROM outbox_events LIMIT %d)`, events),
		`VACUUM ANALYZE outbox_events`,
	} {
		if _, err := s.conn.Exec(ctx, statement); err != nil {
			return 0, err
		}
	}
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	pollers, working := errgroup.WithContext(working)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}}
	began := time.Now()
	for range workers {
		p := &poller{url: s.url, destination: destination, interval: 10 * time.Millisecond, client: client}
		pollers.Go(func() error { return p.run(working) })
	}
	err := s.until(ctx, "the polling relays", `SELECT NOT EXISTS (SELECT FROM outbox_events WHERE processed_at IS NULL)`)
	took := time.Since(began)
	cancel()
	return float64(events) / took.Seconds(), errors.Join(err, pollers.Wait())
}

// postgresCPU is what the server's processes have used, those that have ended included.
func (b *bench) postgresCPU() (all time.Duration, err error) {
	processes, err := b.postgresProcesses()
	for _, used := range processes {
		all += used
	}
	return all, err
}

// postgresProcesses is what each of the server's processes has used, by what it calls
// itself. Those that have ended count with the postmaster.
func (b *bench) postgresProcesses() (map[string]time.Duration, error) {
	const ticksPerSecond = 100 // USER_HZ, everywhere on Linux
	pid, err := b.server.PID()
	if err != nil {
		return nil, err
	}
	postmaster := strconv.Itoa(pid)
	used := make(map[string]time.Duration)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		// pid (name) state ppid …; the name may hold anything but its last parenthesis.
		pid, _, _ := strings.Cut(string(text), " ")
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		name, counted := "postmaster, and what has ended", fields[11:15] // utime, stime, and the children's
		switch {
		case pid == postmaster:
		case fields[1] == postmaster:
			title, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			name, counted = strings.TrimRight(string(title), "\x00 "), fields[11:13]
		default:
			continue
		}
		for _, field := range counted {
			n, _ := strconv.ParseInt(field, 10, 64)
			used[name] += time.Duration(n) * time.Second / ticksPerSecond
		}
	}
	return used, nil
}
