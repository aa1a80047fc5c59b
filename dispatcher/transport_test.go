package dispatcher

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers every A question with the next of the given addresses, the
// last one for ever.
func nameServer(t *testing.T, answers ...[4]byte) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	var asked atomic.Int64
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response = true
			m.Additionals = nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				i := min(int(asked.Add(1)), len(answers)) - 1
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: answers[i]},
				}}
			}
			if packed, err := m.Pack(); err == nil {
				conn.WriteTo(packed, from)
			}
		}
	}()
	dialer := net.Dialer{}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// get makes one request on a connection of its own.
func get(t *testing.T, o TransportOptions, url string) error {
	t.Helper()
	o.ConnectTimeout = 300 * time.Millisecond
	transport := NewTransport(o)
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get(url)
	if err == nil {
		response.Body.Close()
	}
	return err
}

// TestG9PrivateAddressesAreRefused, whether they stand in the URL or a name
// resolves to them.
func TestG9PrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
		"[::1]", "[::ffff:10.0.0.1]", "[::ffff:169.254.169.254]", "[fd00::1]", "[fe80::1]", "[64:ff9b::a00:1]",
	} {
		if err := get(t, TransportOptions{}, "http://"+address+":9/"); !errors.Is(err, ErrPrivateNetwork) {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, answer := range [][4]byte{{127, 0, 0, 1}, {169, 254, 169, 254}, {10, 0, 0, 1}} {
		err := get(t, TransportOptions{Resolver: nameServer(t, answer)}, "http://receiver.example:9/")
		if !errors.Is(err, ErrPrivateNetwork) || !strings.Contains(err.Error(), "allow_private_networks") {
			t.Errorf("a name for %v: %v", answer, err)
		}
	}
}

// TestG9NameThatChangesItsAnswer: a name that was public at the first look-up and
// is private at the next is refused then.
func TestG9NameThatChangesItsAnswer(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatalf("the whole of 127.0.0.0/8 should be loopback: %v", err)
	}
	go http.Serve(listener, http.NotFoundHandler())
	t.Cleanup(func() { listener.Close() })
	options := TransportOptions{
		Resolver: nameServer(t, [4]byte{127, 0, 0, 2}, [4]byte{127, 0, 0, 1}),
		public:   []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")},
	}
	url := "http://receiver.example:" + port + "/"
	if err := get(t, options, url); err != nil {
		t.Errorf("the first look-up gives an address that counts as public: %v", err)
	}
	if err := get(t, options, url); !errors.Is(err, ErrPrivateNetwork) {
		t.Errorf("the second look-up gives a private address: %v", err)
	}
}

func TestPrivateAddressesCanBeAllowed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	if err := get(t, TransportOptions{AllowPrivateNetworks: true}, server.URL); err != nil {
		t.Error(err)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := server.Client().Transport.(*http.Transport).TLSClientConfig
	if err := get(t, TransportOptions{AllowPrivateNetworks: true, TLS: roots.Clone()}, server.URL); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
}
