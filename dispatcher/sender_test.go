package dispatcher

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// TestUserInTheURL: each attempt bears the user that the URL names, unless the row's
// headers have an authorization of their own. What an attempt sets in its headers is
// not in the next one's twice.
func TestUserInTheURL(t *testing.T) {
	for headers, want := range map[string]string{"": "Basic dXNlcjpzZWNyZXQ=", `{"Authorization": "Bearer of-the-row"}`: "Bearer of-the-row"} {
		var seen []http.Header
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen = append(seen, r.Header)
			w.WriteHeader(http.StatusInternalServerError)
		}))
		defer server.Close()
		transport := NewTransport(TransportOptions{Connections: 1, ConnectTimeout: time.Second, AllowPrivateNetworks: true})
		defer transport.CloseIdleConnections()
		sender := NewHTTPSender(HTTPOptions{
			URL: "http://user:secret@" + server.Listener.Addr().String() + "/hooks", Transport: transport,
			Timeout: 5 * time.Second, MinWait: time.Microsecond, MaxWait: time.Microsecond, Now: time.Now,
		})
		event := &outbox.Event{ID: "1", Payload: []byte("{}"), Headers: []byte(headers)}
		result, err := sender.Send(t.Context(), Round{Event: event, First: 1, Attempts: 2})
		if err != nil || len(result.Attempts) != 2 || len(seen) != 2 {
			t.Fatalf("%+v after %d requests: %v", result, len(seen), err)
		}
		for i, header := range seen {
			if got := header.Values("Authorization"); len(got) != 1 || got[0] != want {
				t.Errorf("attempt %d: authorization %q, want %q", i+1, got, want)
			}
			if got := header.Values("Cdc-Relay-Attempt"); len(got) != 1 || got[0] != []string{"1", "2"}[i] {
				t.Errorf("attempt %d is called %q", i+1, got)
			}
		}
	}
}
