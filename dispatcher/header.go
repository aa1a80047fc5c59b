package dispatcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/outbox"
)

// eventHeader builds the headers that stay the same over all attempts of an
// event: those of the row's headers column first, then the relay's own, which win.
func eventHeader(e *outbox.Event, contentType, userAgent string) (http.Header, error) {
	h := make(http.Header, 14) // those of most events; more would double its memory
	if len(e.Headers) > 0 {
		if err := addRowHeaders(h, e.Headers); err != nil {
			return nil, fmt.Errorf("headers column: %w", err)
		}
	}
	values := headerValues{room: make([]string, 0, 8)}
	if contentType != "" {
		h["Content-Type"] = values.of(contentType)
	} else if _, set := h["Content-Type"]; !set {
		h["Content-Type"] = values.of(e.Kind.ContentType())
	}
	h["User-Agent"] = values.of(userAgent)
	h["Idempotency-Key"] = values.of(escapeValue(e.ID))
	h["Cdc-Relay-Lsn"] = values.of(e.Position.String())
	for _, own := range [...]struct{ name, value string }{
		{"Cdc-Relay-Event-Type", e.EventType}, {"Cdc-Relay-Aggregate-Type", e.AggregateType}, {"Cdc-Relay-Aggregate-Id", e.AggregateID},
	} {
		if own.value != "" {
			h[own.name] = values.of(escapeValue(own.value))
		}
	}
	return h, nil
}

// headerValues gives the values of headers that have one each, out of one piece of
// memory while that lasts.
type headerValues struct{ room []string }

func (v *headerValues) of(value string) []string {
	v.room = append(v.room, value)
	n := len(v.room)
	return v.room[n-1 : n : n]
}

// addRowHeaders adds each member of a JSON object as a header. Strings are taken
// as they are, other values in their JSON form, null not at all.
func addRowHeaders(h http.Header, object []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if opening, err := decoder.Token(); err != nil || opening != json.Delim('{') {
		return fmt.Errorf("not a JSON object")
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return fmt.Errorf("not a JSON object: %w", err)
		}
		var raw json.RawMessage
		if err := decoder.Decode(&raw); err != nil {
			return fmt.Errorf("member %q: %w", name, err)
		}
		addRowHeader(h, name.(string), raw)
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return fmt.Errorf("not a JSON object: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return fmt.Errorf("more than one JSON value")
	}
	return nil
}

func addRowHeader(h http.Header, name string, raw json.RawMessage) {
	name = textproto.CanonicalMIMEHeaderKey(escapeName(name))
	if name == "" || ownHeader(name) || string(raw) == "null" {
		return
	}
	value := string(raw)
	if raw[0] == '"' {
		// Decoding what the decoder has just accepted can't fail.
		_ = json.Unmarshal(raw, &value)
	}
	if !standsInHeader(value) {
		value = escapeValue(value)
	}
	h[name] = append(h[name], value)
}

// ownHeader tells whether a header is the relay's or the connection's to set.
// Name is in canonical form.
func ownHeader(name string) bool {
	switch name {
	case "Idempotency-Key", "User-Agent", "Host", "Content-Length", "Transfer-Encoding",
		"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Upgrade", "Expect":
		return true
	}
	return strings.HasPrefix(name, "Cdc-Relay-") || strings.HasPrefix(name, "Webhook-")
}

// standsInHeader tells whether a value can be sent untouched: visible ASCII and
// inner spaces.
// https://www.rfc-editor.org/rfc/rfc9110#section-5.5
func standsInHeader(value string) bool {
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			return false
		}
	}
	return value == strings.Trim(value, " ")
}

// escapeValue percent-encodes the bytes that can't stand in a header value, and
// the percent sign, so that decoding always gives back the text.
func escapeValue(value string) string {
	if standsInHeader(value) && !strings.Contains(value, "%") {
		return value
	}
	return percentEncode(value, func(i int) bool {
		c := value[i]
		outer := i == 0 || i == len(value)-1
		return c < ' ' || c > '~' || c == '%' || c == ' ' && outer
	})
}

// escapeName percent-encodes the bytes that can't stand in a header name.
// https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2
func escapeName(name string) string {
	const marks = "!#$&'*+-.^_`|~"
	return percentEncode(name, func(i int) bool {
		c := name[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		digit := c >= '0' && c <= '9'
		return !letter && !digit && strings.IndexByte(marks, c) < 0
	})
}

func percentEncode(s string, encode func(i int) bool) string {
	var b strings.Builder
	for i := range len(s) {
		if encode(i) {
			fmt.Fprintf(&b, "%%%02X", s[i])
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}
