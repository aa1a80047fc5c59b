package chaos

import (
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const secret = "whsec_Y2hhb3Mgc2VjcmV0IGNoYW9zIHNlY3JldA=="

// receiver records what it accepted, in order.
type receiver struct {
	*httptest.Server
	verifier *webhook.Webhook

	mu       sync.Mutex
	random   *rand.Rand
	order    []string // ids, as they were accepted
	accepted map[string]int
	bad      int
	outUntil time.Time
}

func newReceiver(t *testing.T, seed uint64) *receiver {
	t.Helper()
	verifier, err := webhook.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{verifier: verifier, random: rand.New(rand.NewPCG(seed, 2)), accepted: make(map[string]int)}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

// misbehave makes the receiver fail most requests, in one way or another, for a while.
func (r *receiver) misbehave(milliseconds int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outUntil = time.Now().Add(time.Duration(milliseconds) * time.Millisecond)
}

func (r *receiver) behave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outUntil = time.Time{}
}

func (r *receiver) serve(w http.ResponseWriter, h *http.Request) {
	body, err := io.ReadAll(h.Body)
	if err != nil {
		return
	}
	verified := r.verifier.Verify(body, h.Header)
	r.mu.Lock()
	defer r.mu.Unlock()
	if verified != nil {
		r.bad++
	}
	if time.Now().Before(r.outUntil) {
		switch r.random.IntN(4) {
		case 0:
			w.WriteHeader(http.StatusInternalServerError)
			return
		case 1:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case 2:
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				conn.Close()
			}
			return
		}
	}
	id := h.Header.Get("Idempotency-Key")
	r.order = append(r.order, id)
	r.accepted[id]++
}
