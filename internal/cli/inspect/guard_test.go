package inspect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

func ask(g *guard, method, url, cookie string) *httptest.ResponseRecorder {
	g.pages = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, "locks") })
	r := httptest.NewRequest(method, url, nil)
	if cookie != "" {
		r.AddCookie(&http.Cookie{Name: "lockkeeper_7070", Value: cookie})
	}
	w := httptest.NewRecorder()
	g.ServeHTTP(w, r)
	return w
}

// A page whose name was made to resolve to this machine cannot read anything.
func TestOtherNamesRefused(t *testing.T) {
	g := &guard{loopback: true}
	for host, want := range map[string]int{
		"127.0.0.1:7070": 200, "localhost:7070": 200, "localhost": 200, "[::1]:7070": 200, "[::1]": 200, "127.0.0.1:8080": 200,
		"evil.example:7070": 421, "evil.example": 421, "localhost.evil.example": 421, "192.168.1.7:7070": 421, "": 421, "127.0.0.1.evil.example": 421,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		g.pages = http.NotFoundHandler()
		g.ServeHTTP(w, r)
		if got := w.Code; got != want && (want == 421 || got != 404) {
			t.Errorf("%q: %d, want %d", host, got, want)
		}
	}
}

func TestTokenRequired(t *testing.T) {
	g := &guard{loopback: true, token: "right", cookie: "lockkeeper_7070"}
	const site = "http://127.0.0.1:7070"
	for _, c := range []struct {
		method, url, cookie string
		want                int
	}{
		{"GET", "/", "", 403}, {"GET", "/", "wrong", 403}, {"POST", "/break?token=right", "", 403}, {"GET", "/?token=wrong", "", 403},
		{"GET", "/?token=", "right", 403}, {"GET", "/", "right", 200}, {"POST", "/break", "right", 200}, {"GET", "/style.css", "", 403},
	} {
		w := ask(g, c.method, site+c.url, c.cookie)
		check.That(t, w.Code == c.want && (w.Body.String() == "locks") == (c.want == 200), "%+v: %d %s", c, w.Code, w.Body)
	}
	w := ask(g, "GET", site+"/lock?kind=fair&name=%ff&token=right", "")
	cookie := w.Result().Cookies()
	must.That(t, w.Code == 303 && w.Header().Get("Location") == "/lock?kind=fair&name=%FF" && len(cookie) == 1,
		"%d %v", w.Code, w.Header())
	if c := cookie[0]; c.Value != "right" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Name != g.cookie {
		t.Errorf("%+v", c)
	}
}
