// Package conformance has the behaviour that every primitive must have, written once. The test of a primitive passes
// it to Run, which runs all cases on an embedded server in virtual time and on a real one.
package conformance

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func init() { quiet.Redis() }

// dialing ignores a goroutine of go-redis that checks once a second whether its pool has been closed.
var dialing = goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")

// sentinels ignores the goroutines with which a FailoverClusterClient of go-redis hears of failovers, after it has been closed. No other code
// here uses PubSub.Channel.
var sentinels = []goleak.Option{
	goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*sentinelFailover).listen"),
	goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*channel).initHealthCheck.func1"),
	goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9.(*channel).initMsgChan.func1"),
}

// Locker is a lock of any kind that grants one lease at a time.
type Locker interface {
	lockkeeper.Locker
	Adopt(ctx context.Context, token string) (*lockkeeper.Lease, error)
	Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error
}

// Options are the options that every primitive has.
type Options struct {
	TTL         time.Duration
	NoRenewal   bool
	MaxLifetime time.Duration
}

// Primitive is the primitive under test.
type Primitive struct {
	Kind string
	New  func(k *lockkeeper.Keeper, name string, o Options) (Locker, error)
	// Key returns the Redis key of the lease of a name.
	Key func(name string) string
	// Fair: waiters are served in order.
	Fair bool
	// MajorityLock: there is no queue, and waiters retry.
	MajorityLock bool
	// Window is how long what was taken remains at the server after its lease has ended; 0 except for a rate limit.
	Window time.Duration
	// Cases are the cases of this primitive alone.
	Cases []Case
	// Only has the names of the cases that apply to the primitive, if few do.
	Only []string
	// Slow has the names of cases that would take too long on a real server.
	Slow []string
}

// Case is a behaviour.
type Case struct {
	Name     string
	Real     bool // only on a real server
	Embedded bool // only on an embedded one: its clock is set, or it takes long or depends on exact times
	Alone    bool // on a server of its own, because it changes the whole server
	Test     func(*World)
}

// ttl and heartbeatInterval are short, because real servers make tests wait for them, and so long that a lease is not lost, and a
// waiter not passed over, on a machine that is busy for a second.
const (
	ttl               = 3 * time.Second
	heartbeatInterval = time.Second
)

// clientTimeout is that of the clients of processes, unless a case sets another one: shorter than a lease, and so long that a busy
// machine answers within it.
const clientTimeout = 2 * time.Second

// World is a server and the processes that use it.
type World struct {
	*testing.T
	P    Primitive
	Real bool

	mini   *miniredis.Miniredis
	server *redistest.Server
	db     int
	admin  redistest.Client

	clientTimeout time.Duration // of the processes that are started from now on
}

// Process is a keeper with a client and a network of its own.
type Process struct {
	*lockkeeper.Keeper
	Net *faultnet.Net
	RDB redistest.Client
	w   *World
}

// All runs all tests of a primitive: the cases, the documented permissions, and deployments and processes, which are the same for
// all primitives.
func All(t *testing.T, p Primitive) {
	parts := map[string]func(*testing.T){
		"cases":          func(t *testing.T) { Run(t, p) },
		"documented_acl": func(t *testing.T) { rights(t, p) },
	}
	if p.everywhere() {
		parts["deployments"] = func(t *testing.T) { deployments(t, p) }
		parts["cluster over minutes"] = func(t *testing.T) { overMinutes(t, p) }
		parts["processes"] = func(t *testing.T) { processes(t, p) }
		parts["replicas"] = func(t *testing.T) { replicas(t, p) }
		parts["failovers"] = func(t *testing.T) { failovers(t, p) }
	}
	runParallel(t, parts)
}

func runParallel(t *testing.T, tests map[string]func(*testing.T)) {
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// everywhere reports whether the primitive is tested on real servers with what all have in common: one is, unless all are to be.
func (p Primitive) everywhere() bool { return p.Kind == "fair" || redistest.All() }

// Run runs every case on an embedded server, and those of the primitive alone on a real one; of one primitive, and with
// redistest.All of each, the others too. With that, nothing runs on an embedded server.
func Run(t *testing.T, p Primitive) {
	cases := slices.Concat(cases, promises, outages, visible)
	if !p.MajorityLock {
		cases = slices.Concat(cases, queued, queuedPromises, faults)
	}
	if p.Fair {
		cases = append(cases, ordered...)
	}
	cases = append(cases, p.Cases...)
	for _, name := range slices.Concat(p.Only, p.Slow) {
		check.That(t, slices.ContainsFunc(cases, func(c Case) bool { return c.Name == name }), "there is no case %s", name)
	}
	if p.Only != nil {
		cases = slices.DeleteFunc(cases, func(c Case) bool { return !slices.Contains(p.Only, c.Name) })
	}
	runCases(t, p, cases)
}

func runCases(t *testing.T, p Primitive, cases []Case) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel() // in virtual time, while the others wait
		for _, c := range cases {
			if redistest.All() || c.Real {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				embedded.Run(t, func(s *embedded.Server) {
					w := &World{T: s.T, P: p, mini: s.Mini}
					w.run(c.Test)
				})
			})
		}
	})
	own := func(c Case) bool {
		return slices.ContainsFunc(p.Cases, func(o Case) bool { return o.Name == c.Name })
	}
	if !p.everywhere() {
		cases = slices.DeleteFunc(cases, func(c Case) bool { return !own(c) })
	}
	if len(cases) == 0 {
		return
	}
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		redistest.RequireBinary(t)
		shared := redistest.Start(t, "--databases", strconv.Itoa(len(cases)))
		t.Run("all", func(t *testing.T) {
			for i, c := range cases {
				if c.Embedded || slices.Contains(p.Slow, c.Name) {
					continue
				}
				t.Run(c.Name, func(t *testing.T) {
					t.Parallel() // they mostly wait
					w := &World{T: t, P: p, Real: true, server: shared, db: i}
					if c.Alone {
						w.server, w.db = redistest.Start(t), 0
					}
					w.run(c.Test)
				})
			}
		})
	})
}

// Main runs the tests of a package that calls Run: more at once than there are processors, with a check for
// goroutines left at the end. In a child process it plays the child's role.
func Main(m *testing.M, p Primitive) {
	if role := os.Getenv(childRole); role != "" {
		child(p, role)
		os.Exit(0)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "48"); err != nil {
		panic(err)
	}
	before := goleak.IgnoreCurrent()
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(append(sentinels, before, redistest.IgnoreStarter(), dialing)...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func (w *World) run(test func(*World)) {
	w.clientTimeout = clientTimeout
	w.admin = newClient(w, faultnet.New(w.dial))
	w.Cleanup(func() { _ = w.admin.Close() })
	test(w)
}

func (w *World) ctx() context.Context { return context.Background() }

func (w *World) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if w.mini == nil {
		return faultnet.TCP(ctx, network, w.server.Addr)
	}
	pipe := (&embedded.Server{Mini: w.mini}).Dial
	return faultnet.Buffer(pipe)(ctx, network, addr)
}

func newClient(w *World, n *faultnet.Net) *redis.Client {
	o := faultnet.Options(n, w.clientTimeout)
	o.DB, o.PoolSize = w.db, 20
	return redis.NewClient(o)
}

// Process starts a process; change may alter its options.
func (w *World) Process(change ...func(*lockkeeper.Options)) *Process {
	w.Helper()
	n := faultnet.New(w.dial)
	rdb := newClient(w, n)
	p := &Process{Net: n, RDB: rdb, w: w}
	o := &lockkeeper.Options{
		HeartbeatInterval: heartbeatInterval, HeartbeatTimeout: 3 * heartbeatInterval, Logger: quiet.Logger(nil),
	}
	for _, f := range change {
		f(o)
	}
	p.Keeper = must.Get(lockkeeper.New(rdb, o))(w)
	w.Cleanup(func() {
		n.Restore()
		_ = p.Close()
		_ = rdb.Close()
	})
	return p
}

// slowHeartbeats makes heartbeats so rare that no heartbeat is due during a test.
func slowHeartbeats(o *lockkeeper.Options) {
	o.HeartbeatInterval, o.HeartbeatTimeout = time.Minute, 3*time.Minute
}

// Crash cuts the process off for good: nothing that it does reaches the server.
func (p *Process) Crash() { p.Net.Down() }

// Lock returns a lock of the primitive with this name.
func (p *Process) Lock(name string, change ...func(*Options)) Locker {
	p.w.Helper()
	o := Options{TTL: ttl}
	for _, f := range change {
		f(&o)
	}
	return must.Get(p.w.P.New(p.Keeper, name, o))(p.w)
}

func withoutRenewal(o *Options) { o.NoRenewal = true }

func withTTL(d time.Duration) func(*Options) { return func(o *Options) { o.TTL = d } }

func (w *World) must(err error) {
	if err != nil {
		w.Helper()
		w.Fatal(err)
	}
}

func (w *World) hold(l Locker) *lockkeeper.Lease {
	w.Helper()
	return w.mustAcquire(l.Lock)
}

func (w *World) mustAcquire(f acquire) *lockkeeper.Lease {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx(), 20*time.Second)
	defer cancel()
	return must.Get(f(ctx))(w)
}

func (w *World) release(l *lockkeeper.Lease) {
	w.Helper()
	w.must(l.Release(w.ctx()))
}

func (w *World) checkFree(l Locker) {
	w.Helper()
	w.release(must.Get(l.TryLock(w.ctx()))(w))
}

func (w *World) lockAsync(ctx context.Context, l Locker) chan result { return w.start(ctx, l.Lock) }

// start calls in the background and returns a channel for the result.
func (w *World) start(ctx context.Context, call acquire) chan result {
	ch := make(chan result, 1)
	go func() {
		g, err := leased(call(ctx))
		ch <- result{g, err, time.Now()}
	}()
	return ch
}

type acquire = func(context.Context) (*lockkeeper.Lease, error)

type result struct {
	grant
	err error
	at  time.Time
}

// grant is what a request was granted: a fence, and a lease if there is one.
type grant struct {
	fence uint64
	lease *lockkeeper.Lease
}

func leased(lease *lockkeeper.Lease, err error) (grant, error) {
	return grant{lease.Fence(), lease}, err
}

func await[T any](w *World, ch chan T, within time.Duration) T {
	w.Helper()
	return must.Receive(w, ch, within+w.slack(), "a result")
}

func (w *World) awaitGrant(ch chan result, within time.Duration) result {
	w.Helper()
	r := await(w, ch, within)
	w.must(r.err)
	return r
}

// slack returns the delay to tolerate on a real server on a loaded machine. In virtual time nothing is delayed.
func (w *World) slack() time.Duration {
	if w.Real {
		return 6 * time.Second
	}
	return time.Millisecond
}

// awaitWaiters waits until the queue of the name has n waiters. In virtual time their keepers know it then, too; a
// request that is given up before its reply has come leaves a tombstone. Without a queue it waits for as long as a
// few attempts take.
func (w *World) awaitWaiters(name string, n int64) {
	w.Helper()
	if w.P.MajorityLock {
		time.Sleep(heartbeatInterval / 4)
		return
	}
	w.eventually(fmt.Sprintf("%d waiters", n), func() bool {
		got, err := w.admin.ZCount(w.ctx(), w.queueKey(name), "-inf", protocol.BehindWaiters).Result()
		return err == nil && got == n
	})
	if !w.Real {
		synctest.Wait()
		return
	}
	// A waiter is queued before its keeper is subscribed, and counts on that from the next heartbeat on; it never does if it may not subscribe.
	const uncounted = protocol.Heartbeats + 3_600_000_000_000 // see UNSUBSCRIBED in lua/lib/constants.lua
	for end := time.Now().Add(heartbeatInterval); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if w.admin.ZCount(w.ctx(), w.queueKey(name), strconv.FormatInt(uncounted, 10), "+inf").Val() == 0 {
			break
		}
	}
}

// awaitSubscription waits until the server knows that the process receives messages, or no longer does.
func (w *World) awaitSubscription(p *Process, receives bool) {
	w.Helper()
	w.eventually(fmt.Sprintf("its subscription: %t", receives), func() bool { return len(w.channels(p)) > 0 == receives })
}

// channels returns the names of the channels to which the process is subscribed.
func (w *World) channels(p *Process) []string {
	w.Helper()
	return must.Get(w.admin.PubSubChannels(w.ctx(), "lock:wake:"+p.ID()+"*").Result())(w)
}

// settle waits until what was begun in the background has been done. On a real server it waits for as long as that takes usually.
func (w *World) settle() {
	if w.Real {
		time.Sleep(heartbeatInterval / 4)
		return
	}
	synctest.Wait()
}

func (w *World) queueKey(name string) string { return "{lock:" + name + "}:" + w.P.Kind + ":queue" }

func (w *World) eventually(what string, is func() bool) {
	w.Helper()
	end := time.Now().Add(20 * time.Second)
	for n := 0; !is(); n++ {
		must.That(w, !time.Now().After(end), "not within 20 s: %s", what)
		if w.mini != nil && n > 20 { // virtual time costs as much as the commands in it
			time.Sleep(40 * time.Millisecond)
		} else {
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// keys returns all keys of the server except what may remain: metadata, the labels of keepers that are not closed, and permits
// that return after their window.
func (w *World) keys() []string {
	w.Helper()
	all := must.Get(w.admin.Keys(w.ctx(), "*").Result())(w)
	all = slices.DeleteFunc(all, func(k string) bool {
		return strings.HasSuffix(k, ":meta") || strings.HasPrefix(k, "{lock:}:owner:") || w.onlyTakings(k)
	})
	slices.Sort(all)
	return all
}

// onlyTakings reports whether a key has no leases, but only permits of a window that were taken with a lease.
func (w *World) onlyTakings(key string) bool {
	if w.P.Window == 0 || !strings.HasSuffix(key, ":holders") {
		return false
	}
	members, err := w.admin.ZRange(w.ctx(), key, 0, -1).Result()
	return err == nil && !slices.ContainsFunc(members, func(m string) bool {
		t, ok := protocol.ParseToken(strings.TrimPrefix(m, "@"))
		return m != "spent" && !(ok && m[0] == '@' && strings.Contains(t.Flags, protocol.FlagHeld))
	})
}

// checkClean checks that nothing remains at the server except metadata, which must expire.
func (w *World) checkClean() {
	w.Helper()
	w.checkLeft(w.Real) // there a message may overtake a reply, and then a tombstone remains for a minute
	w.checkAllKeysExpire()
}

func (w *World) checkOnlyTombstones() {
	w.Helper()
	w.checkLeft(true)
}

func (w *World) checkLeft(tombstones bool) {
	w.Helper()
	var left []string
	defer func() {
		if len(left) > 0 {
			w.Log("left:", left)
		}
	}()
	w.eventually("nothing left behind", func() bool {
		left = slices.DeleteFunc(w.keys(), func(k string) bool { return tombstones && strings.HasSuffix(k, ":tombstones") })
		return len(left) == 0
	})
}

func (w *World) checkAllKeysExpire() {
	w.Helper()
	all := must.Get(w.admin.Keys(w.ctx(), "*").Result())(w)
	for _, k := range all {
		d, err := w.admin.PTTL(w.ctx(), k).Result()
		check.That(w, err == nil && d != -1, "%s has no expiry (%v, %v)", k, d, err)
	}
}

// checkError checks which of the package's errors err is, and that it is no other.
func (w *World) checkError(err error, want ...error) {
	w.Helper()
	ended := slices.Contains(want, error(context.Canceled)) || slices.Contains(want, error(context.DeadlineExceeded))
	if i := slices.Index(want, lockkeeper.ErrNotAcquired); i >= 0 && w.Real && ended && errors.Is(err, lockkeeper.ErrUnavailable) {
		want = slices.Clone(want)
		want[i] = lockkeeper.ErrUnavailable // the first reply was still under way, or the machine is slow
	}
	for _, e := range want {
		check.Is(w, err, e, "the error is not %q", e)
	}
	check.That(w, err == nil || !strings.Contains(err.Error(), "\n"), "the error has more than one line: %q", err)
	check.That(w, err == nil || strings.Count(err.Error(), "lockkeeper: ") <= 1, "the error names the package twice: %q", err)
	for _, e := range []error{lockkeeper.ErrNotAcquired, lockkeeper.ErrUnavailable, lockkeeper.ErrLost, lockkeeper.ErrReleased, lockkeeper.ErrClosed, lockkeeper.ErrInvalid} {
		if e == lockkeeper.ErrUnavailable && slices.Contains(want, lockkeeper.ErrLost) {
			continue // it may be the cause
		}
		check.That(w, !errors.Is(err, e) || slices.Contains(want, e), "the error is also %q: %v", e, err)
		check.That(w, !errors.Is(err, e) || strings.Contains(err.Error(), "lockkeeper: "+w.P.Kind+` "`),
			"the error does not name its lock: %q", err)
	}
}

func errorOf[T any](_ T, err error) error { return err }

// inTime checks how long something has taken in virtual time. On a real server it may take longer.
func (w *World) inTime(took, least, most time.Duration, what string) {
	if !w.Real {
		w.Helper()
		check.Between(w, took, least, most, what)
	}
}

// left is how long the holder of a lease relies on it.
func left(lease *lockkeeper.Lease) time.Duration { return time.Until(lease.Deadline()) }

func (w *World) awaitLoss(l *lockkeeper.Lease, within time.Duration) {
	w.Helper()
	must.Receive(w, l.Done(), within+w.slack(), "the report of a loss")
	w.checkError(l.Err(), lockkeeper.ErrLost)
}

// counter is a number that only mutual exclusion keeps correct: incrementing it takes two steps.
type counter struct {
	busy     atomic.Int32
	n        int
	overlaps atomic.Int32 // increments that overlapped
}

func (c *counter) inc() {
	if c.busy.Add(1) != 1 {
		c.overlaps.Add(1)
	}
	n := c.n
	time.Sleep(50 * time.Microsecond)
	c.n = n + 1
	c.busy.Add(-1)
}

func parallel(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
