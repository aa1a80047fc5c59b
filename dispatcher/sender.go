package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// Round is one go at a delivery: as many attempts as it may make at once.
type Round struct {
	Event    *outbox.Event
	First    int // number of its first attempt, from 1
	Attempts int // the most it may make
	ReplayID string
}

// Result is what a round came to.
type Result struct {
	Verdict  Verdict
	Attempts []outbox.Attempt

	// Defect says why the event can't be sent at all. Nothing was attempted.
	Defect string
}

// Sender makes the attempts of a round. It returns an error only when ctx ended
// before the outcome was known.
type Sender interface {
	Send(ctx context.Context, round Round) (Result, error)
}

// HTTPOptions are what a destination of kind http is made of.
type HTTPOptions struct {
	URL           string
	ContentType   string // "" for that of the payload column
	UserAgent     string
	Signer        *signature.Signer // nil sends unsigned
	Transport     http.RoundTripper
	Timeout       time.Duration // over a whole attempt: connecting, TLS, headers and body
	MinWait       time.Duration // between the attempts of a round
	MaxWait       time.Duration
	MaxRetryAfter time.Duration // the most of a Retry-After that is heeded
	Now           func() time.Time
	Tracer        trace.Tracer // nil traces nothing, and sends the row's own traceparent on
}

// HTTPSender sends events as signed POST requests. It is safe for concurrent use.
type HTTPSender struct {
	options HTTPOptions
	request *http.Request // what all have in common
	defect  error         // of that
	client  *retryablehttp.Client
}

// answerKept is how much of an answer is recorded, answerRead how much is read at
// most: what lies between frees the connection for the next request.
const (
	answerKept = 2 << 10
	answerRead = 64 << 10
)

// NewHTTPSender returns a sender for one destination.
func NewHTTPSender(o HTTPOptions) *HTTPSender {
	s := &HTTPSender{options: o}
	s.request, s.defect = http.NewRequest(http.MethodPost, o.URL, nil)
	s.client = &retryablehttp.Client{
		HTTPClient: &http.Client{
			Transport: attempting{s},
			CheckRedirect: func(*http.Request, []*http.Request) error {
				// Following one would turn the POST into a GET without its body.
				return http.ErrUseLastResponse
			},
		},
		RetryMax:     1 << 20, // the exchange counts its own attempts
		CheckRetry:   checkRetry,
		Backoff:      s.backoff,
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	return s
}

// exchange is what the parts of one round share. It travels in the request's
// context and belongs to the goroutine that sends.
type exchange struct {
	sender   *HTTPSender
	round    Round
	header   http.Header // of the event
	attempts []outbox.Attempt
	started  time.Time
	verdict  Verdict
	span     trace.Span // of the attempt under way; nil when nothing is traced
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// Send makes the attempts of a round through go-retryablehttp. Each attempt is
// signed anew; the id and the body stay the same.
func (s *HTTPSender) Send(ctx context.Context, round Round) (Result, error) {
	if s.defect != nil {
		return Result{Defect: fmt.Sprintf("build request: %v", s.defect)}, nil
	}
	header, err := eventHeader(round.Event, s.options.ContentType, s.options.UserAgent)
	if err != nil {
		return Result{Defect: err.Error()}, nil
	}
	x := &exchange{sender: s, round: round, header: header, started: s.options.Now()}
	request := &retryablehttp.Request{Request: s.request.WithContext(context.WithValue(ctx, exchangeKey{}, x))}
	if err := request.SetBody(round.Event.Payload); err != nil {
		return Result{Defect: fmt.Sprintf("build request: %v", err)}, nil
	}
	// The answer was read and closed by checkRetry, and the error is kept in the
	// attempt, so all that is left to learn here is whether ctx ended the round.
	response, err := s.client.Do(request)
	if response != nil {
		response.Body.Close()
	}
	if err != nil && ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	return Result{Verdict: x.verdict, Attempts: x.attempts}, nil
}

// attempting is the transport of one attempt at a time: it signs, sets the headers, and
// bounds the time, the reading of the answer included. All that is done here rather than
// by http.Client, which would copy the headers and set a timer of its own.
//
// It also hides the transport's CloseIdleConnections: retryablehttp calls it whenever a
// request is given up, which would cut the connections of all the other lanes just when
// the receiver is in trouble.
type attempting struct{ sender *HTTPSender }

func (a attempting) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	x.started = a.sender.options.Now()
	ctx, cancel := context.WithTimeout(r.Context(), a.sender.options.Timeout)
	attempt := r.WithContext(ctx)
	attempt.Header = x.attemptHeader(r)
	response, err := a.sender.options.Transport.RoundTrip(attempt)
	if err != nil {
		cancel()
		return nil, err
	}
	response.Body = boundedBody{response.Body, cancel}
	return response, nil
}

// boundedBody is the body of an answer, whose closing ends the attempt's context.
type boundedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b boundedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// attemptHeader makes the headers of the next attempt. The first takes the event's; each
// later one takes a copy, since the transport may still be reading the first's.
func (x *exchange) attemptHeader(r *http.Request) http.Header {
	header := x.header
	if len(x.attempts) > 0 {
		header = header.Clone()
	}
	// What http.Client makes of a user in the URL.
	if authorization, set := r.Header["Authorization"]; set && header["Authorization"] == nil {
		header["Authorization"] = authorization
	}
	values := headerValues{room: make([]string, 0, 5)}
	header["Cdc-Relay-Attempt"] = values.of(strconv.Itoa(x.round.First + len(x.attempts)))
	if x.round.ReplayID != "" {
		header["Cdc-Relay-Replay"] = values.of(x.round.ReplayID)
	}
	if o := x.sender.options; o.Signer != nil {
		for _, h := range o.Signer.Sign(signature.Message{
			ID: signature.EscapeID(escapeValue(x.round.Event.ID)), Time: x.started,
			Method: r.Method, URL: o.URL, Body: x.round.Event.Payload,
		}) {
			header[h.Name] = values.of(h.Value)
		}
	}
	x.begin(r.Context(), header)
	return header
}

// checkRetry runs after each attempt: it reads the answer, records the attempt
// and says whether another follows.
func checkRetry(ctx context.Context, response *http.Response, err error) (bool, error) {
	x := exchangeOf(ctx)
	attempt := outbox.Attempt{At: x.started}
	x.verdict = Verdict{}
	if err == nil {
		var answer []byte
		answer, err = readAnswer(response.Body)
		attempt.Status = response.StatusCode
		attempt.Answer = printable(answer)
		if err == nil {
			o := x.sender.options
			x.verdict = Judge(response.StatusCode, response.Header, o.Now(), o.MaxRetryAfter)
		}
	}
	attempt.Duration = x.sender.options.Now().Sub(x.started)
	if err != nil {
		attempt.Error = describeError(err)
	}
	x.end(attempt)
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	x.attempts = append(x.attempts, attempt)
	// A Retry-After concerns the whole destination, so it ends the round.
	over := x.verdict.Delivered || x.verdict.Permanent || x.verdict.RetryAfter > 0 || len(x.attempts) >= x.round.Attempts
	return !over, nil
}

// errAnswerTooLong fails an attempt whatever its status: what acknowledges a webhook
// is short, and what isn't came from something else, as a page for browsers does.
var errAnswerTooLong = fmt.Errorf("the answer is longer than %d KiB", answerRead>>10)

// readAnswer reads and closes the body of an answer. One that is too long is
// closed with its connection rather than read to its end.
func readAnswer(body io.ReadCloser) ([]byte, error) {
	defer body.Close()
	kept, err := io.ReadAll(io.LimitReader(body, answerKept))
	if err != nil || len(kept) < answerKept {
		return kept, err
	}
	rest, err := io.Copy(io.Discard, io.LimitReader(body, answerRead-answerKept+1))
	if err == nil && rest > answerRead-answerKept {
		err = errAnswerTooLong
	}
	return kept, err
}

// printable makes text out of what a receiver answered, fit for a text column.
func printable(answer []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(answer), "\uFFFD"), "\x00", "\uFFFD")
}

// describeError says what went wrong without the URL, which may hold a secret in
// its query.
func describeError(err error) string {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	var slow interface{ Timeout() bool }
	if errors.As(err, &slow) && slow.Timeout() {
		return "time-out: " + printable([]byte(err.Error()))
	}
	return printable([]byte(err.Error()))
}

// backoff doubles the wait with each attempt and spreads it over its upper half,
// so that lanes which failed together don't come back together.
func (s *HTTPSender) backoff(_, _ time.Duration, attempt int, _ *http.Response) time.Duration {
	wait := s.options.MaxWait
	if attempt < 16 {
		wait = min(s.options.MinWait<<attempt, s.options.MaxWait)
	}
	return wait/2 + rand.N(wait/2+1)
}
