package httplimit_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/ratelimit/httplimit"
)

var empty = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func newHandler(t *testing.T, limiter func(*http.Request) (*ratelimit.Limiter, error), o *httplimit.HandlerOptions) http.Handler {
	t.Helper()
	return must.Get(httplimit.NewHandler(limiter, empty, o))(t)
}

// serve returns the response to a request from an address.
func serve(t *testing.T, h http.Handler, from string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const someone = "192.0.2.1:1234"

func TestHandlerSetsHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, _ := newLimiter(t, 2, 90*time.Second-time.Millisecond)
		h := newHandler(t, httplimit.Shared(limiter), nil)
		for i, want := range [][]string{{"2", "1", "90", ""}, {"2", "0", "90", ""}, {"2", "0", "90", "90"}} {
			w := serve(t, h, someone)
			code := http.StatusOK
			if i == 2 {
				code = http.StatusTooManyRequests
			}
			var got []string
			for _, name := range []string{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "Retry-After"} {
				got = append(got, w.Header().Get(name))
			}
			check.That(t, w.Code == code && slices.Equal(got, want), "%d, headers %q; want %d, %q", w.Code, got, code, want)
		}
		// Retry-After is never 0, which would mean at once.
		time.Sleep(90*time.Second - 10*time.Millisecond)
		if w := serve(t, h, someone); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
		}
		time.Sleep(time.Second)
		if w := serve(t, h, someone); w.Code != http.StatusOK {
			t.Errorf("%d after the Retry-After", w.Code)
		}
	})
}

func TestHandlerWithoutRedis(t *testing.T) {
	for failOpen, code := range map[bool]int{false: http.StatusServiceUnavailable, true: http.StatusOK} {
		synctest.Test(t, func(t *testing.T) {
			limiter, redis := newLimiter(t, 2, time.Minute)
			var mu sync.Mutex
			var errs []error
			h := newHandler(t, httplimit.Shared(limiter), &httplimit.HandlerOptions{FailOpen: failOpen, Timeout: 5 * time.Second, OnError: func(_ *http.Request, err error) {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}})
			redis.Unreachable()
			start := time.Now()
			if w := serve(t, h, someone); w.Code != code || w.Header().Get("RateLimit-Limit") != "" {
				t.Errorf("FailOpen %t: %d, %v", failOpen, w.Code, w.Header())
			}
			check.That(t, len(errs) == 1 && errors.Is(errs[0], lockkeeper.ErrUnavailable), "FailOpen %t: %v", failOpen, errs)
			d := time.Since(start)
			check.That(t, d <= 5*time.Second, "FailOpen %t: it took %v, the Timeout is 5s", failOpen, d)
			redis.Restore()
			if w := serve(t, h, someone); w.Code != http.StatusOK || w.Header().Get("RateLimit-Limit") != "2" {
				t.Errorf("FailOpen %t: %d, %v", failOpen, w.Code, w.Header())
			}
		})
	}
}

// defaultLog makes slog.Default log to the buffer that it returns, until the test ends.
func defaultLog(t *testing.T) *quiet.Buffer {
	log, before := &quiet.Buffer{}, slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return log
}

// TestErrorsAreLoggedByDefault: without OnError the log says once a minute that limits cannot be checked, but not because of clients that
// have gone.
func TestErrorsAreLoggedByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, redis := newLimiter(t, 2, time.Minute)
		log := defaultLog(t)
		h := newHandler(t, httplimit.Shared(limiter), &httplimit.HandlerOptions{FailOpen: true})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil))
		check.That(t, log.String() == "", "logged of a client that has gone: %s", log)
		redis.Unreachable()
		for range 100 {
			serve(t, h, someone)
			time.Sleep(time.Second)
		}
		redis.Restore()
		n := strings.Count(log.String(), "cannot be checked")
		check.That(t, n >= 2 && n <= 4 && strings.Contains(log.String(), "unavailable"), "logged %d times:\n%s", n, log)
	})
}

func TestHandlerPerClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := lockkeepertest.New(t).Keeper(t, nil)
		limiter, err := httplimit.PerKey(k, "per-client", 1, time.Minute, func(r *http.Request) string {
			if r.RemoteAddr == "exempt" {
				return ""
			}
			return httplimit.RemoteIP(r)
		}, nil)
		must.OK(t, err)
		h := newHandler(t, limiter, nil)
		for _, c := range []struct {
			from string
			code int
		}{
			{"192.0.2.1:1", 200}, {"192.0.2.1:2", 429}, {"192.0.2.2:1", 200},
			{"[2001:db8::1]:1", 200}, {"[2001:db8::2]:1", 429}, {"[2001:db8:0:1::1]:1", 200},
			{"exempt", 200}, {"exempt", 200},
			{strings.Repeat("}{", 2000), 200}, {strings.Repeat("}{", 2000), 429},
		} {
			w := serve(t, h, c.from)
			check.That(t, w.Code == c.code, "%.30s: %d, want %d", c.from, w.Code, c.code)
		}
	})
}

func TestHandlerOptionsChecked(t *testing.T) {
	limiter, s := newLimiter(t, 1, time.Second)
	shared := httplimit.Shared(limiter)
	_, noNext := httplimit.NewHandler(shared, nil, nil)
	_, noLimiter := httplimit.NewHandler(nil, empty, nil)
	_, noShared := httplimit.Shared(nil)(nil)
	_, noTime := httplimit.NewHandler(shared, empty, &httplimit.HandlerOptions{Timeout: time.Microsecond})
	_, noKey := httplimit.PerKey(s.Keeper(t, nil), "x", 1, time.Second, nil, nil)
	_, noLimit := httplimit.PerKey(s.Keeper(t, nil), "x", 0, time.Second, httplimit.RemoteIP, nil)
	_, noName := httplimit.PerKey(s.Keeper(t, nil), "}", 1, time.Second, httplimit.RemoteIP, nil)
	_, emptyName := httplimit.PerKey(s.Keeper(t, nil), "", 1, time.Second, httplimit.RemoteIP, nil)
	_, short := httplimit.PerKey(s.Keeper(t, nil), "x", 1, 100*time.Millisecond, httplimit.RemoteIP, &ratelimit.Options{Ahead: true})
	for want, err := range map[string]error{
		"next": noNext, "limiter": noLimiter, "the limiter is nil": noShared, "Timeout 1µs": noTime, "key": noKey, "limit 0": noLimit, "}": noName,
		`ratelimit "x": invalid argument: window 100ms`: short, "the name is empty": emptyName,
	} {
		check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), want), "%v, want %s", err, want)
	}
}
