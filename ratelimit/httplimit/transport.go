package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// TransportOptions are the settings of a Transport. Nil, and the zero value of each field, mean the defaults.
// They are copied.
type TransportOptions struct {
	// MaxWait bounds how long a request waits for its permit, in addition to the request's context. Not negative. Default 0: only the
	// context bounds the wait.
	MaxWait time.Duration

	// MaxPause is the longest pause that a response can cause by Retry-After; a longer one is cut to it. From 1 s to [ratelimit.MaxPause]. Default 5 min.
	MaxPause time.Duration

	// NoPause ignores Retry-After: responses cause no pause. Default false.
	NoPause bool

	// OnPause is called after a response has asked for a pause of d. Default: if the pause was not set, a warning is logged, once
	// a minute while pauses fail.
	//
	// The error is nil if the pause was set. OnPause is called concurrently, and must not block. The warning goes to
	// slog.Default().
	OnPause func(d time.Duration, err error)
}

// defaultMaxPause is the default of TransportOptions.MaxPause.
const defaultMaxPause = 5 * time.Minute

// Transport is an [http.RoundTripper] that sends each request when a rate limit permits it. It is safe for concurrent use.
//
// With a [ratelimit.ConcurrentLimiter] a request holds its permit until the response's body is closed, or until the request has
// failed. A body that is never closed holds the permit for ever, as it does the connection. If a request is abandoned, because
// its context ends or its body is closed early, the service may go on with it for a little longer than its permit is held.
//
// A response with status 429 Too Many Requests or 503 Service Unavailable and a Retry-After header pauses the limiter: until
// that time has passed, no process is granted a permit, even if it is waiting for one already. Requests that have a permit are
// sent. The pause lasts at most TransportOptions.MaxPause; then requests are sent again, whose responses may cause another one. See
// [ratelimit.Limiter.Pause]. A date in Retry-After counts from the Date of the response, so no clocks are compared;
// it is ignored in a response without a Date.
//
// Every request takes a permit of its own, also one that follows a redirect. The transport never repeats a request: it returns
// the response to the caller, who knows whether the request may be sent again.
type Transport struct {
	_ [0]sync.Mutex // so that go vet reports copies

	acquire func(ctx context.Context) (*lockkeeper.Lease, error) // the lease is nil if nothing is held
	pause   func(ctx context.Context, d time.Duration) error
	base    http.RoundTripper
	o       TransportOptions
	errors  server.LogLimit
}

// NewTransport returns a transport that waits for permits of the limiter and then sends the requests with base. A nil base is
// [http.DefaultTransport]. The error is [lockkeeper.ErrInvalid] if the limiter is nil or an option is out of range.
func NewTransport(limiter *ratelimit.Limiter, base http.RoundTripper, opts *TransportOptions) (*Transport, error) {
	if limiter == nil {
		return nil, server.Invalid("the limiter is nil")
	}
	wait := func(ctx context.Context) (*lockkeeper.Lease, error) { return nil, limiter.Wait(ctx) }
	return newTransport(&Transport{acquire: wait, pause: limiter.Pause, base: base}, opts)
}

// NewConcurrentTransport is NewTransport for a limiter that also bounds how many requests are in progress at the same time.
func NewConcurrentTransport(limiter *ratelimit.ConcurrentLimiter, base http.RoundTripper, opts *TransportOptions) (*Transport, error) {
	if limiter == nil {
		return nil, server.Invalid("the limiter is nil")
	}
	return newTransport(&Transport{acquire: limiter.Acquire, pause: limiter.Pause, base: base}, opts)
}

func newTransport(t *Transport, opts *TransportOptions) (*Transport, error) {
	if opts != nil {
		t.o = *opts
	}
	if t.base == nil {
		t.base = http.DefaultTransport
	}
	if t.o.OnPause == nil {
		t.o.OnPause = t.logPause
	}
	switch {
	case t.o.MaxWait < 0:
		return nil, server.Invalid("MaxWait %v is negative", t.o.MaxWait)
	case t.o.MaxPause == 0:
		t.o.MaxPause = defaultMaxPause
	case t.o.MaxPause < time.Second || t.o.MaxPause > ratelimit.MaxPause:
		return nil, server.Invalid("MaxPause %v is not between %v and %v", t.o.MaxPause, time.Second, ratelimit.MaxPause)
	}
	return t, nil
}

// RoundTrip waits for a permit, until the request's context ends or MaxWait has passed, and sends the request.
//
// If the permit cannot be available by then, RoundTrip fails at once with a [*ratelimit.LimitedError]; other errors of the wait
// are those of the limiter's Wait or Acquire. After these errors the request was not sent.
//
// With a [ratelimit.ConcurrentLimiter] the permit has a lease, which [lockkeeper.LeaseFromContext] finds in the request's context.
// If that lease is lost, the request or the reading of its response ends with an error that matches [lockkeeper.ErrLost].
//
// If the response asks for a pause, RoundTrip also waits until Redis has confirmed the pause, for at most a second.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	lease, err := t.permit(r.Context())
	if err != nil {
		if r.Body != nil {
			r.Body.Close() // as every RoundTripper has to
		}
		return nil, err
	}
	if lease == nil {
		response, err := t.base.RoundTrip(r)
		if err == nil {
			t.pauseFor(response)
		}
		return response, err
	}
	held := false  // by the body
	defer func() { // also if base or OnPause panics
		if !held {
			release(lease)
		}
	}()
	response, err := t.base.RoundTrip(r.WithContext(lease.Context(r.Context())))
	if err != nil {
		return nil, whyEnded(err, lease)
	}
	t.pauseFor(response)
	if response.Body != nil {
		response.Body, held = holding(response.Body, lease), true
	}
	return response, nil
}

// pauseFor pauses the limiter if the response asks for it. It does so before the caller sees the response, who may send the next
// request at once. The request's context may have ended.
func (t *Transport) pauseFor(response *http.Response) {
	d := min(retryAfter(response), t.o.MaxPause)
	if d <= 0 || t.o.NoPause {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := t.pause(ctx, d)
	t.o.OnPause(d, err)
}

// logPause is the default of TransportOptions.OnPause.
func (t *Transport) logPause(d time.Duration, err error) {
	if err != nil {
		t.errors.Log(slog.Default(), slog.LevelWarn, "the rate limit of requests cannot be paused", "for", d, "error", err)
	}
}

// permit waits for a permit.
func (t *Transport) permit(ctx context.Context) (*lockkeeper.Lease, error) {
	if t.o.MaxWait > 0 {
		bounded, cancel := context.WithTimeout(ctx, t.o.MaxWait)
		defer cancel()
		ctx = bounded
	}
	return t.acquire(ctx)
}

// CloseIdleConnections closes the idle connections of base, if it can. [http.Client.CloseIdleConnections] calls it.
func (t *Transport) CloseIdleConnections() {
	if base, is := t.base.(interface{ CloseIdleConnections() }); is {
		base.CloseIdleConnections()
	}
}

// holding returns a body that releases the lease when it is closed. If the connection can be written to through the body,
// as after an upgrade, it still can.
func holding(b io.ReadCloser, lease *lockkeeper.Lease) io.ReadCloser {
	if w, ok := b.(io.Writer); ok {
		return &upgraded{body{b, lease}, w}
	}
	return &body{b, lease}
}

// body is a response's body with a lease.
type body struct {
	io.ReadCloser
	lease *lockkeeper.Lease
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, whyEnded(err, b.lease)
}

// whyEnded adds to the error of a request that its lease was lost. HTTP/2 says only that the context was canceled, not the cause.
func whyEnded(err error, lease *lockkeeper.Lease) error {
	if err == nil || err == io.EOF || errors.Is(err, lockkeeper.ErrLost) || !errors.Is(lease.Err(), lockkeeper.ErrLost) {
		return err
	}
	return fmt.Errorf("%w: %w", lease.Err(), err)
}

// Close closes the body and releases the lease. Calling it again does nothing to the lease.
func (b *body) Close() error {
	err := b.ReadCloser.Close() // first: the release of a lease ends the request's context
	release(b.lease)
	return err
}

// upgraded is the body of a response with status 101.
type upgraded struct {
	body
	io.Writer
}

// release releases a lease. What Redis has to say of it does not concern the response: a release that is not answered within
// the second is repeated in the background, and a lease that was lost has ended the request already.
func release(lease *lockkeeper.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = lease.Release(ctx)
}
