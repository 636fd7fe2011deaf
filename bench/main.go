// Bench sets lockkeeper beside other lock libraries: it measures them in turns in one run, on one Redis server of its own.
// Its tests hold that a redlock and redsync exclude each other on the same servers. It is a module of its own,
// so that the library does not depend on its peers, and it needs a redis-server, 7.0.5 or later, on PATH.
//
//	go run .                    # all cases, under ten minutes; better on a quiet machine
//	go run . -quick             # the same with less of each, under a minute
//	go run . -only handoff      # one case, or several with commas between them
//	go run . -json              # figures for programs
//	go run . -redis URL         # on this server, which nobody else should be using; a cluster is started all the same
//	go run . -plot DIR          # and charts as SVG
//	go run . -page FILE         # and the tables of a page, or of several with commas between them; for a run of all cases
//
// A case runs in rounds. In each round every library has its turn, with clients of its own that are closed before the
// next has its turn, because the client-side caching that rueidislock lives on makes every write at a server dearer, also
// those of others. Who begins moves on by one each round. Given are the median over the rounds and, in brackets, the
// smallest and the largest. The first metric of a case is followed by its ratio to that of the first library.
//
// The libraries do not do the same for it. Lockkeeper, rueidislock and etcd renew leases and notify waiters that the lock is
// free; redsync and redislock do neither, but ask again after a pause. Lockkeeper and etcd number their grants, so that a
// late holder can be fenced off. etcd writes to a log that would survive a crash if it were not in memory here.
//
// The tests of redsync need modules that may not be available, so tidy this one with go mod tidy -e.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// cases is what is measured. Each is a function of its own file.
var cases = []struct {
	name, about string
	run         func(*bench)
}{
	{"uncontended", "lock and release, names of their own, through one client", uncontended},
	{"handoff", "from the release to the next distinct holder running, a client each", handoff},
	{"fairness", "64 contenders, a client each, who hold for 10 ms and come again", fairness},
	{"readers", "64 readers, a client each, who read for 1 to 9 ms and come again, and a writer every 100 ms", readers},
	{"linger", "callers of a process that share leases, against the same without Linger", linger},
	{"crash", "the holder's process is killed; and that of a waiter in front", crash},
	{"limit", "16 callers of a limit, a client each", limit},
	{"scale", "up to 100,000 waiters for one name, and 100,000 leases in one process", scale},
	{"cluster", "three primaries on this machine, against one", cluster},
}

func main() {
	if role := os.Getenv(childRole); role != "" {
		child(role)
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program. It returns 2 if the command line is wrong, and 1 if something could not be measured.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print JSON instead of tables")
	only := flags.String("only", "", "the cases to run, with commas between them")
	url := flags.String("redis", "", "the `URL` of a Redis server to use, redis://…; by default one is started")
	plots := flags.String("plot", "", "write charts as SVG into this `directory`")
	pages := flags.String("page", "", "write the tables of this `file`, or of several with commas between them, between their comments")
	quick := flags.Bool("quick", false, "less of each, for a look: under a minute")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "bench: unexpected %q\n", flags.Arg(0))
		return 2
	}
	chosen, err := choose(*only)
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 2
	}
	if *pages != "" && (*only != "" || *quick) {
		fmt.Fprintln(stderr, "bench: -page needs a whole run, without -only and -quick: all figures of a page are of one run")
		return 2
	}
	redis.SetLogger(silence{}) // clients log that connections end, which here they shall

	began := time.Now()
	b := &bench{quick: *quick, results: &results{}, id: "bench-" + rand.Text()[:8]}
	var m machine
	err = play(func(s *stage) {
		b.stage = s
		b.at.redis = *url
		if *url == "" {
			b.at.redis = "redis://" + redistest.Start(s).Addr
		}
		b.rdb = b.at.rdb(s)
		s.must(b.rdb.Ping(ctx).Err())
		if b.at.etcd = startEtcd(s); b.at.etcd == "" {
			b.results.note("etcd: not measured, there is no etcd on PATH (Debian: apt install etcd-server)")
		}
		m = describe(ctx, b.rdb, b.at.etcd != "")
		for _, i := range chosen {
			c := cases[i]
			fmt.Fprintf(stderr, "%s: %s", c.name, c.about)
			start := time.Now()
			c.run(b)
			fmt.Fprintf(stderr, ", %v\n", time.Since(start).Round(100*time.Millisecond))
		}
	})
	if err == nil && *plots != "" {
		err = charts(b.results, *plots)
	}
	if err == nil && *pages != "" {
		err = fill(strings.Split(*pages, ","), b.results, m)
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	if *asJSON {
		err = b.results.json(stdout, m)
	} else {
		m.write(stdout)
		err = b.results.table(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return 1
	}
	fmt.Fprintf(stderr, "took %v\n", time.Since(began).Round(time.Second))
	if b.failed {
		return 1
	}
	return 0
}

// choose is the cases of a list of names with commas between them, or all.
func choose(only string) ([]int, error) {
	var all []string
	for _, c := range cases {
		all = append(all, c.name)
	}
	if only == "" {
		only = strings.Join(all, ",")
	}
	var chosen []int
	for name := range strings.SplitSeq(only, ",") {
		i := slices.Index(all, name)
		if i < 0 {
			return nil, fmt.Errorf("-only %q: there is no such case; there are %s", name, strings.Join(all, ", "))
		}
		chosen = append(chosen, i)
	}
	return chosen, nil
}

// silence is a log that nobody reads.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// lasting is a context that could end, as those of most programs, and does not.
var lasting, _ = context.WithCancel(context.Background())

// ctx is for calls outside of a function that has one.
var ctx = lasting

// bench is a run.
type bench struct {
	*stage
	at      target
	rdb     redis.UniversalClient // for looking, not for locking
	quick   bool
	results *results
	failed  bool
	id      string // names begin so, because the server may be in use
	serial  int
}

// name is a new one.
func (b *bench) name() string {
	b.serial++
	return b.id + "-" + strconv.Itoa(b.serial)
}

// pick is what a run measures with, or a quick one.
func pick[T any](b *bench, whole, quick T) T {
	if b.quick {
		return quick
	}
	return whole
}

// present is those libraries that have their servers.
func (b *bench) present(list []library) []library {
	return slices.DeleteFunc(slices.Clone(list), func(l library) bool { return l.etcd && b.at.etcd == "" })
}

// rounds lets so many sides have a turn in each round. Who begins moves on by one. There should be an odd number of
// rounds, for one of them to be the median.
func rounds(n, sides int, turn func(side int)) {
	for round := range n {
		for i := range sides {
			turn((round + i) % sides)
		}
	}
}

// turn is a library's in a round of a case, with a stage of its own. What it has left on the server is deleted: the more
// keys there are that expire, the later the server finds one that has, and some libraries wait for that. If it fails,
// that is noted, and the others go on.
func (b *bench) turn(of, library string, f func(s *stage)) {
	err := errors.Join(play(f), b.keys(func(keys []string) error { return b.rdb.Del(ctx, keys...).Err() }))
	if err != nil {
		b.failed = true
		b.results.note("%s: %s: %v", of, library, err)
	}
}

// keys passes all keys of this run to f, some at a time, and each at least once.
func (b *bench) keys(f func(keys []string) error) error {
	for cursor := uint64(0); ; {
		keys, next, err := b.rdb.Scan(ctx, cursor, "*"+b.id+"*", 1000).Result()
		if err == nil && len(keys) > 0 {
			err = f(keys)
		}
		if err != nil || next == 0 {
			return err
		}
		cursor = next
	}
}
