package inspector

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

//go:embed assets
var assets embed.FS

var (
	style    = mustRead("style.css")
	script   = mustRead("inspector.js")
	icon     = mustRead("icon.svg")
	pages    = template.Must(template.New("").Funcs(functions).ParseFS(assets, "assets/*.html"))
	revision = revisionOf(style, script, icon)
)

// Handler serves the pages. It is safe for concurrent use.
type Handler struct {
	_ [0]sync.Mutex // so that go vet reports copies

	opts    Options
	prefix  string
	watches *watches
	origin  *http.CrossOriginProtection
	streams chan struct{} // an element for each event stream
}

// maxStreams is the maximum number of pages that are updated at one time.
const maxStreams = 1000

// New returns a handler that shows the locks under the keeper's prefix. Nil options mean the defaults. It sends nothing. The
// error is [lockkeeper.ErrInvalid] if the keeper is nil or an option is out of range.
//
// Mount it below a path that ends in a slash, with http.StripPrefix; all its links are relative. The keeper must stay open
// until Close has returned.
func New(k *lockkeeper.Keeper, opts *Options) (*Handler, error) {
	if k == nil {
		return nil, server.Invalid("the keeper is nil")
	}
	h, err := newHandler(keeperSource{k}, opts)
	if err != nil {
		return nil, err
	}
	e := access.KeeperOf(k)
	if h.opts.Server == "" {
		h.opts.Server = e.Config.Client.String()
	}
	h.prefix = e.Config.Prefix
	return h, nil
}

func newHandler(s source, opts *Options) (*Handler, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Handler{opts: o, watches: newWatches(s, o), origin: http.NewCrossOriginProtection(), streams: make(chan struct{}, maxStreams)}, nil
}

// Close ends the requests in progress that update pages and the reads from Redis, and waits for the handler's goroutines. It
// returns promptly. Later requests are answered with 503. It may be called again.
//
// http.Server.Shutdown waits for pages that are open unless the handler is closed: call server.RegisterOnShutdown(h.Close).
func (h *Handler) Close() { h.watches.close() }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	if h.watches.ctx.Err() != nil {
		h.fail(w, r, http.StatusServiceUnavailable, errors.New("the server is shutting down"))
		return
	}
	if h.opts.Authorize != nil {
		if err := h.opts.Authorize(r); err != nil {
			h.fail(w, r, http.StatusForbidden, err)
			return
		}
	}
	page := strings.TrimPrefix(r.URL.Path, "/")
	if r.URL.Path == "" { // mounted without a slash: relative links would lead elsewhere
		requested, _, _ := strings.Cut(r.RequestURI, "?")
		w.Header().Set("Location", "./"+path.Base(requested)+"/")
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	serve := map[string]func(http.ResponseWriter, *http.Request) error{
		"": h.list, "lock": h.lock, "events": h.events, "break": h.breakLock,
		"style.css":    asset("text/css; charset=utf-8", style),
		"inspector.js": asset("text/javascript; charset=utf-8", script),
		"icon.svg":     asset("image/svg+xml; charset=utf-8", icon),
	}[page]
	switch {
	case serve == nil:
		h.fail(w, r, http.StatusNotFound, errors.New("there is no such page"))
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead && !(page == "break" && r.Method == http.MethodPost):
		w.Header().Set("Allow", "GET, HEAD")
		h.fail(w, r, http.StatusMethodNotAllowed, fmt.Errorf("the method %s is not allowed here", r.Method))
		return
	}
	if err := serve(w, r); err != nil {
		h.fail(w, r, status(err), err)
	}
}

func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "+
		"base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// refused is an error that is answered with a certain status.
type refused struct {
	status int
	err    error
}

func (r *refused) Error() string { return r.err.Error() }
func (r *refused) Unwrap() error { return r.err }

func badRequest(format string, args ...any) error {
	return &refused{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

func status(err error) int {
	var r *refused
	switch {
	case errors.As(err, &r):
		return r.status
	case errors.Is(err, lockkeeper.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, errBusy), errors.Is(err, lockkeeper.ErrUnavailable), errors.Is(err, lockkeeper.ErrClosed),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// fail answers with an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	if strings.HasSuffix(r.URL.Path, "events") { // nobody reads a page there
		http.Error(w, err.Error(), status)
		return
	}
	h.render(w, status, "error", errorView{h.frame(http.StatusText(status), ""), message(err)})
}

// errorView is the data of an error's page.
type errorView struct {
	frame
	Text text
}

// frame is what all pages have.
type frame struct {
	Site     string // the title of all pages
	Page     string // that of this one
	Revision string // of the style and the script
	Events   string // the URL of the event stream that updates the page; "" if there is none
	Server   text   // nil if it is not known
	Prefix   text
}

func (h *Handler) frame(page, events string) frame {
	return frame{h.opts.Title, page, revision, events, visible(h.opts.Server), visible(h.prefix)}
}

// render writes a page, or nothing of it if it has a mistake.
func (h *Handler) render(w http.ResponseWriter, status int, name string, data any) {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		h.opts.Logger.Error("inspector: cannot render a page", "page", name, "err", err)
		http.Error(w, "cannot render the page", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails if the client has gone
}

// asset serves a file. Its URL has the revision, so it need not be asked for again.
func asset(contentType string, content []byte) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Type", contentType)
		if r.URL.Query().Get("v") == revision {
			w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		return nil
	}
}

func mustRead(name string) []byte {
	b, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return b
}

func revisionOf(files ...[]byte) string {
	sum := sha256.Sum256(bytes.Join(files, nil))
	return hex.EncodeToString(sum[:6])
}
