package admin

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// role is what somebody may do.
type role int

const (
	nobody   role = iota
	reader        // looks
	operator      // acts
)

// caller is who makes a request.
type caller struct {
	Role    role   `json:"r"`
	Name    string `json:"n"` // as they call themselves; it isn't proven
	Expires int64  `json:"e"` // of a session, in Unix seconds
	Nonce   string `json:"x"` // of a session

	session string // the cookie's value; "" for a caller without one
	from    string // the address
}

// MayAct tells whether the caller may change anything.
func (c caller) MayAct() bool { return c.Role == operator }

// actor is the caller as the audit log names them.
func (c caller) actor() string { return c.Name + " (admin, " + c.from + ")" }

// access knows who may do what. A caller proves themselves by a token: in an
// Authorization header, as Bearer or as the password of Basic, or by a session that
// began with one. Sessions are kept nowhere: the cookie holds what there is to know,
// signed with a key that comes from the tokens, so that it is good at each process with
// the same tokens, and that new tokens end all sessions.
type access struct {
	token, readToken string
	key              [sha256.Size]byte
	now              func() time.Time
	log              zerolog.Logger
}

const (
	sessionCookie = "cdc_relay_session"
	sessionLength = 12 * time.Hour
)

func newAccess(o Options) *access {
	a := &access{token: o.Token, readToken: o.ReadToken, now: o.Now, log: o.Log}
	if o.Token == "" {
		// Nobody signs in, but forms are bound to a session all the same.
		a.key = sha256.Sum256([]byte(rand.Text()))
		return a
	}
	mac := hmac.New(sha256.New, []byte(o.Token))
	mac.Write([]byte("cdc-relay admin session\x00" + o.ReadToken))
	mac.Sum(a.key[:0])
	return a
}

// roleOf tells what a token is good for, in a time that doesn't depend on the token.
func (a *access) roleOf(given string) role {
	acts := same(given, a.token)
	looks := same(given, a.readToken)
	switch {
	case acts && a.token != "":
		return operator
	case looks && a.readToken != "":
		return reader
	}
	return nobody
}

// same compares digests, so that not even the length shows in the time it takes.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// identify tells who makes a request. tried says that they have shown something that
// is good for nothing.
func (a *access) identify(r *http.Request) (c caller, tried bool) {
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		from = r.RemoteAddr
	}
	if header := r.Header.Get("Authorization"); header != "" {
		name, token := credentials(r, header)
		c = caller{Role: a.roleOf(token), Name: name}
		tried = c.Role == nobody
	} else if cookie, err := r.Cookie(sessionCookie); err == nil {
		c, tried = a.open(cookie.Value)
	}
	if a.token == "" {
		c.Role, c.Name, tried = operator, "local", false
		if !isLoopback(hostOf(r)) {
			c.Role = nobody // a page of some other name was made to point here
		}
	}
	c.from = from
	return c, tried
}

func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.Trim(r.Host, "[]")
}

func credentials(r *http.Request, header string) (name, token string) {
	if user, password, ok := r.BasicAuth(); ok {
		if user == "" {
			user = "basic"
		}
		return clean(user), password
	}
	if len(header) > 7 && strings.EqualFold(header[:7], "Bearer ") {
		return "bearer", header[7:]
	}
	return "", ""
}

// clean makes a name fit for the audit log.
func clean(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, ""))
	if runes := []rune(name); len(runes) > 60 {
		name = string(runes[:60])
	}
	return strings.TrimSpace(name)
}

// begin makes the session of a caller and sets its cookie.
func (a *access) begin(w http.ResponseWriter, r *http.Request, c caller) caller {
	c.Expires, c.Nonce = a.now().Add(sessionLength).Unix(), rand.Text()
	text, _ := json.Marshal(c) // strings and numbers can't fail
	payload := base64.RawURLEncoding.EncodeToString(text)
	c.session = payload + "." + a.sign("session", payload)
	http.SetCookie(w, &http.Cookie{
		Name: sessionCookie, Value: c.session, Path: "/", MaxAge: int(sessionLength / time.Second),
		HttpOnly: true, Secure: encrypted(r), SameSite: http.SameSiteStrictMode,
	})
	return c
}

// end takes the session away.
func (a *access) end(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Path: "/", MaxAge: -1, HttpOnly: true, Secure: encrypted(r), SameSite: http.SameSiteStrictMode})
}

// encrypted tells whether the browser came over TLS, to here or to a proxy before.
func encrypted(r *http.Request) bool {
	return r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
}

func (a *access) open(cookie string) (c caller, tried bool) {
	payload, mac, _ := strings.Cut(cookie, ".")
	if !hmac.Equal([]byte(mac), []byte(a.sign("session", payload))) {
		return caller{}, true
	}
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil || json.Unmarshal(text, &c) != nil || a.now().Unix() >= c.Expires {
		return caller{}, false // it has run out, which is no trespass
	}
	c.session = cookie
	return c, false
}

func (a *access) sign(what, text string) string {
	mac := hmac.New(sha256.New, a.key[:])
	mac.Write([]byte(what + "\x00" + text))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// formToken is what a form must bear, so that no other page can send it.
func (a *access) formToken(c caller) string { return a.sign("form", c.session) }

func (a *access) formIsOurs(c caller, r *http.Request) bool {
	return c.session != "" && hmac.Equal([]byte(r.PostFormValue("form_token")), []byte(a.formToken(c)))
}

type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// need lets only those through who have at least a role, and answers the others as a
// program wants it.
func (a *access) need(least role, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, tried := a.identify(r)
		switch {
		case c.Role >= least:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
		case c.Role != nobody:
			writeJSON(w, http.StatusForbidden, problem{Error: "this token may look and change nothing"})
		default:
			a.refused(r, c, tried)
			w.Header().Set("WWW-Authenticate", `Bearer realm="cdc-relay", Basic realm="cdc-relay"`)
			writeJSON(w, http.StatusUnauthorized, problem{Error: "a token is wanted: Authorization: Bearer <admin.token>, or Basic with it as the password"})
		}
	})
}

// refused leaves a trace of those who tried.
func (a *access) refused(r *http.Request, c caller, tried bool) {
	if tried {
		a.log.Warn().Str("from", c.from).Str("path", r.URL.Path).Msg("admin: wrong token refused")
	}
}

// headers sets on each answer what keeps browsers from doing harm: scripts and styles
// come from here alone, nothing is framed, nothing is sent elsewhere.
// https://www.w3.org/TR/CSP3/
func (a *access) headers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if encrypted(r) {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		next.ServeHTTP(w, r)
	})
}
