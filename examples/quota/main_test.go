package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// The processes that call the API are this very binary.
func TestMain(m *testing.M) {
	if os.Getenv(envAPI) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestProcessesStayWithinBothLimits(t *testing.T) {
	got, err := run("", 2*time.Second)
	// On a busy machine it takes longer until more is called than a window permits.
	for length := 4 * time.Second; err == nil && got.guarded.calls <= perWindow && length <= 16*time.Second; length *= 2 {
		got, err = run("", length)
	}
	if err != nil {
		t.Fatal(err)
	}
	got.print(t.Output()) // how much there is without the limit is a matter of the machine
	if err := got.guarded.broken(); errors.Is(err, errMargin) {
		t.Log(err)
	} else if err != nil {
		t.Error(err)
	}
	if got.guarded.calls <= perWindow || got.guarded.granted == 0 {
		t.Errorf("%+v: the limits were not put to the test", got.guarded)
	}
	if got.answers[2] != http.StatusOK || got.answers[3] != http.StatusTooManyRequests || got.retryAfter == "" {
		t.Errorf("behind the middleware: %d, Retry-After: %s", got.answers, got.retryAfter)
	}
}

// newLimiter returns a limiter on a server of its own.
func newLimiter(t *testing.T, limit int, window time.Duration, o *ratelimit.Options) (*ratelimit.Limiter, *miniredis.Miniredis) {
	t.Helper()
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	k, end, err := connect("redis://" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	l, err := ratelimit.New(k, "x", limit, window, o)
	if err != nil {
		t.Fatal(err)
	}
	return l, server
}

// held returns a limiter that bounds only how many permits are held: the limit of its window is not reached.
func held(t *testing.T, n int) *ratelimit.Limiter {
	t.Helper()
	l, _ := newLimiter(t, 1000, time.Second, &ratelimit.Options{MaxConcurrent: n})
	return l
}

// free checks how many permits there are.
func free(t *testing.T, s *ratelimit.Limiter, want int) {
	t.Helper()
	if n, err := s.Available(t.Context()); n != want || err != nil {
		t.Errorf("%d permits, %v; want %d", n, err, want)
	}
}

func TestPermitHeldUntilBodyClosed(t *testing.T) {
	permits := held(t, 3)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	defer server.Close()
	client := &http.Client{Transport: &transport{permits, http.DefaultTransport}}
	response, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(response.Body); string(b) != "hello" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	free(t, permits, 2)
	for range 2 { // closing again gives nothing back
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		free(t, permits, 3)
	}
}

// closes notes that it was closed.
type closes struct {
	io.Reader
	closed bool
}

func (c *closes) Close() error {
	c.closed = true
	return nil
}

func TestFailedCallReleasesPermit(t *testing.T) {
	permits := held(t, 1)
	_, err := (&http.Client{Transport: &transport{permits, http.DefaultTransport}}).Get("http://127.0.0.1:1")
	if err == nil {
		t.Fatal("somebody answered")
	}
	free(t, permits, 1)
}

// panics is a transport with a bug.
type panics struct{}

func (panics) RoundTrip(*http.Request) (*http.Response, error) { panic("a bug") }

func TestPanickingCallReleasesPermit(t *testing.T) {
	permits := held(t, 1)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_, _ = (&http.Client{Transport: &transport{permits, panics{}}}).Get("http://127.0.0.1:1")
	}()
	free(t, permits, 1)
}

func TestRequestWithoutHeaders(t *testing.T) {
	permits := held(t, 1)
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}
	if _, err := (&transport{permits, http.DefaultTransport}).RoundTrip(r); err == nil {
		t.Error("somebody answered")
	}
	free(t, permits, 1)
}

func TestCallNotMadeIfPermitIsTooLate(t *testing.T) {
	for _, maxConcurrent := range []int{0, 1} {
		callNotMade(t, maxConcurrent)
	}
}

func callNotMade(t *testing.T, maxConcurrent int) {
	limiter, _ := newLimiter(t, 1, time.Hour, &ratelimit.Options{MaxConcurrent: maxConcurrent})
	var next http.RoundTripper = &pacedTransport{limiter, http.DefaultTransport}
	if maxConcurrent > 0 {
		next = &transport{limiter, http.DefaultTransport}
	}
	if err := limiter.Do(t.Context(), func(context.Context, uint64) error { return nil }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in := &closes{Reader: strings.NewReader("x")}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:1", in)
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&http.Client{Transport: next}).Do(r)
	var soon *ratelimit.LimitedError
	if !errors.As(err, &soon) || soon.RetryAfter < 59*time.Minute {
		t.Errorf("%v", err)
	}
	if !in.closed {
		t.Error("the request's body was not closed")
	}
}

func TestLostLeaseEndsCall(t *testing.T) {
	for _, begun := range []bool{false, true} { // the response, when the lease is lost
		permits, redis := newLimiter(t, 1000, time.Second, &ratelimit.Options{MaxConcurrent: 1, TTL: 300 * time.Millisecond})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if begun {
				_ = http.NewResponseController(w).Flush()
			}
			redis.FlushAll()
			<-r.Context().Done()
		}))
		client := &http.Client{Transport: &transport{permits, http.DefaultTransport}}
		response, err := client.Get(server.URL)
		if begun && err == nil {
			_, err = io.ReadAll(response.Body)
			_ = response.Body.Close()
		}
		if !errors.Is(err, lockkeeper.ErrLost) {
			t.Errorf("begun %t: %v", begun, err)
		}
		server.Close()
	}
}

func TestMiddlewareSetsHeaders(t *testing.T) {
	limiter, redis := newLimiter(t, 2, 90*time.Second-time.Millisecond, nil)
	h := limit(limiter, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	expect := func(code int, limit, remaining, reset, retryAfter string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		got := []string{w.Header().Get("RateLimit-Limit"), w.Header().Get("RateLimit-Remaining"), w.Header().Get("RateLimit-Reset"), w.Header().Get("Retry-After")}
		if want := []string{limit, remaining, reset, retryAfter}; w.Code != code || !slices.Equal(got, want) {
			t.Errorf("%d, headers %q; want %d, %q", w.Code, got, code, want)
		}
	}
	expect(200, "2", "1", "90", "")
	expect(200, "2", "0", "90", "")
	expect(429, "2", "0", "90", "90")
	redis.SetError("ERR no")
	expect(503, "", "", "", "")
}

func TestMostWithinWindow(t *testing.T) {
	var times []time.Time
	for _, ms := range []int{0, 900, 1000, 1400, 1899, 1900, 5000} {
		times = append(times, time.Unix(0, 0).Add(time.Duration(ms)*time.Millisecond))
	}
	if n := mostWithin(times, time.Second); n != 4 { // 900 to 1899, or 1000 to 1900: a window does not hold its end
		t.Errorf("%d", n)
	}
}

func TestBrokenLimitReported(t *testing.T) {
	for _, x := range []struct {
		tally
		want string
	}{
		{tally{atOnce: atOnce, inWindow: perWindow, granted: perWindow, spread: time.Hour}, ""},
		{tally{atOnce: atOnce + 1}, "at once"},
		{tally{granted: perWindow + 1}, "permits"},
		{tally{inWindow: perWindow + 1, spread: margin}, "101 calls in 1s"},
		{tally{inWindow: perWindow + 1, spread: margin + 1}, errMargin.Error()},
	} {
		if err := x.broken(); (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x.tally, err)
		}
	}
}
