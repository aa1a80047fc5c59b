// Package admin serves the relay's own HTTP: whether the process lives, whether it does
// its work, its metrics, the JSON API and the admin page.
//
//	request ─► headers ─► access (who, and may they) ─┬─► pages    (HTML, forms)
//	                                                  ├─► API      (JSON)
//	                                                  └─► metrics, pprof
//	                              pages, API ─► operations.Desk
//
// The pages are written by the server, and every action is a form: they work without
// JavaScript. Run's goroutines end with it.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/operations"
)

// Readiness is what /readyz tells.
type Readiness struct {
	Ready  bool   `json:"ready"`
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
}

// Options are what a Server is made of.
type Options struct {
	Token     string // of operators, wanted for everything but the two probes; "" wants none
	ReadToken string // of those who may look and change nothing; "" for nobody
	Ready     func() Readiness
	Metrics   prometheus.Gatherer
	Desk      *operations.Desk
	Redactor  *operations.Redactor
	Version   string
	Now       func() time.Time
	Log       zerolog.Logger
}

// Check refuses a listener that others can reach and that wants no token.
func Check(listen, token string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return errors.New("is not host:port")
	}
	if token != "" || isLoopback(host) {
		return nil
	}
	return errors.New("is not a loopback address, and admin.token is empty")
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Listen opens the listener for Run.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for admin: %w", err)
	}
	return listener, nil
}

// Run serves until ctx ends. It closes the listener.
func Run(ctx context.Context, listener net.Listener, o Options) error {
	handler, err := newHandler(o)
	if err != nil {
		listener.Close()
		return err
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve admin: %w", err)
	}
	return nil
}

// newHandler assembles the routes.
func newHandler(o Options) (http.Handler, error) {
	access := newAccess(o)
	pages, err := newPages(o, access)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready := o.Ready()
		status := http.StatusOK
		if !ready.Ready {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, ready)
	})
	mux.Handle("GET /metrics", access.need(reader, promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{})))
	mux.Handle("GET /debug/pprof/", access.need(operator, http.HandlerFunc(pprof.Index)))
	mux.Handle("GET /debug/pprof/profile", access.need(operator, http.HandlerFunc(pprof.Profile)))
	mux.Handle("GET /debug/pprof/trace", access.need(operator, http.HandlerFunc(pprof.Trace)))
	mux.Handle("GET /debug/pprof/symbol", access.need(operator, http.HandlerFunc(pprof.Symbol)))
	mux.Handle("GET /debug/pprof/cmdline", access.need(operator, http.HandlerFunc(pprof.Cmdline)))
	newAPI(o, access).register(mux)
	pages.register(mux)
	// Browsers tell where a request comes from: what another site sends is refused,
	// whatever it bears.
	crossOrigin := http.NewCrossOriginProtection()
	return access.headers(crossOrigin.Handler(mux)), nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(v) // the client is gone if it fails
}
