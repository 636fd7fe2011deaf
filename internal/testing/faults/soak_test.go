package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// TestSoak uses all primitives on one server for as long as SOAK says, while connections break, processes are killed
// and frozen, and the server, which keeps its data, fails. It runs in rounds. At the end of each all faults end;
// then the history is checked, and the use of resources is measured.
//
// The seed is logged, and taken from SOAK_SEED. It determines the faults and their order, but not their exact times.
func TestSoak(t *testing.T) {
	length, round := 3*time.Second, time.Second
	if v := os.Getenv("SOAK"); v != "" {
		var err error
		if length, err = time.ParseDuration(v); err != nil {
			t.Fatalf("SOAK %q is no duration", v)
		}
		round = min(max(length/30, time.Second), time.Minute)
	}
	seed := rand.Uint64()
	if v := os.Getenv("SOAK_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("SOAK_SEED %q is no number", v)
		}
	}
	t.Logf("%v in rounds of %v; SOAK_SEED=%d", length, round, seed)

	s := &soak{
		T:      t,
		server: redistest.Start(t, "--appendonly", "yes", "--appendfsync", "everysec"),
		r:      rand.New(rand.NewPCG(seed, 0)),
		last:   map[string]uint64{},
		faults: map[string]int{},
	}
	s.admin = s.server.Client()
	for range 4 {
		n := must.Get(newNode(s.server.Addr, heartbeatTimeout))(t)
		defer n.close()
		s.nodes = append(s.nodes, n)
	}
	var all []sample
	for end := time.Now().Add(length); time.Now().Before(end) && !t.Failed(); {
		s.round(round)
		x := s.measure()
		all = append(all, x)
		t.Logf("round %2d: %v", len(all), x)
	}
	t.Logf("%d grants, %d inside a process; faults: %v", s.grants, s.inside, s.faults)
	check.That(t, s.grants >= 100 && s.inside >= 10, "only %d grants, and %d inside a process: too few", s.grants, s.inside)
	for _, what := range findGrowth(all) {
		t.Error(what)
	}
}

const window = 200 * time.Millisecond

// soaked are the primitives of a soak, including a lock on a majority, here of one server, and limits by the clock.
var soaked = append(slices.Clone(primitives), primitive{
	"redlock", 1, false, func(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error) {
		l, err := redlock.New([]*lockkeeper.Keeper{k}, name, &redlock.Options{TTL: ttl, MaxRetryDelay: 20 * time.Millisecond})
		return []use{{weight: 1, acquire: l.Lock}}, err
	},
}, primitive{
	"rate", 20, false, func(k *lockkeeper.Keeper, name string, _ time.Duration) ([]use, error) {
		l, err := ratelimit.New(k, name, 20, window, nil)
		return []use{{weight: 3, per: window, take: l.DoN}}, err
	},
}, primitive{
	"rate_inside", 20, false, func(k *lockkeeper.Keeper, name string, _ time.Duration) ([]use, error) {
		l, err := ratelimit.New(k, name, 20, window, &ratelimit.Options{Ahead: true})
		u := use{weight: 1, shares: true, per: window, take: l.DoN} // the grants of a block have its fence
		return []use{u, u, u}, err
	},
}, primitive{"shared_reads", readers, false, sharedReads}, primitive{"shared_permits", permits, false, sharedPermits})

const linger = 100 * time.Millisecond

// sharedReads are a writer that comes now and then, and readers of a process that share leases.
func sharedReads(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error) {
	l, err := rwlock.New(k, name, &rwlock.Options{TTL: ttl, Linger: linger})
	read := use{weight: 1, shares: true, acquire: l.RLock}
	return []use{{weight: readers, pause: 2 * time.Second, acquire: l.Lock}, read, read, read, read}, err
}

func sharedPermits(k *lockkeeper.Keeper, name string, ttl time.Duration) ([]use, error) {
	s, err := semaphore.New(k, name, permits, &semaphore.Options{TTL: ttl, Linger: linger})
	of := func(n int) use {
		return use{weight: n, shares: true, acquire: func(ctx context.Context) (*lockkeeper.Lease, error) { return s.AcquireN(ctx, n) }}
	}
	rare := of(permits)
	rare.pause = 2 * time.Second
	return []use{of(1), of(1), of(1), rare}, err
}

type soak struct {
	*testing.T
	server *redistest.Server
	admin  redistest.Client
	nodes  []*node
	r      *rand.Rand

	last   map[string]uint64 // by name: the largest fence of earlier rounds
	faults map[string]int    // how often each was injected
	grants int
	inside int // of which were granted inside, by a lease that another had been granted
}

// runWorkload runs all uses of all primitives until the context ends.
func (n *node) runWorkload(ctx context.Context, seed uint64, tell func(span), add func(span)) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	for _, p := range soaked {
		for i := range 2 {
			name := fmt.Sprintf("%s-%d", p.kind, i)
			uses, err := p.uses(n.Keeper, name, ttl)
			if err != nil {
				return err
			}
			for j, u := range uses {
				r := rand.New(rand.NewPCG(seed, uint64(10*i+j)))
				workers.Go(func() {
					for ctx.Err() == nil {
						wait, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(int(2*time.Second))))
						hold := time.Duration(r.IntN(int(20 * time.Millisecond)))
						if r.IntN(50) == 0 {
							hold = time.Duration(r.IntN(int(3 * ttl)))
						}
						x, _ := n.work(wait, name, u, hold, tell)
						cancel()
						if x.Fence > 0 {
							add(x)
						}
						time.Sleep(time.Duration(r.IntN(int(20*time.Millisecond + u.pause))))
					}
				})
			}
		}
	}
	return nil
}

// round runs for a while with faults, restores everything, waits until all is idle, and checks.
func (s *soak) round(length time.Duration) {
	h := newHistory()
	for _, p := range soaked {
		for i := range 2 {
			h.capacity[fmt.Sprintf("%s-%d", p.kind, i)] = p.capacity
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), length)
	defer stop()
	var nodes sync.WaitGroup
	for _, n := range s.nodes {
		seed := s.r.Uint64()
		nodes.Go(func() {
			must.Report(s, n.runWorkload(ctx, seed, nil, h.add))
		})
	}
	children := []*childProcess{s.spawn(h), s.spawn(h), s.spawn(h)}
	for ctx.Err() == nil {
		s.fault(h, children)
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(s.r.IntN(int(100 * time.Millisecond)))):
		}
	}
	for _, n := range s.nodes {
		n.net.Restore()
	}
	for _, c := range children {
		c.stop()
	}
	nodes.Wait()
	for _, n := range s.nodes {
		clear(n.queued) // waits that ended without a lease
	}

	for _, wrong := range h.check() {
		s.Error(wrong)
	}
	for _, x := range h.spans {
		check.That(s, x.Fence > s.last[x.Name], "%s: fence %d, and %d in an earlier round", x.Name, x.Fence, s.last[x.Name])
	}
	for _, x := range h.spans {
		s.last[x.Name] = max(s.last[x.Name], x.Fence)
	}
	s.grants += len(h.spans)
	brought := map[uint64]bool{}
	for _, x := range h.spans {
		if x.Shares && brought[x.Fence] && !x.isRate() {
			s.inside++
		}
		brought[x.Fence] = true
	}
	s.awaitEmpty()
}

// fault injects a fault, and restores what needs it before it returns.
func (s *soak) fault(h *history, children []*childProcess) {
	ctx := context.Background()
	c := s.r.IntN(len(children))
	pause := time.Duration(s.r.IntN(int(2 * ttl)))
	all := []struct {
		what   string
		weight int
		do     func()
	}{
		{"connections of a process", 20, func() {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			breakConnections(short, s.r, s.nodes, s.admin)
		}},
		{"all connections", 3, func() { _ = s.admin.Do(ctx, "client", "kill", "type", "normal", "skipme", "yes").Err() }},
		{"all subscriptions", 3, func() { _ = s.admin.Do(ctx, "client", "kill", "type", "pubsub").Err() }},
		{"scripts", 3, func() { _ = s.admin.ScriptFlush(ctx).Err() }},
		{"process killed", 4, func() { children[c].kill(); children[c] = s.spawn(h) }},
		{"process frozen", 4, func() { children[c].freeze(pause) }},
		{"server frozen", 1, func() { s.server.Freeze(); time.Sleep(pause); s.server.Thaw() }},
		{"server paused", 1, func() { _ = s.admin.ClientPause(ctx, pause/2).Err() }},
		{"server killed", 1, func() { s.server.Kill(); time.Sleep(pause / 2); s.server.Restart() }},
	}
	n := 0
	for _, f := range all {
		n += f.weight
	}
	n = s.r.IntN(n)
	for _, f := range all {
		if n -= f.weight; n < 0 {
			s.faults[f.what]++
			f.do()
			return
		}
	}
}

// awaitEmpty waits until only data with an expiry is left at the server: metadata, tombstones, for a minute, and
// lapsed heartbeats, which are removed by later requests or with the tombstones.
func (s *soak) awaitEmpty() {
	s.Helper()
	ctx := context.Background()
	var left []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left = nil
		keys, err := s.admin.Keys(ctx, "*").Result()
		if err != nil {
			left = []string{err.Error()}
			continue
		}
		for _, k := range keys {
			d, err := s.admin.PTTL(ctx, k).Result()
			switch {
			case err != nil || d == -1:
				s.Errorf("%s has no expiry: %v, %v", k, d, err)
			case strings.HasSuffix(k, ":meta"), strings.HasPrefix(k, "{lock:}:owner:"): // also of a process that was killed
			case strings.HasSuffix(k, ":tombstones") && d < time.Minute+5*time.Second:
			default:
				left = append(left, k)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	s.Errorf("keys left: %v", left)
}

// childAddr is the environment variable that makes the test binary a process that works on that server until its
// standard input ends.
const childAddr = "LOCKKEEPER_SOAK_CHILD"

func (s *span) isRate() bool { return strings.HasPrefix(s.Name, "rate") }

func (s *span) key() string { return fmt.Sprint(s.Name, " ", s.Fence, " ", s.Called) }

func child() {
	n, err := newNode(os.Getenv(childAddr), heartbeatTimeout)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var mu sync.Mutex // guards out
	out := json.NewEncoder(os.Stdout)
	say := func(s span) { // when it is granted and before it is released, or once if it is not held
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(s)
	}
	unheld := func(s span) {
		if s.isRate() {
			say(s)
		}
	}
	if err := n.runWorkload(ctx, uint64(os.Getpid()), say, unheld); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	n.close()
}

// childProcess is such a process, seen by its parent.
type childProcess struct {
	*redistest.Child
	s     *soak
	h     *history
	ended chan struct{}   // when all its output was read
	open  map[string]span // granted and not complete; read after ended
}

func (s *soak) spawn(h *history) *childProcess {
	c := &childProcess{
		Child: redistest.StartChild(s.T, childAddr+"="+s.server.Addr), s: s, h: h, ended: make(chan struct{}), open: map[string]span{},
	}
	go func() {
		defer close(c.ended)
		for line := range c.Lines {
			var x span
			if json.Unmarshal([]byte(line), &x) != nil {
				continue // it was killed while it wrote
			}
			if _, granted := c.open[x.key()]; granted || x.isRate() {
				delete(c.open, x.key())
				h.add(x)
			} else {
				c.open[x.key()] = x
			}
		}
	}()
	return c
}

// addOpenSpans adds what the process held when it ended. It relied on that until then, or until the deadline if that
// was earlier.
func (c *childProcess) addOpenSpans(at int64) {
	<-c.ended
	_ = c.Wait()
	for _, x := range c.open {
		x.Until = min(x.Until, at)
		c.h.add(x)
	}
}

func (c *childProcess) kill() {
	at := now()
	c.Signal(syscall.SIGKILL)
	c.addOpenSpans(at)
}

func (c *childProcess) freeze(d time.Duration) {
	c.Signal(syscall.SIGSTOP)
	time.Sleep(d)
	c.Signal(syscall.SIGCONT)
}

// stop lets the process release everything and end.
func (c *childProcess) stop() {
	c.Stop()
	select {
	case <-c.ended:
	case <-time.After(30 * time.Second):
		c.s.Error("a process did not end")
		c.Signal(syscall.SIGKILL)
	}
	c.addOpenSpans(now())
}

// sample is the resources in use when the system is idle.
type sample struct {
	heap, redis, goroutines, files int
}

func (x sample) String() string {
	return fmt.Sprintf("heap %d KiB, Redis %d KiB, %d goroutines, %d files", x.heap>>10, x.redis>>10, x.goroutines, x.files)
}

func (s *soak) measure() sample {
	s.Helper()
	files := must.Get(os.ReadDir("/proc/self/fd"))(s)
	info := must.Get(s.admin.Info(context.Background(), "memory").Result())(s)
	_, used, _ := strings.Cut(info, "used_memory:")
	used, _, _ = strings.Cut(used, "\r")
	redis := must.Get(strconv.Atoi(used))(s)
	return sample{int(heapInUse()), redis, runtime.NumGoroutine(), len(files)}
}

// findGrowth returns what has grown: where the median in the last third of the rounds is more than a quarter above
// that in the first third, without the first round, and by more than 4 MiB of heap, 1 MiB of Redis memory, or 16
// goroutines or files (clients keep connections with a quarter of a MiB of buffers each, and their number grows at
// first when many faults coincide). For fewer than nine rounds it returns nothing.
func findGrowth(all []sample) (wrong []string) {
	if len(all) < 9 {
		return nil
	}
	all = all[1:]
	third := len(all) / 3
	for _, of := range []struct {
		what string
		get  func(sample) int
		slop int
	}{
		{"heap", func(x sample) int { return x.heap }, 4 << 20},
		{"Redis", func(x sample) int { return x.redis }, 1 << 20},
		{"goroutines", func(x sample) int { return x.goroutines }, 16},
		{"files", func(x sample) int { return x.files }, 16},
	} {
		median := func(part []sample) int {
			var list []int
			for _, x := range part {
				list = append(list, of.get(x))
			}
			slices.Sort(list)
			return list[len(list)/2]
		}
		if first, last := median(all[:third]), median(all[len(all)-third:]); last > first*5/4+of.slop {
			wrong = append(wrong, fmt.Sprintf("%s has grown from %d to %d", of.what, first, last))
		}
	}
	return wrong
}

func TestResourceGrowthReported(t *testing.T) {
	for what, step := range map[string]sample{
		"": {}, "heap": {heap: 400 << 10}, "Redis": {redis: 200 << 10}, "goroutines": {goroutines: 2}, "files": {files: 2},
	} {
		var all []sample
		for i := range 31 {
			x := sample{4 << 20, 4 << 20, 50, 50}
			x.heap, x.redis = x.heap+i*step.heap, x.redis+i*step.redis
			x.goroutines, x.files = x.goroutines+i*step.goroutines, x.files+i*step.files
			all = append(all, x)
		}
		got := findGrowth(all)
		check.That(t, what == "" && len(got) == 0 || what != "" && len(got) == 1 && strings.HasPrefix(got[0], what),
			"%q grows: %v", what, got)
	}
}
