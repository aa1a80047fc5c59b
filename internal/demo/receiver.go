package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	webhook "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// NewReceiver returns the receiving end, which enters each verified request in the ledger.
func NewReceiver(secret string, ledger *Ledger) (http.Handler, error) {
	return verifying(secret, func(w http.ResponseWriter, r *http.Request, body []byte) {
		var p payload
		if err := json.Unmarshal(body, &p); err != nil {
			http.Error(w, "not JSON", http.StatusBadRequest)
			return
		}
		ledger.arrived(r.Header.Get("Idempotency-Key"), p, time.Now())
		w.WriteHeader(http.StatusNoContent)
	}, func(*http.Request, error) { ledger.badSignature() })
}

// NewPrinter returns a receiving end that prints a line of each request.
func NewPrinter(secret string, out io.Writer) (http.Handler, error) {
	return verifying(secret, func(w http.ResponseWriter, r *http.Request, body []byte) {
		h := r.Header
		fmt.Fprintf(out, "%s %q attempt %s at %s: %q\n", h.Get("Idempotency-Key"), h.Get("Cdc-Relay-Event-Type"), h.Get("Cdc-Relay-Attempt"), h.Get("Cdc-Relay-Lsn"), body[:min(len(body), 200)])
		w.WriteHeader(http.StatusNoContent)
	}, func(r *http.Request, err error) {
		fmt.Fprintf(out, "refused %q: %v\n", r.Header.Get("Idempotency-Key"), err)
	})
}

// verifying verifies each request with the Standard Webhooks library, as any receiver
// would, and answers 401 to what doesn't verify.
func verifying(secret string, accept func(http.ResponseWriter, *http.Request, []byte), refused func(*http.Request, error)) (http.Handler, error) {
	verifier, err := webhook.NewWebhook(secret)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 10<<20))
		if err != nil {
			http.Error(w, "unreadable", http.StatusBadRequest)
			return
		}
		if err := verifier.Verify(body, r.Header); err != nil {
			refused(r, err)
			http.Error(w, "signature does not verify", http.StatusUnauthorized)
			return
		}
		accept(w, r, body)
	}), nil
}
