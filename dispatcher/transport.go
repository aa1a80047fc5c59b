package dispatcher

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
	"golang.org/x/net/http/httpproxy"
)

// ErrPrivateNetwork refuses a connection to a loopback, private, link-local or
// otherwise not public address.
var ErrPrivateNetwork = errors.New("not a public address, and allow_private_networks is false")

// TransportOptions are what a destination's connections are made with.
type TransportOptions struct {
	Connections          int // how many are kept, and the most there are
	ConnectTimeout       time.Duration
	AllowPrivateNetworks bool
	TLS                  *tls.Config   // nil for the system's roots
	Resolver             *net.Resolver // nil for the system's

	public []netip.Prefix // counted as public by tests, which have no other
}

// NewTransport returns a destination's own pool of connections, so that one
// destination that hangs takes no connection from another.
//
// Unless AllowPrivateNetworks is set, each connection is checked after its name
// was resolved: a name can point somewhere else at every look-up.
func NewTransport(o TransportOptions) *http.Transport {
	dialer := &net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: 30 * time.Second, Resolver: o.Resolver}
	dial := dialer.DialContext
	if !o.AllowPrivateNetworks {
		guarded := *dialer
		guarded.Control = refusePrivate(o.public)
		proxies := environmentProxies()
		dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			// A proxy is the operator's own choice, and often a private address.
			if proxies[address] {
				return dialer.DialContext(ctx, network, address)
			}
			return guarded.DialContext(ctx, network, address)
		}
	}
	tlsConfig := o.TLS
	if tlsConfig == nil {
		tlsConfig = &tls.Config{}
	}
	tlsConfig.MinVersion = max(tlsConfig.MinVersion, tls.VersionTLS12)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dial,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    o.ConnectTimeout,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           o.Connections,
		MaxIdleConnsPerHost:    o.Connections,
		MaxConnsPerHost:        o.Connections,
		IdleConnTimeout:        90 * time.Second,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // an answer is read for its first bytes only
	}
}

// environmentProxies gives host:port of the proxies that HTTP_PROXY and
// HTTPS_PROXY name.
func environmentProxies() map[string]bool {
	proxies := make(map[string]bool)
	config := httpproxy.FromEnvironment()
	for _, text := range []string{config.HTTPProxy, config.HTTPSProxy} {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" {
			continue
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"https": "443", "socks5": "1080"}[u.Scheme]
		}
		if port == "" {
			port = "80"
		}
		proxies[net.JoinHostPort(u.Hostname(), port)] = true
	}
	return proxies
}

// refusePrivate returns a hook that runs between the resolving of a name and the
// connecting, and lets only public addresses pass.
func refusePrivate(public []netip.Prefix) func(network, address string, c syscall.RawConn) error {
	guard := ssrf.New(ssrf.WithAnyPort(), ssrf.WithNetworks("tcp4", "tcp6"), ssrf.WithAllowedV4Prefixes(public...))
	return func(network, address string, c syscall.RawConn) error {
		if err := guard.Safe(network, address, c); err != nil {
			return fmt.Errorf("%w: %s", ErrPrivateNetwork, address)
		}
		return nil
	}
}
