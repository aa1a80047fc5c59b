// Package alert tells people of dead letters and the like: a POST to each target,
// grouped by destination, at most one a minute for each.
//
// Tell never blocks; Run is one goroutine, and an alert that fails is tried again
// with backoff while further notices are only counted.
package alert

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// Target is where alerts go.
type Target struct {
	URL        string
	Type       Type
	RoutingKey string            // for PagerDuty
	Signer     *signature.Signer // nil sends unsigned
	Transport  http.RoundTripper
}

// Notice is one dead letter, or something else of its Kind.
type Notice struct {
	Kind      Kind
	Subject   string // the destination, the partner of an inbound event, the slot
	EventID   string
	EventType string
	Reason    string
	Status    int
}

// Group is what one alert tells of: the dead letters of one subject since the
// last alert about it.
type Group struct {
	Subject string
	Count   int
	Since   time.Time
	Last    Notice
}

// Summary is the group in one sentence.
func (g Group) Summary() string {
	return fmt.Sprintf("cdc-relay: %d %s at %s, the last for %s: %s", g.Count, g.Last.Kind.words().noun, g.Subject, g.Last.EventID, g.Last.Reason)
}

// Options are what a Notifier is made of.
type Options struct {
	Targets []Target
	Every   time.Duration // the least time between two alerts about one subject
	Now     func() time.Time
	Log     zerolog.Logger
}

// Notifier groups notices and sends them.
type Notifier struct {
	options Options
	client  func(Target) *retryablehttp.Client
	wake    chan struct{}

	mu      sync.Mutex
	waiting map[topic]*Group
	sent    map[topic]time.Time // when its last alert went out
}

// topic is what notices are grouped by.
type topic struct {
	kind    Kind
	subject string
}

// New returns a Notifier.
func New(o Options) *Notifier {
	return &Notifier{
		options: o, client: newClient, wake: make(chan struct{}, 1),
		waiting: make(map[topic]*Group), sent: make(map[topic]time.Time),
	}
}

func newClient(t Target) *retryablehttp.Client {
	return &retryablehttp.Client{
		HTTPClient:   &http.Client{Transport: t.Transport, Timeout: 10 * time.Second, CheckRedirect: refuseRedirect},
		RetryWaitMin: time.Second, RetryWaitMax: 30 * time.Second, RetryMax: 8,
		CheckRetry: retryUnlessAccepted, Backoff: retryablehttp.DefaultBackoff,
	}
}

func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func retryUnlessAccepted(ctx context.Context, r *http.Response, err error) (bool, error) {
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	return err != nil || r.StatusCode > 299, nil
}

// Tell takes note of something that people have to know of.
func (n *Notifier) Tell(notice Notice) {
	about := topic{notice.Kind, notice.Subject}
	n.mu.Lock()
	group := n.waiting[about]
	if group == nil {
		group = &Group{Subject: notice.Subject, Since: n.options.Now()}
		n.waiting[about] = group
	}
	group.Count++
	group.Last = notice
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run sends alerts until ctx ends.
func (n *Notifier) Run(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		for _, group := range n.due() {
			n.send(ctx, group)
		}
		select {
		case <-n.wake:
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// due takes the groups that may be told of now.
func (n *Notifier) due() []Group {
	n.mu.Lock()
	defer n.mu.Unlock()
	var groups []Group
	now := n.options.Now()
	for about, group := range n.waiting {
		if last, told := n.sent[about]; told && now.Sub(last) < n.options.Every {
			continue
		}
		n.sent[about] = now
		delete(n.waiting, about)
		groups = append(groups, *group)
	}
	return groups
}

func (n *Notifier) send(ctx context.Context, group Group) {
	var sending errgroup.Group
	for _, target := range n.options.Targets {
		sending.Go(func() error {
			if err := n.post(ctx, target, group); err != nil && ctx.Err() == nil {
				n.options.Log.Error().Err(err).Str(group.Last.Kind.words().subject, group.Subject).Int("count", group.Count).Msg("alert was not accepted")
			}
			return nil
		})
	}
	_ = sending.Wait() // each has told of its own error
}

func (n *Notifier) post(ctx context.Context, target Target, group Group) error {
	now := n.options.Now()
	body, err := target.body(group, now)
	if err != nil {
		return err
	}
	id := uuid.NewString()
	prepare := func(r *http.Request) error {
		r.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {id}}
		if target.Signer != nil {
			for _, h := range target.Signer.Sign(signature.Message{ID: id, Time: n.options.Now(), Method: http.MethodPost, URL: target.URL, Body: body}) {
				r.Header.Set(h.Name, h.Value)
			}
		}
		return nil
	}
	request, err := retryablehttp.NewRequestWithContext(ctx, http.MethodPost, target.URL, body)
	if err != nil {
		return fmt.Errorf("build alert: %w", err)
	}
	if err := prepare(request.Request); err != nil {
		return err
	}
	client := n.client(target)
	client.PrepareRetry = prepare
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("send alert: %w", err)
	}
	return response.Body.Close()
}
