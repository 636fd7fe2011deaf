// Package httplimit applies a rate limit that many processes share to net/http: [Transport] limits the requests that they send,
// and the handler of [NewHandler] limits those that they serve.
//
//	limiter, err := ratelimit.New(k, "partner-api", 100, time.Second, nil)
//	…
//	transport, err := httplimit.NewTransport(limiter, http.DefaultTransport, nil)
//	…
//	client := &http.Client{Transport: transport}
//
// A transport of [NewConcurrentTransport] also bounds how many requests are in progress at the same time. The package depends on
// no framework: the transport works with every client that takes an http.RoundTripper, and the handler with every router that
// takes an http.Handler. Package [github.com/lockkeeper/lockkeeper/ratelimit] documents windows, queues and pauses.
package httplimit
