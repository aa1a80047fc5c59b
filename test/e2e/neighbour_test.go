package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/test/database"
)

// TestG6OneBadReceiverHarmsNobodyElse: while one destination hangs, another gets
// everything, though it is many times what the window holds, and no WAL is held
// back by what waits.
func TestG6OneBadReceiverHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	b := setup(t, "")
	hanging := newReceiver(t)
	release := make(chan struct{})
	hanging.answering(func(http.ResponseWriter, request) { <-release })
	t.Cleanup(func() { close(release) })
	b.configure(t, fmt.Sprintf(`
destinations:
  - { name: good, url: %q, secrets: [ %s ], allow_private_networks: true }
  - { name: hanging, url: %q, secrets: [ %s ], allow_private_networks: true, timeout: 5s, concurrency: 8 }
window: { events: 400 }
circuit_breaker: { failure_share: 0 }
`, b.receiver.URL, secret, hanging.URL, secret))
	b.run(t, "init")
	b.start(t)
	began := time.Now()
	committed := write(t, b, 4000, 200)
	b.receiver.await(len(committed))
	t.Logf("the good destination had all %d events after %s", len(committed), time.Since(began).Round(10*time.Millisecond))
	judge(t, committed, b.receiver.requests())
	b.confirmed(t)
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters WHERE destination = 'hanging' AND state = 'SCHEDULED'`); n < len(committed)*9/10 {
		t.Errorf("%d events are parked for the hanging destination", n)
	}
}

// TestParkingMaxRows: too many parked events stop the reading, loudly, until they
// have become fewer.
func TestParkingMaxRows(t *testing.T) {
	t.Parallel()
	b := setup(t, "parking: { max_rows: 50 }\n")
	b.run(t, "init")
	b.run(t, "destination", "pause", "main")
	relay := b.start(t)
	eventually(t, "the pause to be noticed", func() bool { return strings.Contains(relay.log.String(), `"paused":true`) })
	b.insertNumbers(t, 1, 60)
	eventually(t, "the reading to stop", func() bool { return strings.Contains(relay.log.String(), `"reading_stopped":true`) })
	b.insertNumbers(t, 61, 100)
	time.Sleep(time.Second)
	if n := database.One[int](t, b.Database, `SELECT count(*) FROM cdc_relay.dead_letters`); n != 60 {
		t.Errorf("%d events are parked, want the first 60 only", n)
	}
	b.run(t, "destination", "resume", "main")
	b.receiver.await(100)
	wantNumbers(t, b.receiver.requests(), 1, 100)
}

// TestProxyFromTheEnvironment: deliveries go through the proxy that HTTP_PROXY
// names, though its address is a private one.
func TestProxyFromTheEnvironment(t *testing.T) {
	b := setup(t, "")
	target, err := url.Parse(b.receiver.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Host = target.Host
		r.Out.Header.Set("X-Went-Through", r.In.URL.Host)
	}})
	t.Cleanup(proxy.Close)
	t.Setenv("HTTP_PROXY", proxy.URL)
	b.configure(t, strings.Replace(b.destination("main", "http://receiver.example/hooks"), "allow_private_networks: true", "", 1))
	b.run(t, "init")
	b.start(t)
	b.insertNumbers(t, 1, 1)
	if got := b.receiver.await(1)[0].header.Get("X-Went-Through"); got != "receiver.example" {
		t.Errorf("the request came through %q", got)
	}
}
