package main

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// transport sends each request when the limiter, which has MaxConcurrent, permits it, and holds the permit until the
// response's body is closed.
//
// A request whose permit cannot come before its context ends fails at once, with a *ratelimit.LimitedError. One whose
// lease is lost is ended, with an error that is lockkeeper.ErrLost. A call that is given up, by its context or by closing the
// body before its end, may be under way at the server for a little longer than its permit is held. A connection that is
// upgraded (101) cannot be written to through this body.
type transport struct {
	limiter *ratelimit.Limiter
	next    http.RoundTripper
}

// RoundTrip is part of http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	lease, err := t.limiter.Acquire(r.Context())
	if err != nil {
		if r.Body != nil {
			r.Body.Close() // as every RoundTripper has to
		}
		return nil, err
	}
	r = r.Clone(lease.Context(r.Context())) // the caller's request is not ours to change
	if r.Header == nil {
		r.Header = http.Header{}
	}
	var response *http.Response
	defer func() { // also if the transport panics
		if response == nil {
			giveBack(lease)
		}
	}()
	// The fence tells the server of this example when the permit was granted. Others do not need it.
	r.Header.Set("Fence", strconv.FormatUint(lease.Fence(), 10))
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response = answer
	response.Body = &body{response.Body, lease}
	return response, nil
}

// body is a response's body that gives the permit back when it is closed.
type body struct {
	io.ReadCloser
	lease *lockkeeper.Lease
}

// Close is part of io.Closer. Calling it again does nothing to the permit.
func (b *body) Close() error {
	err := b.ReadCloser.Close() // first: the release of a lease ends the request's context
	giveBack(b.lease)
	return err
}

// giveBack releases a lease. What Redis has to say of it does not concern the response: a release that is not answered
// within the second is repeated in the background, and a lease that was lost has ended the request already.
func giveBack(lease *lockkeeper.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = lease.Release(ctx)
}

// pacedTransport sends each request when the limiter, which has no MaxConcurrent, permits it.
type pacedTransport struct {
	limiter *ratelimit.Limiter
	next    http.RoundTripper
}

// RoundTrip is part of http.RoundTripper.
func (t *pacedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.limiter.Wait(r.Context()); err != nil {
		if r.Body != nil {
			r.Body.Close() // as every RoundTripper has to
		}
		return nil, err
	}
	return t.next.RoundTrip(r)
}

// limit is a middleware: it passes requests on as the limiter, which has no MaxConcurrent, allows them, and answers the
// others with 429 and Retry-After. The limiter's name says who shares the limit; for one per user, make it of the user.
// While Redis does not answer, it answers 503; to let everything through then, do so here.
func limit(limiter *ratelimit.Limiter, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second) // for Redis, not for the handler
		result, err := limiter.Allow(ctx)
		cancel()
		if err != nil {
			http.Error(w, "the limit cannot be checked", http.StatusServiceUnavailable)
			return
		}
		h := w.Header()
		h.Set("RateLimit-Limit", strconv.Itoa(result.Limit))
		h.Set("RateLimit-Remaining", strconv.Itoa(result.Remaining))
		h.Set("RateLimit-Reset", seconds(result.ResetAfter))
		if !result.Allowed {
			h.Set("Retry-After", seconds(max(result.RetryAfter, time.Second)))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// seconds is a duration as headers have it: whole seconds, rounded up, so that nobody comes too early.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
