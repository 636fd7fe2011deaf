// Command quota shows a rate limit at work: an API that stands ten calls at once and a hundred in any second, and four
// processes that together keep to that.
//
// The API is an HTTP server within the program, which counts. The processes are this program again, and call it as fast
// as they may, at first with the limit, then without. What they use for it is package ratelimit/httplimit: an
// http.RoundTripper. For servers it has a handler, which answers 429 and says when to try again: the last part is a gateway of
// four processes, which decide without asking Redis for each request (gateway.go).
//
//	go run ./examples/quota
//	go run ./examples/quota --for 10s --redis redis://127.0.0.1:6379
//
// Without --redis it starts an embedded server.
//
// # The margin
//
// A permit is taken by the clock of Redis, and the call arrives at the API a little later, the one sooner and the other
// later. So calls that were permitted in two windows may arrive in one. As long as no call is under way for more than
// the margin longer than another, that cannot happen if permits return only after the API's second and the margin. The
// example measures how much longer calls were under way, and says so if the margin was too small for this machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	sliding "github.com/lockkeeper/lockkeeper/examples/internal/window"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/ratelimit/httplimit"
	"github.com/redis/go-redis/v9"
)

const (
	atOnce    = 10          // calls that the API stands at the same time,
	perWindow = 100         // and in any window
	window    = time.Second // of this length
	margin    = 250 * time.Millisecond

	processes = 4
	callers   = 8 // in each
)

// Where a process that is to call the API finds what it needs, in its environment.
const (
	envAPI   = "QUOTA_API"
	envRedis = "QUOTA_REDIS" // empty: without the limit
	envFor   = "QUOTA_FOR"
)

func main() {
	if os.Getenv(envGateway) != "" {
		check(serve(os.Getenv(envRedis), os.Getenv(envFor)))
		return
	}
	if os.Getenv(envAPI) != "" {
		check(call(os.Getenv(envAPI), os.Getenv(envRedis), os.Getenv(envFor)))
		return
	}
	url := flag.String("redis", "", "URL of a Redis server, as redis://127.0.0.1:6379; default: an embedded one")
	length := flag.Duration("for", 4*time.Second, "how long to call with the limit")
	flag.Parse()
	got, err := run(*url, *length)
	check(err)
	got.print(os.Stdout)
	check(errors.Join(got.guarded.broken(), got.broken()))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "quota:", err)
		os.Exit(1)
	}
}

// result is what came of a run.
type result struct {
	guarded, unguarded tally
	answers            []int  // of a handler behind the middleware
	retryAfter         string // with the last of them
	gateway            gateway
	gatewayFor         time.Duration
}

func (r *result) print(out io.Writer) {
	fmt.Fprintf(out, "the API stands:         %d calls at once, %d in any %v\n", atOnce, perWindow, window)
	fmt.Fprintf(out, "with the limit:         %d at once, %d in any %v; %d calls by %d processes\n",
		r.guarded.atOnce, r.guarded.inWindow, window, r.guarded.calls, processes)
	fmt.Fprintf(out, "without it:             %d at once, %d in any %v; %d calls\n",
		r.unguarded.atOnce, r.unguarded.inWindow, window, r.unguarded.calls)
	fmt.Fprintf(out, "on the way:             up to %v longer than the fastest call; the margin is %v\n",
		r.guarded.spread.Round(100*time.Microsecond), margin)
	fmt.Fprintf(out, "behind the middleware:  %d, Retry-After: %s\n", r.answers, r.retryAfter)
	fmt.Fprintf(out, "a gateway:              %d requests served in %v, of %d that may be; %d answered with 429; %.0f a second by %d processes\n",
		r.gateway.served, r.gatewayFor, mayServe(r.gatewayFor), r.gateway.refused,
		float64(r.gateway.served+r.gateway.refused)/r.gatewayFor.Seconds(), processes)
}

// broken says whether the gateway has served too many.
func (r *result) broken() error {
	if most := mayServe(r.gatewayFor); r.gateway.served > most {
		return fmt.Errorf("the gateway has served %d requests, and may serve %d", r.gateway.served, most)
	}
	return nil
}

// run lets the processes call the API, with the limit for a while, and without it for a moment.
func run(url string, length time.Duration) (*result, error) {
	if url == "" {
		server := miniredis.NewMiniRedis()
		if err := server.Start(); err != nil {
			return nil, err
		}
		defer server.Close()
		server.ClockTTL(true)
		url = "redis://" + server.Addr()
	}
	got := &result{}
	var err error
	if got.guarded, err = measure(url, length); err != nil {
		return nil, err
	}
	if got.unguarded, err = measure("", window); err != nil {
		return nil, err
	}
	if got.answers, got.retryAfter, err = knock(url); err != nil {
		return nil, err
	}
	got.gatewayFor = length / 2
	got.gateway, err = answer(url, got.gatewayFor)
	return got, err
}

// measure starts the API and the processes, and says what the API counted.
func measure(url string, length time.Duration) (tally, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return tally{}, err
	}
	a := &api{}
	server := &http.Server{Handler: a, ReadHeaderTimeout: 5 * time.Second}
	defer server.Close()
	go func() { _ = server.Serve(l) }()
	self, err := os.Executable()
	if err != nil {
		return tally{}, err
	}
	var all []*exec.Cmd
	for range processes {
		c := exec.Command(self)
		c.Env = append(os.Environ(), envAPI+"=http://"+l.Addr().String(), envRedis+"="+url, envFor+"="+length.String())
		c.Stderr = os.Stderr
		if err = c.Start(); err != nil {
			break
		}
		all = append(all, c)
	}
	for _, c := range all {
		err = errors.Join(err, c.Wait())
	}
	return a.tally(), err
}

// call is what each of the processes does.
func call(api, url, length string) error {
	d, err := time.ParseDuration(length)
	if err != nil {
		return err
	}
	next := http.DefaultTransport.(*http.Transport).Clone()
	next.MaxIdleConnsPerHost = callers
	client := &http.Client{Transport: next, Timeout: 30 * time.Second}
	if url != "" {
		k, end, err := connect(url)
		if err != nil {
			return err
		}
		defer end()
		limiter, err := ratelimit.NewConcurrent(k, "example:quota", perWindow, window+margin, atOnce, nil)
		if err != nil {
			return err
		}
		if client.Transport, err = httplimit.NewConcurrentTransport(limiter, withFence{next}, nil); err != nil {
			return err
		}
	}
	var all sync.WaitGroup
	errs := make([]error, callers)
	end := time.Now().Add(d)
	for i := range callers {
		all.Go(func() {
			for time.Now().Before(end) && errs[i] == nil {
				errs[i] = get(client, api)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// connect returns a keeper on the server.
func connect(url string) (k *lockkeeper.Keeper, end func(), err error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, nil, err
	}
	rdb := redis.NewClient(o)
	if k, err = lockkeeper.New(rdb, nil); err != nil {
		_ = rdb.Close()
		return nil, nil, err
	}
	return k, func() {
		_ = k.Close()
		_ = rdb.Close()
	}, nil
}

// get calls the API once. It reads the body to its end, so that the API is done with the call when the permit is given
// back, and the connection can be used again.
func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API says %s", response.Status)
	}
	return nil
}

// api is a server that has limits, and counts.
type api struct {
	mu      sync.Mutex
	inside  int
	most    int         // inside at the same time
	came    []time.Time // when each call came, in order
	granted []time.Time // and its permit, by the clock of Redis; nothing without the limit
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.enter(r.Header.Get("Fence"))
	defer a.leave()
	// The head of the response comes soon, and its body takes a while: the call is not over before that has ended.
	_, _ = io.WriteString(w, "here")
	_ = http.NewResponseController(w).Flush()
	time.Sleep(20 * time.Millisecond)
	_, _ = io.WriteString(w, "it is")
}

func (a *api) enter(fence string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.came = append(a.came, now)
	a.inside++
	a.most = max(a.most, a.inside)
	if us, err := strconv.ParseInt(fence, 10, 64); err == nil {
		a.granted = append(a.granted, time.UnixMicro(us))
	}
}

func (a *api) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inside--
}

// tally is what the API has counted.
type tally struct {
	calls    int
	atOnce   int           // the most at the same time
	inWindow int           // the most that came in any window
	granted  int           // the most that were permitted in any window and margin
	spread   time.Duration // by how much a call was under way longer than another, from its permit on
}

func (a *api) tally() tally {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.came) == 0 {
		return tally{}
	}
	t := tally{calls: len(a.came), atOnce: a.most, inWindow: sliding.Most(a.came, window)}
	if len(a.granted) < len(a.came) {
		return t
	}
	// The clock of Redis may be another than ours, which adds the same to every way.
	var ways []time.Duration
	for i, came := range a.came {
		ways = append(ways, came.Sub(a.granted[i]))
	}
	t.spread = slices.Max(ways) - slices.Min(ways)
	t.granted = sliding.Most(slices.SortedFunc(slices.Values(a.granted), time.Time.Compare), window+margin)
	return t
}

// errMargin: it is not the limiter's fault.
var errMargin = errors.New("some were under way longer than others, and the margin is too small for that")

// broken says which limit was not kept, if any.
func (t tally) broken() error {
	switch {
	case t.atOnce > atOnce:
		return fmt.Errorf("%d calls at once", t.atOnce)
	case t.granted > perWindow:
		return fmt.Errorf("%d permits in %v", t.granted, window+margin)
	case t.inWindow > perWindow && t.spread > margin:
		return fmt.Errorf("%d calls in %v: %w, by %v", t.inWindow, window, errMargin, t.spread-margin)
	case t.inWindow > perWindow:
		return fmt.Errorf("%d calls in %v", t.inWindow, window)
	}
	return nil
}

// knock asks a handler behind the middleware once more than it allows.
func knock(url string) (answers []int, retryAfter string, err error) {
	k, end, err := connect(url)
	if err != nil {
		return nil, "", err
	}
	defer end()
	const allowed = 3
	// A name of its own for each run, so that another just before does not count.
	limiter, err := ratelimit.New(k, "example:quota:"+k.ID(), allowed, 10*time.Second, nil)
	if err != nil {
		return nil, "", err
	}
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	handler, err := httplimit.NewHandler(httplimit.Shared(limiter), empty, nil)
	if err != nil {
		return nil, "", err
	}
	for range allowed + 1 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil))
		answers = append(answers, w.Code)
		retryAfter = w.Header().Get("Retry-After")
	}
	return answers, retryAfter, nil
}
