package httplimit

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// TransportOptions are the settings of a Transport.
type TransportOptions struct {
	// MaxWait bounds how long a request waits for its permit, beside the request's context. Default 0: the context alone.
	MaxWait time.Duration

	// MaxPause bounds the pause that a response asks for by Retry-After; a longer one is cut to it. Then a request is sent
	// again, which may bring the next. Default DefaultMaxPause; from 1 s to [ratelimit.MaxPause].
	MaxPause time.Duration

	// NoPause leaves responses as they are: Retry-After causes no pause.
	NoPause bool

	// OnPause is called after a response has asked for a pause of d, with the error if it could not be set. It must be safe for
	// concurrent use, and not block. Default: the error is discarded.
	OnPause func(d time.Duration, err error)
}

// DefaultMaxPause is the longest pause that a response can cause.
const DefaultMaxPause = 5 * time.Minute

// Transport is an [http.RoundTripper] that sends each request when a [ratelimit.Limiter] permits it. It is safe for
// concurrent use.
//
// If the limiter has MaxConcurrent, a request holds its permit until the response's body is closed, or until the request has
// failed. A body that is never closed holds it for ever, as it does the connection. A request that is given up, by its
// context or by closing the body before its end, may go on at the server for a little longer than its permit is held.
//
// A response with status 429 Too Many Requests or 503 Service Unavailable and a Retry-After pauses the limiter: no process sends
// a request before that time has passed, also those that wait for a permit already. See [ratelimit.Limiter.Pause]. Requests
// that have a permit are sent. A date in Retry-After counts from the Date of the response, so no clocks are compared; without
// one it is ignored.
//
// Every request takes a permit of its own, also one that follows a redirect. The transport never repeats a request; the
// response is returned to the caller, who knows whether it may be sent again.
type Transport struct {
	limiter *ratelimit.Limiter
	base    http.RoundTripper
	o       TransportOptions
}

// NewTransport returns a transport that waits for permits of the limiter and sends requests by base; nil is
// [http.DefaultTransport]. The error is [lockkeeper.ErrInvalid] if the limiter is nil or an option is out of its
// bounds.
func NewTransport(limiter *ratelimit.Limiter, base http.RoundTripper, opts *TransportOptions) (*Transport, error) {
	t := &Transport{limiter: limiter, base: base}
	if opts != nil {
		t.o = *opts
	}
	if base == nil {
		t.base = http.DefaultTransport
	}
	switch {
	case limiter == nil:
		return nil, invalid("limiter is nil")
	case t.o.MaxWait < 0:
		return nil, invalid("MaxWait %v is negative", t.o.MaxWait)
	case t.o.MaxPause == 0:
		t.o.MaxPause = DefaultMaxPause
	case t.o.MaxPause < time.Second || t.o.MaxPause > ratelimit.MaxPause:
		return nil, invalid("MaxPause %v is not between 1s and %v", t.o.MaxPause, ratelimit.MaxPause)
	}
	return t, nil
}

// RoundTrip waits for a permit, until the request's context ends or MaxWait has passed, and sends the request.
//
// A request that cannot have its permit by then fails at once, with a [*ratelimit.LimitedError]; other errors of the wait are
// those of the limiter's Wait or Acquire. None of these requests was sent. If the lease of a permit is lost, which MaxConcurrent
// alone has, the request or the reading of its response ends with an error that matches [lockkeeper.ErrLost].
//
// If the response asks for a pause, RoundTrip also waits until Redis has answered, for a second at most.
//
// The request's context has the lease: see [lockkeeper.LeaseFromContext].
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
	var response *http.Response
	defer func() { // also if base panics
		if response == nil || response.Body == nil {
			release(lease)
		}
	}()
	if response, err = t.base.RoundTrip(r.WithContext(lease.Context(r.Context()))); err != nil {
		response = nil
		return nil, err
	}
	t.pauseFor(response)
	response.Body = holding(response.Body, lease)
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
	err := t.limiter.Pause(ctx, d)
	if t.o.OnPause != nil {
		t.o.OnPause(d, err)
	}
}

// permit waits for a permit. The lease is nil if the limiter has none.
func (t *Transport) permit(ctx context.Context) (*lockkeeper.Lease, error) {
	if t.o.MaxWait > 0 {
		bounded, cancel := context.WithTimeout(ctx, t.o.MaxWait)
		defer cancel()
		ctx = bounded
	}
	if t.limiter.MaxConcurrent() == 0 {
		return nil, t.limiter.Wait(ctx)
	}
	return t.limiter.Acquire(ctx)
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
	switch w := b.(type) {
	case nil:
		return nil
	case io.Writer:
		return &upgraded{body{b, lease}, w}
	}
	return &body{b, lease}
}

// body is a response's body with a lease.
type body struct {
	io.ReadCloser
	lease *lockkeeper.Lease
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
