// Package admin serves the relay's own HTTP: whether the process lives, whether
// it does its work, and its metrics.
package admin

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Readiness is what /readyz tells.
type Readiness struct {
	Ready  bool   `json:"ready"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// Options are what a Server is made of.
type Options struct {
	Listen  string
	Token   string // wanted for everything but the two probes; "" wants none
	Ready   func() Readiness
	Metrics prometheus.Gatherer
}

// Check refuses a listener that others can reach and that wants no token.
func Check(listen, token string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return errors.New("is not host:port")
	}
	if token != "" || host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return nil
	}
	return errors.New("is not a loopback address, and admin.token is empty")
}

// Run serves until ctx ends.
func Run(ctx context.Context, o Options) error {
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return fmt.Errorf("listen for admin: %w", err)
	}
	server := &http.Server{Handler: handler(o), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin: %w", err)
	}
	return nil
}

func handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready := o.Ready()
		w.Header().Set("Content-Type", "application/json")
		if !ready.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(ready) // the client is gone if it fails
	})
	mux.Handle("GET /metrics", o.guard(promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{})))
	return mux
}

func (o Options) guard(next http.Handler) http.Handler {
	if o.Token == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if subtle.ConstantTimeCompare([]byte(given), []byte(o.Token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is wanted", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
