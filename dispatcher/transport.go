package dispatcher

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// ErrPrivateNetwork refuses a connection to a loopback, private, link-local or
// otherwise not public address.
var ErrPrivateNetwork = errors.New("not a public address, and allow_private_networks is false")

// TransportOptions are what a destination's connections are made with.
type TransportOptions struct {
	Connections          int // how many are kept, and the most there are
	ConnectTimeout       time.Duration
	AllowPrivateNetworks bool
	TLS                  *tls.Config // nil for the system's roots
}

// NewTransport returns a destination's own pool of connections, so that one
// destination that hangs takes no connection from another.
//
// Unless AllowPrivateNetworks is set, each connection is checked after its name
// was resolved: a name can point somewhere else at every look-up.
func NewTransport(o TransportOptions) *http.Transport {
	dialer := &net.Dialer{Timeout: o.ConnectTimeout, KeepAlive: 30 * time.Second}
	if !o.AllowPrivateNetworks {
		dialer.Control = refusePrivate()
	}
	tlsConfig := o.TLS
	if tlsConfig == nil {
		tlsConfig = &tls.Config{}
	}
	tlsConfig.MinVersion = max(tlsConfig.MinVersion, tls.VersionTLS12)
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dialer.DialContext,
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

// refusePrivate returns a hook that runs between the resolving of a name and the
// connecting, and lets only public addresses pass.
func refusePrivate() func(network, address string, c syscall.RawConn) error {
	guard := ssrf.New(ssrf.WithAnyPort(), ssrf.WithNetworks("tcp4", "tcp6"))
	return func(network, address string, c syscall.RawConn) error {
		if err := guard.Safe(network, address, c); err != nil {
			return fmt.Errorf("%w: %s", ErrPrivateNetwork, address)
		}
		return nil
	}
}

// keepIdle hides the transport's CloseIdleConnections: retryablehttp calls it
// whenever a request is given up, which would cut the connections of all the
// other lanes just when the receiver is in trouble.
type keepIdle struct{ transport http.RoundTripper }

func (k keepIdle) RoundTrip(r *http.Request) (*http.Response, error) { return k.transport.RoundTrip(r) }
