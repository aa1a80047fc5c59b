package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// slowHandlers measures how long partners wait for their answer while every handler
// takes five seconds, beside a run in which nothing is processed.
func (b *bench) slowHandlers(ctx context.Context) error {
	const rate, length = 1000, 15 * time.Second
	idle, err := b.inbound(ctx, "bench_inbox_idle", "", rate, length)
	if err != nil {
		return err
	}
	busy, err := b.inbound(ctx, "bench_inbox_busy", "\n  processing: { handler: { function: public.slow } }", rate, length)
	if err != nil {
		return err
	}
	fmt.Printf("\nInbound webhooks, %d/s for %s:\n", rate, length)
	fmt.Printf("  answer, nothing processed     p50 %s  p99 %s\n", quantile(idle.answers, 0.5), quantile(idle.answers, 0.99))
	fmt.Printf("  answer, handlers sleep 5 s    p50 %s  p99 %s (goal: under 25ms), %d being processed\n",
		quantile(busy.answers, 0.5), quantile(busy.answers, 0.99), busy.processing)
	fmt.Printf("  p99 sleeping / idle           %.2f\n", float64(quantile(busy.answers, 0.99))/float64(quantile(idle.answers, 0.99)))
	fmt.Printf("  answered 200 and stored       %d and %d\n", len(busy.answers), busy.stored)
	return nil
}

// inboundFigures are of one run.
type inboundFigures struct {
	answers    []time.Duration // from when each was due to be sent, sorted
	stored     int
	processing int
}

func (b *bench) inbound(ctx context.Context, name, processing string, rate int, length time.Duration) (f inboundFigures, err error) {
	s, err := b.database(ctx, name)
	if err != nil {
		return f, err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return f, err
	}
	address := listener.Addr().String()
	listener.Close()
	section := fmt.Sprintf("inbox:\n  listen: %q\n  partners: [ { name: shop, preset: standard, secrets: [ %s ], entity_key: [ \"json:order\" ] } ]%s\n", address, secret, processing)
	if err := s.launch(section); err != nil {
		return f, err
	}
	if err := awaitListener(address); err != nil {
		return f, err
	}
	if _, err := s.conn.Exec(ctx, `CREATE FUNCTION slow(e webhook_inbox) RETURNS text LANGUAGE sql AS 'SELECT NULL::text FROM pg_sleep(5)'`); err != nil {
		return f, err
	}
	if f.answers, err = postSteadily("http://"+address+"/webhooks/shop", rate, length); err != nil {
		return f, err
	}
	err = s.conn.QueryRow(ctx, `SELECT count(*), (SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()) FROM webhook_inbox`).
		Scan(&f.stored, &f.processing)
	return f, err
}

func awaitListener(address string) error {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			return conn.Close()
		}
	}
	return errors.New("the inbox doesn't listen")
}

// postSteadily posts signed webhooks at a rate that slow answers don't slow down.
func postSteadily(url string, rate int, length time.Duration) ([]time.Duration, error) {
	signer, err := webhook.NewWebhook(secret)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 10 * time.Second}
	var posting sync.WaitGroup
	var mu sync.Mutex
	var answers []time.Duration
	var failed error
	began := time.Now()
	for i := range rate * int(length/time.Second) {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(rate))
		time.Sleep(time.Until(due))
		posting.Go(func() {
			err := postOne(client, signer, url, i)
			took := time.Since(due)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return
			}
			answers = append(answers, took)
		})
	}
	posting.Wait()
	slices.Sort(answers)
	return answers, failed
}

func postOne(client *http.Client, signer *webhook.Webhook, url string, i int) error {
	id, now := uuid.NewString(), time.Now()
	body := fmt.Sprintf(`{"type":"order.changed","order":"%d","data":%s}`, i%1000, payload)
	signature, err := signer.Sign(id, now, []byte(body))
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header = http.Header{
		"Content-Type": {"application/json"}, "Webhook-Id": {id}, "Webhook-Timestamp": {fmt.Sprint(now.Unix())}, "Webhook-Signature": {signature},
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the inbox answered %d", response.StatusCode)
	}
	return nil
}
