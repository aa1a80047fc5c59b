package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/signature"
)

// Options are what a Receiver is made of.
type Options struct {
	Database Database
	Tables   Tables
	Partners []Partner
	// PublicURL is the address under which partners know the service, as far as the
	// path /webhooks. Schemes that sign the URL need it; Host and forwarded headers
	// are never believed.
	PublicURL string
	// Fetch gets providers' certificates, and confirms subscriptions, at addresses
	// that were held against the provider's own.
	Fetch  func(ctx context.Context, address string) ([]byte, error)
	Stored func() // called after each commit; wakes a Processor
	// Answered is told of each answer; the partner is "" where the path names none.
	Answered func(partner string, status int, took time.Duration)
	Now      func() time.Time
	Log      zerolog.Logger
}

// Receiver is the http.Handler of POST /webhooks/{partner}. It is safe for
// concurrent use and starts no goroutine.
type Receiver struct {
	o        Options
	partners map[string]*partner
	store    *store
	mux      *http.ServeMux
}

// NewHandler checks the partners and returns the Receiver of their webhooks.
func NewHandler(o Options) (*Receiver, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Stored == nil {
		o.Stored = func() {}
	}
	if o.Answered == nil {
		o.Answered = func(string, int, time.Duration) {}
	}
	o.PublicURL = strings.TrimSuffix(o.PublicURL, "/")
	r := &Receiver{o: o, partners: make(map[string]*partner), store: newStore(o.Database, o.Tables), mux: http.NewServeMux()}
	for _, p := range o.Partners {
		built, err := p.build(o.Fetch)
		if err != nil {
			return nil, err
		}
		if r.partners[p.Name] != nil {
			return nil, fmt.Errorf("two partners are called %q", p.Name)
		}
		r.partners[p.Name] = built
	}
	r.mux.HandleFunc("/webhooks/{partner}", r.receive)
	return r, nil
}

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, h *http.Request) { r.mux.ServeHTTP(w, h) }

// storeTimeout bounds how long a partner waits for the database: most of them give up
// after 5 to 10 seconds, and then don't know that the event is stored.
const storeTimeout = 4 * time.Second

func (r *Receiver) receive(w http.ResponseWriter, h *http.Request) {
	began, answer := r.o.Now(), &answered{ResponseWriter: w}
	p := r.partners[h.PathValue("partner")]
	if p == nil {
		http.Error(answer, "unknown partner", http.StatusNotFound)
		r.o.Answered("", answer.status, r.o.Now().Sub(began))
		return
	}
	r.receiveFrom(answer, h, p)
	if answer.status != 0 { // the partner hasn't gone
		r.o.Answered(p.Name, answer.status, r.o.Now().Sub(began))
	}
}

// answered remembers the status of an answer.
type answered struct {
	http.ResponseWriter
	status int
}

func (a *answered) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answered) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

func (r *Receiver) receiveFrom(w http.ResponseWriter, h *http.Request, p *partner) {
	switch {
	case h.Method == http.MethodGet && p.preset.handshake == metaChallenge:
		p.answerMeta(w, h)
		return
	case h.Method == http.MethodOptions && p.preset.handshake == cloudEventsOptions:
		p.answerOptions(w, h)
		return
	case h.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		return
	case p.limiter != nil && !p.limiter.Allow():
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	log := r.o.Log.With().Str("partner", p.Name).Logger()
	body, err := io.ReadAll(http.MaxBytesReader(w, h.Body, p.preset.maxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
		}
		return // the partner has gone
	}
	if !r.verified(w, h, p, body, log) {
		return
	}
	if r.challenged(w, h, p, body) {
		return
	}
	r.keep(w, h, p, body, log)
}

// verified tells whether the request may go on; if not, it is answered.
func (r *Receiver) verified(w http.ResponseWriter, h *http.Request, p *partner, body []byte, log zerolog.Logger) bool {
	if p.verifier == nil {
		return true
	}
	err := p.verifier.Verify(signature.Received{
		Method: h.Method, URL: r.o.PublicURL + h.URL.RequestURI(), Header: h.Header, Body: body, Now: r.o.Now(),
	})
	if err == nil {
		return true
	}
	if errors.Is(err, signature.ErrUnavailable) {
		log.Error().Err(err).Msg("an inbound webhook could not be verified at present")
		unavailable(w)
		return false
	}
	log.Warn().Str("step", err.Error()).Msg("an inbound webhook was refused")
	http.Error(w, "the signature does not verify", http.StatusUnauthorized)
	return false
}

// keep stores the request's events and acknowledges them, in this order.
func (r *Receiver) keep(w http.ResponseWriter, h *http.Request, p *partner, body []byte, log zerolog.Logger) {
	if p.preset.ignore != nil && p.preset.ignore(h.Header) {
		p.acknowledge(w)
		return
	}
	events, err := p.events(h.Header, body)
	if err != nil {
		log.Warn().Err(err).Msg("an inbound webhook was refused")
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(h.Context(), storeTimeout)
	defer cancel()
	stored, err := r.store.put(ctx, p, p.keptHeader(h.Header), events)
	if err != nil {
		log.Error().Err(err).Msg("an inbound webhook could not be stored; the partner is asked to send it again")
		unavailable(w)
		return
	}
	if stored > 0 {
		r.o.Stored()
	}
	log.Debug().Int("events", len(events)).Int("new", stored).Msg("inbound webhook stored")
	p.acknowledge(w)
}

func (p *partner) acknowledge(w http.ResponseWriter) {
	w.WriteHeader(p.preset.answer)
	io.WriteString(w, p.preset.answerBody)
}

// unavailable is for our own troubles: several partners never send again what was
// answered by a 4xx.
func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", strconv.Itoa(5))
	http.Error(w, "try again later", http.StatusServiceUnavailable)
}
