package admin

import (
	"bytes"
	"context"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/cdc-relay/cdc-relay/internal/operations"
)

//go:embed templates/*.html static/*
var files embed.FS

// pages is the admin page: HTML written by the server.
type pages struct {
	access    *access
	desk      *operations.Desk
	redact    *operations.Redactor
	version   string
	now       func() time.Time
	log       zerolog.Logger
	templates map[string]*template.Template
}

// view is what a template is given.
type view struct {
	Title     string
	Active    string // which entry of the navigation
	Caller    caller
	SignedIn  bool // by a token, so that there is something to sign out of
	FormToken string
	Said      string // what came of the action before
	HasInbox  bool
	Relays    bool
	Version   string
	Now       time.Time
	Data      any
}

func newPages(o Options, a *access) (*pages, error) {
	p := &pages{
		access: a, desk: o.Desk, redact: o.Redactor, version: o.Version, now: o.Now, log: o.Log, templates: make(map[string]*template.Template),
	}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("list the pages: %w", err)
	}
	for _, name := range names {
		t, err := template.New("layout.html").Funcs(functions).ParseFS(files, "templates/layout.html", name)
		if err != nil {
			return nil, fmt.Errorf("read the page %s: %w", name, err)
		}
		p.templates[strings.TrimSuffix(strings.TrimPrefix(name, "templates/"), ".html")] = t
	}
	return p, nil
}

func (p *pages) register(mux *http.ServeMux) {
	static, _ := fs.Sub(files, "static") // the directory is embedded
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	mux.HandleFunc("GET /sign-in", p.signInForm)
	mux.HandleFunc("POST /sign-in", p.signIn)
	mux.HandleFunc("POST /sign-out", p.signOut)
	for pattern, show := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /{$}":                       p.overview,
		"GET /dead-letters":              p.letters,
		"GET /dead-letters/confirm":      p.confirmLetters,
		"GET /dead-letters/{id}":         p.letter,
		"GET /dead-letters/{id}/payload": p.letterPayload,
		"GET /deliveries":                p.deliveries,
		"GET /inbox":                     p.inbound,
		"GET /inbox/confirm":             p.confirmInbound,
		"GET /inbox/{id}":                p.inboundEvent,
		"GET /inbox/{id}/payload":        p.inboundPayload,
		"GET /replays":                   p.replays,
		"GET /replays/{id}":              p.replay,
		"GET /audit":                     p.actions,
		"/":                              p.missing,
	} {
		mux.Handle(pattern, p.guarded(reader, show))
	}
	for pattern, act := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /dead-letters/act": p.actOnLetters,
		"POST /inbox/act":        p.actOnInbound,
		"POST /destinations/act": p.actOnDestination,
		"POST /replays/plan":     p.planReplay,
		"POST /replays/start":    p.startReplay,
		"POST /replays/cancel":   p.cancelReplay,
		"POST /checkpoints/save": p.saveCheckpoint,
		"POST /checkpoints/drop": p.dropCheckpoint,
	} {
		mux.Handle(pattern, p.guarded(operator, act))
	}
}

// guarded lets only those see a page who may, and only our own forms act.
func (p *pages) guarded(least role, show func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, tried := p.access.identify(r)
		r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
		switch {
		case c.Role == nobody && p.access.token == "":
			p.fail(w, r, http.StatusForbidden, "This name is not this machine's. Without admin.token the page answers to localhost alone.")
			return
		case c.Role == nobody:
			p.access.refused(r, c, tried)
			p.toSignIn(w, r)
			return
		case c.Role < least:
			p.fail(w, r, http.StatusForbidden, "You are signed in to look, not to change anything.")
			return
		case r.Method == http.MethodPost:
			r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
			if !p.access.formIsOurs(c, r) {
				p.log.Warn().Str("from", c.from).Str("path", r.URL.Path).Msg("admin: a form that isn't ours was refused")
				p.fail(w, r, http.StatusForbidden, "This form did not come from this page, or its session has ended. Open the page again, and send it once more.")
				return
			}
		case c.session == "":
			c = p.access.begin(w, r, c)
			r = r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
		}
		if err := show(w, r); err != nil {
			p.explain(w, r, err)
		}
	})
}

func (p *pages) toSignIn(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		p.fail(w, r, http.StatusUnauthorized, "Your session has ended. Sign in, and do it once more.")
		return
	}
	http.Redirect(w, r, "/sign-in?"+url.Values{"next": {r.URL.RequestURI()}}.Encode(), http.StatusSeeOther)
}

// explain shows an error.
func (p *pages) explain(w http.ResponseWriter, r *http.Request, err error) {
	status, told := explain(err)
	text := told.Error
	if told.Mend != "" {
		text += ". Try: " + told.Mend
	}
	if status >= http.StatusInternalServerError {
		p.log.Warn().Err(err).Str("path", r.URL.Path).Msg("admin: a page could not be shown")
	}
	p.fail(w, r, status, text)
}

func (p *pages) fail(w http.ResponseWriter, r *http.Request, status int, text string) {
	p.render(w, r, status, "problem", view{Title: http.StatusText(status), Data: text})
}

func (p *pages) missing(w http.ResponseWriter, r *http.Request) error {
	p.fail(w, r, http.StatusNotFound, "There is no such page.")
	return nil
}

// show renders a page that was found.
func (p *pages) show(w http.ResponseWriter, r *http.Request, name, title, active string, data any) error {
	p.render(w, r, http.StatusOK, name, view{Title: title, Active: active, Data: data})
	return nil
}

func (p *pages) render(w http.ResponseWriter, r *http.Request, status int, name string, v view) {
	c := callerOf(r.Context())
	v.Caller, v.SignedIn, v.FormToken = c, p.access.token != "" && c.Role != nobody, p.access.formToken(c)
	v.HasInbox, v.Relays, v.Version, v.Now = p.desk.HasInbox(), p.desk.Relays(), p.version, p.now()
	v.Said = p.said(w, r)
	var b bytes.Buffer
	if err := p.templates[name].Execute(&b, v); err != nil {
		p.log.Error().Err(err).Str("page", name).Msg("admin: a page could not be written")
		http.Error(w, "the page could not be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w) // the browser is gone if it fails
}

// saidCookie carries what came of an action to the page that is shown next.
const saidCookie = "cdc_relay_said"

// done goes on to a page after an action, and has it say what came of it.
func (p *pages) done(w http.ResponseWriter, r *http.Request, to, text string, args ...any) error {
	said := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, text, args...))
	http.SetCookie(w, &http.Cookie{Name: saidCookie, Value: said, Path: "/", MaxAge: 60, HttpOnly: true, Secure: encrypted(r), SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

func (p *pages) said(w http.ResponseWriter, r *http.Request) string {
	cookie, err := r.Cookie(saidCookie)
	if err != nil {
		return ""
	}
	http.SetCookie(w, &http.Cookie{Name: saidCookie, Path: "/", MaxAge: -1, HttpOnly: true, Secure: encrypted(r), SameSite: http.SameSiteStrictMode})
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil {
		return ""
	}
	return string(text)
}

func (p *pages) signInForm(w http.ResponseWriter, r *http.Request) {
	p.render(w, r, http.StatusOK, "sign_in", view{Title: "Sign in", Data: signInData{Next: ownPath(r.FormValue("next"))}})
}

type signInData struct {
	Next  string
	Wrong bool
}

func (p *pages) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	next := ownPath(r.PostFormValue("next"))
	name := clean(r.PostFormValue("name"))
	if name == "" {
		name = "somebody"
	}
	c := caller{Role: p.access.roleOf(r.PostFormValue("token")), Name: name}
	if c.Role == nobody {
		p.access.refused(r, caller{from: r.RemoteAddr}, true)
		p.render(w, r, http.StatusUnauthorized, "sign_in", view{Title: "Sign in", Data: signInData{Next: next, Wrong: true}})
		return
	}
	p.access.begin(w, r, c)
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// ownPath lets nobody be sent elsewhere after signing in.
func ownPath(path string) string {
	u, err := url.Parse(path)
	if err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(path, "//") || strings.Contains(path, `\`) {
		return "/"
	}
	return path
}

func (p *pages) signOut(w http.ResponseWriter, r *http.Request) {
	c, _ := p.access.identify(r)
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if p.access.formIsOurs(c, r) {
		p.access.end(w, r)
	}
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}
