package httplimit_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/ratelimit/httplimit"
)

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
					if err != nil || response.StatusCode != x.status {
						t.Fatalf("%v, %v", response, err)
					}
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
		start := time.Now()
		r, _ := newRequest(t, t.Context())
		response, err := newTransport(t, limiter, base, o).RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") != "20" {
			t.Errorf("%v, %v", response, err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("the response was delayed by %v", d)
		}
		if !errors.Is(failure, lockkeeper.ErrUnavailable) {
			t.Errorf("OnPause was called with %v", failure)
		}
		s.Restore()
	})
}
