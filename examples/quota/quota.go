package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// transport sends each request when the semaphore permits it, and holds the permit until the response's body is closed.
//
// A request whose permit cannot come before its context ends fails at once, with a *semaphore.RateError. One whose lease
// is lost is ended, with an error that is lockkeeper.ErrLost. A call that is given up, by its context or by closing the
// body before its end, may be under way at the server for a little longer than its permit is held. A connection that is
// upgraded (101) cannot be written to through this body.
type transport struct {
	permits *semaphore.Semaphore
	next    http.RoundTripper
}

// RoundTrip is part of http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	lease, err := t.permits.Acquire(r.Context(), 1)
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

// limit is a middleware: it passes requests on as the semaphore permits, and answers the others with 429 and Retry-After.
// While Redis does not answer, it answers 503; who would rather let everything through then does so here.
func limit(permits *semaphore.Semaphore, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Second) // for Redis, not for the handler
		lease, err := permits.TryAcquire(ctx, 1)
		cancel()
		var soon *semaphore.RateError
		switch {
		case errors.As(err, &soon):
			seconds := (soon.RetryAfter + time.Second - 1) / time.Second // whole ones, rounded up: not too early
			w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		case errors.Is(err, lockkeeper.ErrNotAcquired): // too many at once: nobody knows for how long
			http.Error(w, "too many requests", http.StatusTooManyRequests)
		case err != nil:
			http.Error(w, "the limit cannot be checked", http.StatusServiceUnavailable)
		default:
			defer giveBack(lease) // with AtOnce; a permit that returns by the clock does so whatever we do
			next.ServeHTTP(w, r.WithContext(lease.Context(r.Context())))
		}
	})
}
