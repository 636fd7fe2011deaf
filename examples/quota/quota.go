package main

import (
	"net/http"
	"strconv"

	"github.com/lockkeeper/lockkeeper"
)

// withFence tells the server of this example when each request's permit was granted. Other servers do not need it.
type withFence struct{ next http.RoundTripper }

// RoundTrip is part of http.RoundTripper.
func (t withFence) RoundTrip(r *http.Request) (*http.Response, error) {
	if lease := lockkeeper.LeaseFromContext(r.Context()); lease != nil {
		r = r.Clone(r.Context()) // the caller's request is not ours to change
		r.Header.Set("Fence", strconv.FormatUint(lease.Fence(), 10))
	}
	return t.next.RoundTrip(r)
}
