package httplimit_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/ratelimit/httplimit"
)

// The clients of all processes together send at most 100 requests in any second, ten of them at once.
func ExampleNewConcurrentTransport() {
	k, end := example.Keeper()
	defer end()
	limiter, err := ratelimit.NewConcurrent(k, "partner-api", 100, time.Second, 10, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := httplimit.NewConcurrentTransport(limiter, http.DefaultTransport, &httplimit.TransportOptions{MaxWait: 5 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer api.Close()
	response, err := client.Get(api.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	response.Body.Close() // releases the permit
	fmt.Println(response.Status)
	// Output: 200 OK
}

// All servers together allow each address two requests a minute.
func ExampleNewHandler() {
	k, end := example.Keeper()
	defer end()
	limiter, _ := httplimit.PerKey(k, "login", 2, time.Minute, httplimit.RemoteIP, nil)
	login := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	handler, _ := httplimit.NewHandler(limiter, login, nil)
	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit-Remaining"), w.Header().Get("Retry-After") != "")
	}
	// Output:
	// 200 1 false
	// 200 0 false
	// 429 0 true
}

// A response with Retry-After holds back the clients of all processes.
func ExampleTransport() {
	k, end := example.Keeper()
	defer end()
	limiter, _ := ratelimit.New(k, "partner-api", 100, time.Second, nil)
	transport, _ := httplimit.NewTransport(limiter, nil, &httplimit.TransportOptions{
		MaxWait: time.Second,
		OnPause: func(d time.Duration, err error) { fmt.Println("all clients pause for", d, err) },
	})
	client := &http.Client{Transport: transport}

	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer api.Close()
	response, err := client.Get(api.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	response.Body.Close()
	_, err = client.Get(api.URL) // not sent
	var limited *ratelimit.LimitedError
	fmt.Println("limited:", errors.As(err, &limited))
	// Output:
	// all clients pause for 1m0s <nil>
	// limited: true
}

// One limit for all requests. While Redis does not answer, they are served.
func ExampleShared() {
	k, end := example.Keeper()
	defer end()
	limiter, _ := ratelimit.New(k, "search", 50, time.Second, nil)
	search := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	handler, _ := httplimit.NewHandler(httplimit.Shared(limiter), search, &httplimit.HandlerOptions{
		FailOpen: true,
		Timeout:  200 * time.Millisecond,
	})
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/search", nil))
	fmt.Println(w.Code, w.Header().Get("RateLimit-Limit"))
	// Output: 200 50
}
