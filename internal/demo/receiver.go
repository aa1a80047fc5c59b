package demo

import (
	"encoding/json"
	"io"
	"net/http"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// NewReceiver returns the receiving end: it verifies each request with the
// Standard Webhooks library, as any receiver would, and enters it in the ledger.
func NewReceiver(secret string, ledger *Ledger) (http.Handler, error) {
	verifier, err := webhook.NewWebhook(secret)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		if err := verifier.Verify(body, r.Header); err != nil {
			ledger.badSignature()
			http.Error(w, "signature does not verify", http.StatusUnauthorized)
			return
		}
		var p payload
		if err := json.Unmarshal(body, &p); err != nil {
			http.Error(w, "not JSON", http.StatusBadRequest)
			return
		}
		ledger.arrived(r.Header.Get("Idempotency-Key"), p, time.Now())
		w.WriteHeader(http.StatusNoContent)
	}), nil
}
