// Package httplimit applies a rate limit that many processes share to HTTP: to the requests that they send, by [Transport],
// and to those that they serve, by [NewHandler].
//
//	limiter, err := ratelimit.New(k, "partner-api", 100, time.Second, nil)
//	…
//	transport, err := httplimit.NewTransport(limiter, http.DefaultTransport, nil)
//	…
//	client := &http.Client{Transport: transport}
//
// It uses net/http alone, so the transport goes below any client, and the handler into any router that takes
// func(http.Handler) http.Handler.
package httplimit
