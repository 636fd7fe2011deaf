// Command cache shows a read-write lock at work: a cache over a slow source that is never seen half-refreshed.
//
// The source is a small HTTP server within the program. What it serves has two parts that belong together, and changes
// all the time. The cache keeps the parts under two keys in Redis. A refresher rewrites them one after the other under
// the write lock, and many readers get both under the read lock, together with each other. Another reader does without
// the lock, and now and then finds the part of one version beside that of another: a stale mix.
//
// The two keys are an example of data that no single command can rewrite: files, several servers, more keys than one would like
// to send at once. For two small keys on one server MSET and MGET would do.
//
//	go run ./examples/cache
//	go run ./examples/cache --for 10s --redis redis://127.0.0.1:6379
//
// Without --redis it starts an embedded server.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

const (
	readers  = 16
	titleKey = "example:cache:title"
	textKey  = "example:cache:text"
	keep     = time.Minute // the cache goes away by itself
)

func main() {
	url := flag.String("redis", "", "URL of a Redis server, as redis://127.0.0.1:6379; default: an embedded one")
	length := flag.Duration("for", 3*time.Second, "how long to run")
	flag.Parse()
	got, err := run(*url, *length)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		os.Exit(1)
	}
	got.print(os.Stdout)
	if got.guarded.mixes > 0 {
		os.Exit(1)
	}
}

// result is what came of a run.
type result struct {
	guarded, unguarded tally
	refreshes          int
	longestWait        time.Duration // of the refresher for the write lock
}

// tally counts what readers saw.
type tally struct{ reads, mixes int }

func (r *result) print(out io.Writer) {
	fmt.Fprintf(out, "with the lock:     %d reads by %d readers, %d stale mixes\n", r.guarded.reads, readers, r.guarded.mixes)
	fmt.Fprintf(out, "refreshes:         %d; the longest wait for the write lock was %v\n", r.refreshes, r.longestWait.Round(100*time.Microsecond))
	fmt.Fprintf(out, "without the lock:  %d reads by one reader, %d stale mixes\n", r.unguarded.reads, r.unguarded.mixes)
}

// document is what the source serves. Of each version the text names the title, so that a mix can be detected.
type document struct{ Title, Text string }

func version(n int64) document {
	title := fmt.Sprintf("version %d", n)
	return document{title, "the text of " + title}
}

func (d document) mixed() bool { return d.Text != "the text of "+d.Title }

var errOver = errors.New("the time is over")

// run lets the refresher and the readers go for a while.
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
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		return nil, err
	}
	defer k.Close()
	lock, err := rwlock.New(k, "example:cache", nil)
	if err != nil {
		return nil, err
	}
	source, stop, err := serve()
	if err != nil {
		return nil, err
	}
	defer stop()

	c := &cache{rdb, lock, source}
	got := &result{}
	if _, err := c.refresh(context.Background()); err != nil { // so that there is something to read
		return nil, err
	}
	ctx, fail := context.WithCancelCause(context.Background())
	defer fail(nil)
	defer time.AfterFunc(length, func() { fail(errOver) }).Stop()
	var all sync.WaitGroup
	// loop does something until the time is over or something fails. What has begun is finished: a refresh that stops
	// half-way would leave a mix behind.
	loop := func(do func(ctx context.Context) error) {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := do(context.WithoutCancel(ctx)); err != nil {
					fail(err)
				}
			}
		})
	}
	loop(func(ctx context.Context) error {
		waited, err := c.refresh(ctx)
		got.refreshes++
		got.longestWait = max(got.longestWait, waited)
		return err
	})
	tallies := make([]tally, readers)
	for i := range readers {
		loop(func(ctx context.Context) error {
			time.Sleep(rand.N(10 * time.Millisecond))
			return tallies[i].read(ctx, c.get)
		})
	}
	loop(func(ctx context.Context) error {
		time.Sleep(rand.N(2 * time.Millisecond))
		return got.unguarded.read(ctx, c.getUnguarded)
	})
	all.Wait()
	for _, t := range tallies {
		got.guarded.reads += t.reads
		got.guarded.mixes += t.mixes
	}
	if err := context.Cause(ctx); !errors.Is(err, errOver) {
		return nil, err
	}
	return got, nil
}

func (t *tally) read(ctx context.Context, get func(context.Context) (document, error)) error {
	d, err := get(ctx)
	if err != nil {
		return err
	}
	t.reads++
	if d.mixed() {
		t.mixes++
	}
	return nil
}

// cache is the document as it lies in Redis.
type cache struct {
	rdb    *redis.Client
	lock   *rwlock.Lock
	source string // its address
}

// get reads both parts under the read lock: they are of one version.
func (c *cache) get(ctx context.Context) (d document, err error) {
	err = c.lock.DoRead(ctx, func(ctx context.Context, _ uint64) error {
		d, err = c.getUnguarded(ctx)
		return err
	})
	return d, err
}

// getUnguarded reads both parts without a lock: a refresh may come between the two.
func (c *cache) getUnguarded(ctx context.Context) (d document, err error) {
	if d.Title, err = c.rdb.Get(ctx, titleKey).Result(); err != nil {
		return d, err
	}
	d.Text, err = c.rdb.Get(ctx, textKey).Result()
	return d, err
}

// refresh rewrites both parts under the write lock, and says how long it waited for that.
//
// It asks the source before it locks, so that readers go on while the source takes its time. With more than one
// refresher of a source the question belongs under the lock, or the older of two answers may be written last.
func (c *cache) refresh(ctx context.Context) (waited time.Duration, err error) {
	d, err := fetch(ctx, c.source)
	if err != nil {
		return 0, err
	}
	came := time.Now()
	err = c.lock.DoWrite(ctx, func(ctx context.Context, _ uint64) error {
		waited = time.Since(came)
		if err := c.rdb.Set(ctx, titleKey, d.Title, keep).Err(); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond) // texts can be long
		return c.rdb.Set(ctx, textKey, d.Text, keep).Err()
	})
	return waited, err
}

// fetch gets the document from the source.
func fetch(ctx context.Context, url string) (d document, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return d, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return d, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return d, fmt.Errorf("the source says %s", answer.Status)
	}
	err = json.NewDecoder(answer.Body).Decode(&d)
	return d, err
}

// serve starts the source: slow, and with a new version every millisecond.
func serve() (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{
		ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(20 * time.Millisecond)
			_ = json.NewEncoder(w).Encode(version(time.Now().UnixMilli()))
		}),
	}
	go func() { _ = server.Serve(l) }()
	return "http://" + l.Addr().String(), func() { _ = server.Close() }, nil
}
