// Command cache compares ways to read a cache that is rewritten now and then: without a lock, with a read-write lock whose option
// Linger is 0, 1, 5 and 50 ms, and from a pointer in the process, with a mutex for the rebuild.
//
// What is cached has two parts that belong together, under two keys in Redis. A writer rewrites one after the other. Several
// processes read both: here each is a keeper with a client of its own. A read is mixed if its parts are of two versions, and stale
// if it returns an older version than the one whose write had finished before the read began.
//
// With the read-write lock each process keeps a copy of what it has read, with the fence of its lease. While a later read has the same
// fence, it has the same lease, so nobody has written since, and it needs no command to know that the copy is the current version.
// With Linger more reads share a lease, and a writer waits for at most as much longer.
//
// The two keys are an example of data that no single command can rewrite: files, several servers, more keys than one would like to
// send at once. For two small keys on one server MSET and MGET would do. The pointer's value is one key.
//
//	go run ./examples/cache
//	go run ./examples/cache --for 5s --redis redis://127.0.0.1:6379
//
// Without --redis it starts an embedded server.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

func main() {
	url := flag.String("redis", "", "URL of a Redis server, as redis://127.0.0.1:6379; default: an embedded one")
	w := workload{processes: 4, readers: 4, pause: time.Millisecond, rewrite: 200 * time.Millisecond}
	flag.DurationVar(&w.length, "for", 1500*time.Millisecond, "how long to run each of them")
	flag.Parse()
	if err := run(*url, w); err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		os.Exit(1)
	}
}

// run runs all ways one after the other and prints what came of them.
func run(url string, w workload) error {
	where := "the server " + url
	if url == "" {
		server := miniredis.NewMiniRedis()
		if err := server.Start(); err != nil {
			return err
		}
		defer server.Close()
		server.ClockTTL(true)
		url = "redis://" + server.Addr()
		where = "an embedded server, which is several times slower than Redis"
	}
	o, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	fmt.Printf("%d processes with %d readers each, a write every %v; %v for each column,\n", w.processes, w.readers, w.rewrite, w.length)
	fmt.Printf("on %s.\n\n", where)
	var all []*result
	for _, way := range ways {
		r, err := w.run(context.Background(), way, func() *redis.Client { return redis.NewClient(o) })
		if err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		all = append(all, r)
	}
	print(os.Stdout, all)
	return check(all)
}
