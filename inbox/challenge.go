package inbox

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"

	"github.com/tidwall/gjson"
)

// Here are the questions by which providers find out whether somebody is there. They
// are answered, not stored.

// challenged answers a challenge that came as a verified POST, and tells whether it
// was one.
func (r *Receiver) challenged(w http.ResponseWriter, h *http.Request, p *partner, body []byte) bool {
	switch p.preset.handshake {
	case slackChallenge:
		if gjson.GetBytes(body, "type").Str == "url_verification" {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			io.WriteString(w, gjson.GetBytes(body, "challenge").String())
			return true
		}
	case zoomChallenge:
		if gjson.GetBytes(body, "event").Str == "endpoint.url_validation" {
			plain := gjson.GetBytes(body, "payload.plainToken").String()
			answerJSON(w, map[string]string{"plainToken": plain, "encryptedToken": zoomToken(p.Secrets[0], plain)})
			return true
		}
	case discordPing:
		return discordPinged(w, body)
	case snsConfirmation:
		return r.snsConfirmed(w, h, body)
	}
	return false
}

func zoomToken(secret, plain string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(plain))
	return hex.EncodeToString(mac.Sum(nil))
}

// discordPinged: an interaction's PING has type 1 and no event, that of the webhook
// events type 0.
func discordPinged(w http.ResponseWriter, body []byte) bool {
	kind, event := gjson.GetBytes(body, "type"), gjson.GetBytes(body, "event")
	switch {
	case kind.Type == gjson.Number && kind.Int() == 0:
		w.WriteHeader(http.StatusNoContent)
	case kind.Int() == 1 && !event.Exists():
		answerJSON(w, map[string]int{"type": 1})
	default:
		return false
	}
	return true
}

var snsHost = regexp.MustCompile(`^sns\.[a-z0-9-]{3,}\.amazonaws\.com(\.cn)?$`)

// snsConfirmed confirms a subscription by the address in its verified message.
func (r *Receiver) snsConfirmed(w http.ResponseWriter, h *http.Request, body []byte) bool {
	switch gjson.GetBytes(body, "Type").Str {
	case "UnsubscribeConfirmation":
		w.WriteHeader(http.StatusOK)
		return true
	case "SubscriptionConfirmation":
	default:
		return false
	}
	address := gjson.GetBytes(body, "SubscribeURL").String()
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.User != nil || !snsHost.MatchString(u.Host) {
		http.Error(w, "the subscribe URL is not one of Amazon SNS", http.StatusBadRequest)
		return true
	}
	if _, err := r.o.Fetch(h.Context(), address); err != nil {
		r.o.Log.Error().Err(err).Msg("an Amazon SNS subscription could not be confirmed")
		unavailable(w)
		return true
	}
	w.WriteHeader(http.StatusOK)
	return true
}

// answerMeta answers the GET by which Meta checks a subscription.
func (p *partner) answerMeta(w http.ResponseWriter, h *http.Request) {
	q := h.URL.Query()
	got, want := sha256.Sum256([]byte(q.Get("hub.verify_token"))), sha256.Sum256([]byte(p.VerifyToken))
	if p.VerifyToken == "" || q.Get("hub.mode") != "subscribe" || !hmac.Equal(got[:], want[:]) {
		http.Error(w, "the verify token does not fit", http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, q.Get("hub.challenge"))
}

// answerOptions answers the handshake of CloudEvents' webhooks.
// https://github.com/cloudevents/spec/blob/main/cloudevents/http-webhook.md
func (p *partner) answerOptions(w http.ResponseWriter, h *http.Request) {
	origin := h.Header.Get("WebHook-Request-Origin")
	if origin == "" {
		http.Error(w, "WebHook-Request-Origin is missing", http.StatusBadRequest)
		return
	}
	w.Header().Set("Allow", "POST, OPTIONS")
	w.Header().Set("WebHook-Allowed-Origin", origin)
	if asked := h.Header.Get("WebHook-Request-Rate"); asked != "" {
		w.Header().Set("WebHook-Allowed-Rate", asked)
	}
	w.WriteHeader(http.StatusOK)
}

func answerJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the partner may have gone
}
