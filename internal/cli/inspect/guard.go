package inspect

import (
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
)

// A guard lets requests through to the pages that this machine's browser has sent on behalf of its user.
type guard struct {
	loopback bool   // the pages are only reachable from this machine
	token    string // that requests need; "" if they need none
	cookie   string // the name of the cookie that has the token
	pages    http.Handler
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A page of another site can make its own name resolve to 127.0.0.1, and then read from here what it likes: to the browser it
	// is the same site. The name is in the header. With a token that is no risk: cookies are not sent to that name.
	if g.loopback && !isLoopback(hostOf(r.Host)) {
		http.Error(w, "this name is not served here; use 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
		return
	}
	if g.token == "" {
		g.pages.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	if q := r.URL.Query(); q.Has("token") && r.Method == http.MethodGet {
		if !g.matches(q.Get("token")) {
			http.Error(w, "the token is not the one of this run; open the URL that lockkeeper inspect has printed last", http.StatusForbidden)
			return
		}
		http.SetCookie(w, &http.Cookie{Name: g.cookie, Value: g.token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		q.Del("token")
		to := url.URL{Path: r.URL.Path, RawQuery: q.Encode()}
		w.Header().Set("Location", to.String()) // the token is not left in the address bar
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	if c, err := r.Cookie(g.cookie); err != nil || !g.matches(c.Value) {
		http.Error(w, "open the URL that lockkeeper inspect has printed: it has a token", http.StatusForbidden)
		return
	}
	g.pages.ServeHTTP(w, r)
}

func (g *guard) matches(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(g.token)) == 1
}

// hostOf returns a Host header without the port.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	if n := len(header); n > 2 && header[0] == '[' && header[n-1] == ']' {
		return header[1 : n-1]
	}
	return header
}
