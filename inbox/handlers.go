package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// SQLHandler calls a SQL function with the event's row, in the event's transaction:
//
//	CREATE FUNCTION apply_webhook(event public.webhook_inbox) RETURNS text …
//
// It answers APPLIED (or NULL), DEFERRED or REJECTED, the last two with a reason after
// a colon if it likes. An error of the function is a failed attempt.
type SQLHandler struct {
	Function pgx.Identifier // schema and function
	Tables   Tables
}

// Handle implements Handler.
func (s SQLHandler) Handle(ctx context.Context, tx pgx.Tx, e Event) (Answer, error) {
	var text *string
	err := tx.QueryRow(ctx, `SELECT `+s.Function.Sanitize()+`(i)::text FROM `+s.Tables.Inbox.Sanitize()+` i WHERE i.id = $1`, e.ID).Scan(&text)
	if err != nil {
		return Answer{}, fmt.Errorf("call %s: %w", s.Function.Sanitize(), err)
	}
	if text == nil {
		return Answer{Verdict: Applied}, nil
	}
	verdict, reason, _ := strings.Cut(*text, ":")
	return Answer{Verdict(strings.ToUpper(strings.TrimSpace(verdict))), strings.TrimSpace(reason)}, nil
}

// HTTPHandler forwards events to the team's own service, signed by Standard Webhooks,
// with the inbox's id as idempotency key: since the service's effect is not part of
// the transaction, it may see an event twice.
type HTTPHandler struct {
	url    string
	client *http.Client
	signer *signature.Signer
	now    func() time.Time
}

// HTTPHandlerOptions are what an HTTPHandler is made of.
type HTTPHandlerOptions struct {
	URL       string
	Secrets   []string
	Timeout   time.Duration // over the whole exchange
	Transport http.RoundTripper
	Now       func() time.Time
}

// NewHTTPHandler checks the secrets and returns the handler.
func NewHTTPHandler(o HTTPHandlerOptions) (*HTTPHandler, error) {
	signer, err := signature.NewSigner(signature.Standard(), o.Secrets)
	if err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &HTTPHandler{
		url: o.URL, signer: signer, now: o.Now,
		client: &http.Client{
			Transport: o.Transport, Timeout: o.Timeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// Handle implements Handler: 2xx is applied, 409 and 425 come too early, and all
// else has failed.
func (f *HTTPHandler) Handle(ctx context.Context, _ pgx.Tx, e Event) (Answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, bytes.NewReader(e.Payload))
	if err != nil {
		return Answer{}, errors.New("the handler's URL can't be used")
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Idempotency-Key": e.ID, "Cdc-Relay-Partner": e.Partner,
		"Cdc-Relay-Event-Id": headerText(e.EventID), "Cdc-Relay-Event-Type": headerText(e.Type), "Cdc-Relay-Entity-Key": headerText(e.EntityKey),
		"Cdc-Relay-Attempt": fmt.Sprint(e.Attempt),
	} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	for _, h := range f.signer.Sign(signature.Message{ID: signature.EscapeID(e.ID), Time: f.now(), Method: http.MethodPost, URL: f.url, Body: e.Payload}) {
		request.Header.Set(h.Name, h.Value)
	}
	response, err := f.client.Do(request)
	if err != nil {
		return Answer{}, fmt.Errorf("forward: %w", errors.Unwrap(err))
	}
	defer response.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	reason := strings.TrimSpace(printable(said))
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		return Answer{Verdict: Applied}, nil
	case code == http.StatusConflict, code == http.StatusTooEarly:
		return Answer{Later, reason}, nil
	default:
		return Answer{}, fmt.Errorf("the service answered %d: %s", code, reason)
	}
}

// headerText writes a text so that it can stand in a header.
func headerText(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c < 0x20 || c >= 0x7f || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
