package httplimit_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/ratelimit/httplimit"
)

// newLimiter returns a limiter named api on a server of its own.
func newLimiter(t *testing.T, limit int, window time.Duration) (*ratelimit.Limiter, *lockkeepertest.Server) {
	t.Helper()
	s := lockkeepertest.New(t)
	l := must.Get(ratelimit.New(s.Keeper(t, nil), "api", limit, window, nil))(t)
	return l, s
}

// held returns a limiter of which only the bound on concurrent calls, n, is ever reached.
func held(t *testing.T, n int) *ratelimit.ConcurrentLimiter {
	t.Helper()
	return must.Get(ratelimit.NewConcurrent(lockkeepertest.New(t).Keeper(t, nil), "api", 1000, time.Second, n, nil))(t)
}

// limiter is a limiter of either kind.
type limiter interface {
	Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error
}

// kinds open a limiter of either kind.
var kinds = map[string]func(k *lockkeeper.Keeper, limit int, window time.Duration) (limiter, error){
	"Limiter": func(k *lockkeeper.Keeper, limit int, window time.Duration) (limiter, error) {
		return ratelimit.New(k, "api", limit, window, nil)
	},
	"ConcurrentLimiter": func(k *lockkeeper.Keeper, limit int, window time.Duration) (limiter, error) {
		return ratelimit.NewConcurrent(k, "api", limit, window, 5, nil)
	},
}

// requireHeld checks how many permits are held.
func requireHeld(t *testing.T, l *ratelimit.ConcurrentLimiter, want int) {
	t.Helper()
	holders, err := l.Holders(t.Context())
	must.That(t, len(holders) == want && err == nil, "holders %v, %v; want %d", holders, err, want)
}

func newTransport(t *testing.T, l limiter, base http.RoundTripper, o *httplimit.TransportOptions) (transport *httplimit.Transport) {
	t.Helper()
	var err error
	switch l := l.(type) {
	case *ratelimit.Limiter:
		transport, err = httplimit.NewTransport(l, base, o)
	case *ratelimit.ConcurrentLimiter:
		transport, err = httplimit.NewConcurrentTransport(l, base, o)
	}
	must.OK(t, err)
	return transport
}

// fake is a base that answers without a network.
type fake func(*http.Request) (*http.Response, error)

func (f fake) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// respond returns a response with a status and a body. The headers are pairs.
func respond(status int, body io.ReadCloser, headers ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: body}
}

// ok answers every request.
var ok = fake(func(*http.Request) (*http.Response, error) { return respond(200, http.NoBody), nil })

// newRequest returns a request whose body records that it was closed.
func newRequest(t *testing.T, ctx context.Context) (*http.Request, *closer) {
	t.Helper()
	body := &closer{Reader: strings.NewReader("x")}
	return must.Get(http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:1", body))(t), body
}

type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error {
	c.closed = true
	return nil
}

func TestPermitHeldUntilBodyClosed(t *testing.T) {
	permits := held(t, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/end" { // the permit is released before the second request needs it
			http.Redirect(w, r, "/end", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "hello")
	}))
	defer server.Close()
	client := &http.Client{Transport: newTransport(t, permits, nil, nil), Timeout: time.Minute}
	defer client.CloseIdleConnections()
	response := must.Get(client.Get(server.URL))(t)
	b, err := io.ReadAll(response.Body)
	check.That(t, string(b) == "hello" && err == nil, "%q, %v", b, err)
	requireHeld(t, permits, 1)
	for range 2 { // closing again releases nothing
		must.Report(t, response.Body.Close())
		requireHeld(t, permits, 0)
	}
}

// connection is the body of an upgraded connection, which calls a function when it is closed.
type connection struct {
	io.Reader
	written strings.Builder
	closing func()
}

func (c *connection) Write(p []byte) (int, error) { return c.written.Write(p) }

func (c *connection) Close() error {
	c.closing()
	return nil
}

// TestLeaseOfRequest checks that the lease is in the context of the request as it is sent, and not of the caller's; that the connection can
// be written if it was upgraded; and that the permit returns after the body was closed: to close it may end the request at the
// service, or read the rest of the response.
func TestLeaseOfRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := held(t, 1)
		closed := 0
		var conn *connection
		base := fake(func(r *http.Request) (*http.Response, error) {
			lease := lockkeeper.LeaseFromContext(r.Context())
			conn = &connection{closing: func() {
				closed++
				requireHeld(t, permits, 1)
				if lease == nil || lease.Name() != "api" || lease.Err() != nil || r.Context().Err() != nil {
					t.Errorf("as the body is closed, the lease %v has ended: %v, %v", lease, lease.Err(), r.Context().Err())
				}
			}}
			return respond(101, conn), nil
		})
		r, _ := newRequest(t, t.Context())
		response := must.Get(newTransport(t, permits, base, nil).RoundTrip(r))(t)
		if _, err := io.WriteString(response.Body.(io.Writer), "ping"); err != nil || conn.written.String() != "ping" {
			t.Errorf("%q, %v", conn.written.String(), err)
		}
		if err := response.Body.Close(); err != nil || closed != 1 {
			t.Errorf("%v, closed %d times", err, closed)
		}
		requireHeld(t, permits, 0)
		check.That(t, lockkeeper.LeaseFromContext(r.Context()) == nil, "the caller's request was changed")
	})
}

// TestNoPermitIsKept checks that a request returns its permit if there is no body to close.
func TestNoPermitIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		permits := held(t, 1)
		failure := errors.New("connection refused")
		panics := &httplimit.TransportOptions{OnPause: func(time.Duration, error) { panic("a bug") }}
		for name, x := range map[string]struct {
			base  fake
			err   error
			panic any
		}{
			"no body":          {base: func(*http.Request) (*http.Response, error) { return respond(204, nil), nil }},
			"error":            {base: func(*http.Request) (*http.Response, error) { return nil, failure }, err: failure},
			"error with reply": {base: func(*http.Request) (*http.Response, error) { return respond(502, http.NoBody), failure }, err: failure},
			"panic":            {base: func(*http.Request) (*http.Response, error) { panic("a bug") }, panic: "a bug"},
			"panic of OnPause": {
				base:  func(*http.Request) (*http.Response, error) { return respond(429, http.NoBody, "Retry-After", "1"), nil },
				panic: "a bug",
			},
		} {
			func() {
				defer func() {
					got := recover()
					check.That(t, got == x.panic, "%s: recovered %v", name, got)
				}()
				r, _ := newRequest(t, t.Context())
				response, err := newTransport(t, permits, x.base, panics).RoundTrip(r)
				if !errors.Is(err, x.err) || (response == nil) != (x.err != nil) || response != nil && response.Body != nil {
					t.Errorf("%s: %v, %v", name, response, err)
				}
			}()
			requireHeld(t, permits, 0)
		}
	})
}

func TestRequestNotSentIfPermitIsTooLate(t *testing.T) {
	for kind, open := range kinds {
		for name, x := range map[string]struct{ context, maxWait time.Duration }{
			"context": {context: time.Minute}, "MaxWait": {context: time.Hour, maxWait: time.Minute},
		} {
			synctest.Test(t, func(t *testing.T) {
				limiter := must.Get(open(lockkeepertest.New(t).Keeper(t, nil), 1, 2*time.Hour))(t)
				must.OK(t, limiter.Do(t.Context(), func(context.Context, uint64) error { return nil }))
				ctx := must.Within(t, x.context)
				base := fake(func(*http.Request) (*http.Response, error) {
					t.Error("the request was sent")
					return respond(200, http.NoBody), nil
				})
				r, body := newRequest(t, ctx)
				_, err := newTransport(t, limiter, base, &httplimit.TransportOptions{MaxWait: x.maxWait}).RoundTrip(r)
				var limited *ratelimit.LimitedError
				check.That(t, errors.As(err, &limited) && limited.RetryAfter >= 119*time.Minute && body.closed,
					"%s, %s: %v; the request's body was closed: %t", name, kind, err, body.closed)
			})
		}
	}
}

// TestWaitsForWindow: the requests of several transports on one limiter are sent as its window permits.
func TestWaitsForWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, _ := newLimiter(t, 2, time.Second)
		// MaxWait bounds the wait alone. It does not end the request's context.
		base := fake(func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Minute)
			return respond(200, http.NoBody), r.Context().Err()
		})
		start := time.Now()
		done := make(chan time.Duration)
		for range 5 {
			r, _ := newRequest(t, t.Context())
			go func() {
				_, err := newTransport(t, limiter, base, &httplimit.TransportOptions{MaxWait: 10 * time.Second}).RoundTrip(r)
				must.Report(t, err)
				done <- time.Since(start) - time.Minute
			}()
		}
		var sent []time.Duration
		for range 5 {
			sent = append(sent, (<-done).Truncate(100*time.Millisecond))
		}
		for i, want := range []time.Duration{0, 0, time.Second, time.Second, 2 * time.Second} {
			check.That(t, sent[i] == want, "sent after %v, want %v for the request %d", sent, want, i)
		}
	})
}

func TestLostLeaseEndsRequest(t *testing.T) {
	for _, begun := range []bool{false, true} { // the response, when the lease is lost
		for _, http2 := range []bool{false, true} { // which does not tell the cause of the context
			redis := lockkeepertest.New(t)
			permits := must.Get(ratelimit.NewConcurrent(redis.Keeper(t, nil), "api", 1000, time.Second, 1, &ratelimit.ConcurrentOptions{TTL: 300 * time.Millisecond}))(t)
			reached := make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if begun {
					_ = http.NewResponseController(w).Flush()
				}
				close(reached)
				<-r.Context().Done()
				panic(http.ErrAbortHandler) // or the client could read a whole response before its connection is closed
			}))
			server.EnableHTTP2 = http2
			server.StartTLS()
			go func() {
				<-reached
				redis.Flush(t)
			}()
			client := &http.Client{Transport: newTransport(t, permits, server.Client().Transport, nil)}
			response, err := client.Get(server.URL)
			if begun && err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			check.Is(t, err, lockkeeper.ErrLost, "the error")
			client.CloseIdleConnections()
			server.Close()
		}
	}
}

func TestTransportOptionsChecked(t *testing.T) {
	limiter, _ := newLimiter(t, 1, time.Second)
	_, without := httplimit.NewTransport(nil, ok, nil)
	_, withoutEither := httplimit.NewConcurrentTransport(nil, ok, nil)
	for _, err := range []error{without, withoutEither} {
		if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), "limiter") {
			t.Error(err)
		}
	}
	for want, o := range map[string]httplimit.TransportOptions{
		"MaxWait -1ns": {MaxWait: -1}, "MaxPause 999ms": {MaxPause: 999 * time.Millisecond}, "MaxPause 24h0m1s": {MaxPause: 24*time.Hour + time.Second},
	} {
		_, err := httplimit.NewTransport(limiter, ok, &o)
		_, err2 := httplimit.NewConcurrentTransport(held(t, 1), ok, &o)
		if !errors.Is(err2, lockkeeper.ErrInvalid) || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

const date = "Mon, 02 Jan 2006 15:04:05 GMT"

// TestRetryAfterPausesOtherProcesses: a response to one process holds back another, for as long as it says.
func TestRetryAfterPausesOtherProcesses(t *testing.T) {
	for kind, open := range kinds {
		for _, x := range []struct {
			name    string
			status  int
			headers []string
			o       httplimit.TransportOptions
			want    time.Duration
		}{
			{"seconds", 429, []string{"Retry-After", "20"}, httplimit.TransportOptions{}, 20 * time.Second},
			{"unavailable", 503, []string{"Retry-After", "20"}, httplimit.TransportOptions{}, 20 * time.Second},
			{"date", 429, []string{"Retry-After", "Mon, 02 Jan 2006 15:05:00 GMT", "Date", date}, httplimit.TransportOptions{}, 55 * time.Second},
			{"date without Date", 429, []string{"Retry-After", "Mon, 02 Jan 2006 15:05:00 GMT"}, httplimit.TransportOptions{}, 0},
			{"date in the past", 429, []string{"Retry-After", date, "Date", "Mon, 02 Jan 2006 15:05:00 GMT"}, httplimit.TransportOptions{}, 0},
			{"zero", 429, []string{"Retry-After", "0"}, httplimit.TransportOptions{}, 0},
			{"negative", 429, []string{"Retry-After", "-1"}, httplimit.TransportOptions{}, 0},
			{"nonsense", 429, []string{"Retry-After", "soon"}, httplimit.TransportOptions{}, 0},
			{"none", 429, nil, httplimit.TransportOptions{}, 0},
			{"other status", 301, []string{"Retry-After", "20"}, httplimit.TransportOptions{}, 0},
			{"long", 429, []string{"Retry-After", "86400"}, httplimit.TransportOptions{}, 5 * time.Minute},
			{"too many digits", 429, []string{"Retry-After", "18446744073709551615"}, httplimit.TransportOptions{MaxPause: time.Hour}, time.Hour},
			{"off", 429, []string{"Retry-After", "20"}, httplimit.TransportOptions{NoPause: true}, 0},
		} {
			t.Run(kind+", "+x.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := lockkeepertest.New(t)
					var paused []time.Duration
					x.o.OnPause = func(d time.Duration, err error) {
						paused = append(paused, d)
						must.Report(t, err)
					}
					base := fake(func(*http.Request) (*http.Response, error) { return respond(x.status, http.NoBody, x.headers...), nil })
					var transports []*httplimit.Transport
					for _, base := range []fake{base, ok} {
						l := must.Get(open(s.Keeper(t, nil), 100, time.Second))(t)
						transports = append(transports, newTransport(t, l, base, &x.o))
					}
					start := time.Now()
					// The caller may have given up meanwhile.
					ctx, cancel := context.WithCancel(t.Context())
					r, _ := newRequest(t, ctx)
					response, err := transports[0].RoundTrip(r)
					cancel()
					must.That(t, err == nil && response.StatusCode == x.status, "%v, %v", response, err)
					response.Body.Close()
					r, _ = newRequest(t, t.Context())
					if response, err = transports[1].RoundTrip(r); err != nil || response.StatusCode != http.StatusOK {
						t.Fatalf("%v, %v", response, err)
					}
					response.Body.Close()
					if d := time.Since(start); d < x.want || d > x.want+100*time.Millisecond {
						t.Errorf("the other process sent after %v, want %v", d, x.want)
					}
					if x.want > 0 && (len(paused) != 1 || paused[0] != x.want) || x.want == 0 && len(paused) > 0 {
						t.Errorf("OnPause was called with %v, want %v", paused, x.want)
					}
				})
			})
		}
	}
}

// TestEndsTogether: what ends a request can coincide. The steps happen in this order when it has been sent, and then its response or its
// error arrives.
func TestEndsTogether(t *testing.T) {
	for _, c := range []struct {
		kind, steps string
		errors      []error // all that the error matches; none: a response arrives, which asks for a pause
		paused      bool    // another process
	}{
		{"Limiter", "cancel", nil, true},
		{"Limiter", "close", nil, false},
		{"Limiter", "outage cancel", nil, false},
		{"Limiter", "cancel", []error{context.Canceled}, false},
		{"ConcurrentLimiter", "cancel", nil, true},
		{"ConcurrentLimiter", "lose", nil, true},
		{"ConcurrentLimiter", "lose ended", nil, true},
		{"ConcurrentLimiter", "cancel lose", nil, true},
		{"ConcurrentLimiter", "lose ended cancel", nil, true},
		{"ConcurrentLimiter", "close", nil, false},
		{"ConcurrentLimiter", "outage cancel", nil, false},
		{"ConcurrentLimiter", "cancel", []error{context.Canceled}, false},
		{"ConcurrentLimiter", "cancel lose", []error{context.Canceled}, false},
		{"ConcurrentLimiter", "lose ended", []error{lockkeeper.ErrLost}, false},
		{"ConcurrentLimiter", "lose ended cancel", []error{lockkeeper.ErrLost, context.Canceled}, false},
		{"ConcurrentLimiter", "close", []error{context.Canceled}, false},
	} {
		t.Run(fmt.Sprint(c.kind, ", ", c.steps, ", ", c.errors), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := lockkeepertest.New(t)
				k := s.Keeper(t, nil)
				ctx, cancel := context.WithCancel(t.Context())
				step := map[string]func(context.Context){
					"cancel": func(context.Context) { cancel() },
					"lose":   func(context.Context) { s.LoseLease(t, "api") },
					"ended":  func(ctx context.Context) { <-ctx.Done() },
					"close":  func(context.Context) { must.Report(t, k.Close()) },
					"outage": func(context.Context) { s.Unreachable() },
				}
				base := fake(func(r *http.Request) (*http.Response, error) {
					for _, name := range strings.Fields(c.steps) {
						step[name](r.Context())
					}
					if len(c.errors) > 0 {
						return nil, context.Canceled // as HTTP/2 says, whatever the cause
					}
					return respond(429, http.NoBody, "Retry-After", "20"), nil
				})
				asked := 0
				o := &httplimit.TransportOptions{OnPause: func(_ time.Duration, err error) {
					asked++
					check.That(t, (err == nil) == c.paused, "OnPause was called with %v", err)
				}}
				r, _ := newRequest(t, ctx)
				response, err := newTransport(t, must.Get(kinds[c.kind](k, 100, time.Second))(t), base, o).RoundTrip(r)
				check.That(t, (err == nil) == (len(c.errors) == 0) && (asked == 1) == (err == nil), "%v, %d pauses", err, asked)
				for _, want := range c.errors {
					check.Is(t, err, want, "the error")
				}
				if err == nil {
					check.That(t, response.StatusCode == 429, "status %d", response.StatusCode)
					must.Report(t, response.Body.Close())
				}
				s.Restore()
				start := time.Now()
				other := must.Get(kinds[c.kind](s.Keeper(t, nil), 100, time.Second))(t)
				must.Report(t, other.Do(t.Context(), func(context.Context, uint64) error { return nil }))
				check.That(t, (time.Since(start) > 19*time.Second) == c.paused, "another process waited for %v", time.Since(start))
				time.Sleep(time.Minute) // until all permits have returned
			})
		})
	}
}

// TestResponseIsReturnedIfPauseFails: while Redis does not answer, the response is delayed by a second at most.
func TestResponseIsReturnedIfPauseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, s := newLimiter(t, 100, time.Second)
		var failure error
		base := fake(func(*http.Request) (*http.Response, error) {
			s.Unreachable()
			return respond(429, http.NoBody, "Retry-After", "20"), nil
		})
		o := &httplimit.TransportOptions{OnPause: func(_ time.Duration, err error) { failure = err }}
		log := defaultLog(t)
		start := time.Now()
		r, _ := newRequest(t, t.Context())
		response, err := newTransport(t, limiter, base, o).RoundTrip(r)
		check.That(t, err == nil && response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "20",
			"%v, %v", response, err)
		d := time.Since(start)
		check.That(t, d <= time.Second, "the response was delayed by %v", d)
		check.That(t, errors.Is(failure, lockkeeper.ErrUnavailable), "OnPause was called with %v", failure)
		check.That(t, log.String() == "", "logged in addition to OnPause: %s", log)
		s.Restore()
		r, _ = newRequest(t, t.Context())
		_, err = newTransport(t, limiter, base, nil).RoundTrip(r)
		check.That(t, err == nil && strings.Contains(log.String(), "cannot be paused"), "without OnPause: %v, logged %q", err, log)
		s.Restore()
	})
}
