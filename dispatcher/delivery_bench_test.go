package dispatcher_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/dispatcher"
	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// answersAtOnce is a receiver without a network.
type answersAtOnce struct{}

func (answersAtOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: r}, r.Body.Close()
}

// BenchmarkDelivery counts what the dispatcher allocates for one event, from its being
// routed to its outcome; the network's part, and Postgres', is not in it.
func BenchmarkDelivery(b *testing.B) {
	signer, err := signature.NewSigner(signature.Standard(), []string{"whsec_YmVuY2ggc2VjcmV0IGJlbmNoIHNlY3JldA=="})
	if err != nil {
		b.Fatal(err)
	}
	sender := dispatcher.NewHTTPSender(dispatcher.HTTPOptions{
		URL: "http://127.0.0.1/hooks", UserAgent: "cdc-relay/bench", Signer: signer, Transport: answersAtOnce{},
		Timeout: 10 * time.Second, MinWait: time.Millisecond, MaxWait: time.Second, Now: time.Now,
	})
	outcomes := make(chan outbox.Outcome, 1000)
	d, err := dispatcher.New(dispatcher.Options{
		Destinations: []dispatcher.Destination{{
			Name: "main", Match: dispatcher.Match{EventTypes: []string{"*"}, AggregateTypes: []string{"*"}}, Sender: sender, Concurrency: 64, Attempts: 3,
			Breaker: dispatcher.Breaker{FailureShare: 0.5, MinRounds: 20, Window: 10 * time.Second, Pause: 30 * time.Second},
		}},
		Outcomes: outcomes, WindowEvents: 8192, WindowBytes: 32 << 20, Now: time.Now, Log: zerolog.Nop(),
	})
	if err != nil {
		b.Fatal(err)
	}
	events := make(chan *outbox.Event, 1000)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(context.Background(), events) }()
	payload := make([]byte, 300)
	made := make([]*outbox.Event, 1000)
	for i := range made {
		made[i] = &outbox.Event{
			Position: outbox.Position{Commit: 1 << 30, Index: uint32(i)}, ID: fmt.Sprintf("5b2a52c2-0000-0000-0000-%012d", i), AggregateType: "order", AggregateID: fmt.Sprint(i),
			HasAggregate: true, EventType: "order.created", Payload: payload, CommitTime: time.Now(),
		}
	}
	b.ReportAllocs()
	go func() {
		for i := range b.N {
			events <- made[i%len(made)]
		}
		close(events)
	}()
	for range b.N {
		<-outcomes
	}
	b.StopTimer()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}
