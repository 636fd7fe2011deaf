package admin_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// looker is a keeper for the tests of List, Inspect and Break.
type looker struct {
	*testing.T
	*lockkeeper.Keeper
	rdb redis.UniversalClient
}

func newLooker(t *testing.T, rdb redis.UniversalClient, opts *lockkeeper.Options) *looker {
	t.Helper()
	var o lockkeeper.Options
	if opts != nil {
		o = *opts
	}
	o.Logger = slog.New(slog.DiscardHandler)
	k := must(lockkeeper.New(rdb, &o))
	t.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
	return &looker{t, k, rdb}
}

// list returns what List yields, sorted by kind and name.
func (l *looker) list(opts *admin.ListOptions) []admin.LockSummary {
	l.Helper()
	var all []admin.LockSummary
	for e, err := range admin.List(background, l.Keeper, opts) {
		all = append(all, must(e, err))
	}
	slices.SortFunc(all, func(a, b admin.LockSummary) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return all
}

// found says what List yields, without times.
func (l *looker) found(opts *admin.ListOptions) string {
	l.Helper()
	var b strings.Builder
	for _, e := range l.list(opts) {
		fmt.Fprintf(&b, "%s %s %d %d\n", e.Kind, e.Name, e.Holders, e.Waiters)
	}
	return b.String()
}

// waiting is a call that waits in the background.
type waiting struct {
	lease *lockkeeper.Lease
	err   error
	done  chan struct{}
}

// wait makes a request wait in the background, and returns when the server has queued it and sends messages to the keeper.
func (l *looker) wait(kind lockkeeper.Kind, name string, lock func(context.Context) (*lockkeeper.Lease, error)) *waiting {
	l.Helper()
	before := len(l.waiters(kind, name))
	w := &waiting{done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(background, time.Minute)
	go func() {
		defer close(w.done)
		w.lease, w.err = lock(ctx)
	}()
	l.Cleanup(func() { cancel(); <-w.done })
	l.eventually(func() bool { return len(l.waiters(kind, name)) > before && l.subscribed() })
	return w
}

// subscribed reports whether a server has a subscription of the keeper. A request does not wait for that before it joins the queue.
func (l *looker) subscribed() bool {
	subscribes := func(ctx context.Context, n *redis.Client) bool {
		pattern := "*wake:" + l.ID() + "*"
		return len(n.PubSubChannels(ctx, pattern).Val())+len(n.PubSubShardChannels(ctx, pattern).Val()) > 0 // the embedded server has none of the latter
	}
	c, cluster := l.rdb.(*redis.ClusterClient)
	if !cluster {
		return subscribes(background, l.rdb.(*redis.Client))
	}
	var found atomic.Bool
	_ = c.ForEachMaster(background, func(ctx context.Context, n *redis.Client) error {
		found.CompareAndSwap(false, subscribes(ctx, n))
		return nil
	})
	return found.Load()
}

func (l *looker) waiters(kind lockkeeper.Kind, name string) []lockkeeper.Waiter {
	return must(admin.Inspect(background, l.Keeper, kind, name)).Waiters
}

func (l *looker) eventually(is func() bool) {
	l.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			l.Fatal("it did not happen")
		}
	}
}

// servers calls a test with the client of each kind of deployment.
func servers(t *testing.T, test func(t *testing.T, rdb func() redis.UniversalClient)) {
	t.Parallel() // clusters take seconds to form
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := miniredis.RunT(t)
		s.ClockTTL(true)
		test(t, func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: s.Addr()}) })
	})
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		test(t, func() redis.UniversalClient { return redistest.Connect(s) })
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		test(t, func() redis.UniversalClient { return c.Client() })
	})
}

// TestEveryKind checks what is listed and inspected of each kind of lock, held and waited for, among keys that are not locks.
func TestEveryKind(t *testing.T) {
	servers(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		l := newLooker(t, rdb(), &lockkeeper.Options{Owner: "me"})
		k := l.Keeper
		held := must(must(mutex.New(k, "m", nil)).TryLock(background))
		other := newLooker(t, rdb(), nil)
		other.wait("mutex", "m", must(mutex.New(other.Keeper, "m", nil)).Lock)
		f := must(fair.New(k, "{tag}f", nil))
		first := must(f.TryLock(background))
		l.wait("fair", "{tag}f", f.Lock)
		l.wait("fair", "{tag}f", f.Lock)
		rw := must(rwlock.New(k, "rw*[", nil))
		must(rw.TryRLock(background))
		must(rw.TryRLock(background))
		l.wait("rwlock", "rw*[", rw.Lock)
		l.wait("rwlock", "rw*[", rw.RLock)
		s := must(semaphore.New(k, "\xffs", 7, nil))
		must(s.TryAcquireN(background, 2))
		must(s.TryAcquireN(background, 3))
		l.wait("semaphore", "\xffs", func(ctx context.Context) (*lockkeeper.Lease, error) { return s.AcquireN(ctx, 3) })
		r := must(ratelimit.New(k, "r", 9, time.Hour, nil))
		must(r.AllowN(background, 2))
		must(r.Allow(background))
		rc := must(ratelimit.NewConcurrent(k, "rc", 9, time.Hour, 4, nil))
		must(rc.TryAcquireN(background, 3))
		release(t, must(rc.TryAcquire(background)))
		o := must(once.New(k, "o", time.Hour, nil))
		must(o.Do(background, func(context.Context, uint64) error { return nil }))
		running := must(once.New(k, "running", time.Hour, nil))
		ends, began := make(chan struct{}), make(chan struct{})
		go func() {
			_, _ = running.Do(background, func(context.Context, uint64) error { close(began); <-ends; return nil })
		}()
		<-began
		defer close(ends)
		long := strings.Repeat("n", 1024)
		must(must(mutex.New(k, long, nil)).TryLock(background))

		for _, key := range []string{"session:1", "xlock:y", "lock:", "{lock:x}:other:queue"} {
			l.rdb.Set(background, key, "x", 0)
		}
		l.rdb.Set(background, "lock:foreign", "some token", time.Minute)
		l.rdb.Set(background, "lock:endless", "some token", 0)
		l.rdb.HSet(background, "lock:hash", "a", "b")
		l.rdb.HSet(background, "{lock:hash}:mutex:queue", "a", "b")
		l.rdb.ZAdd(background, "{lock:over}:rwlock:holders", redis.Z{Score: 1, Member: "expired"})

		want := "fair {tag}f 1 2\nmutex endless 1 0\nmutex foreign 1 0\nmutex m 1 1\nmutex " + long +
			" 1 0\nonce running 1 0\nratelimit r 2 0\nratelimit rc 1 0\nrwlock rw*[ 2 2\nsemaphore \xffs 2 1\n"
		if got := l.found(nil); got != want {
			t.Errorf("listed\n%s\nwant\n%s", got, want)
		}
		if got := l.found(&admin.ListOptions{Batch: 1}); got != want {
			t.Errorf("with a batch of one: listed\n%s\nwant\n%s", got, want)
		}
		for _, e := range l.list(nil) {
			switch {
			case e.Name == "endless" && e.ExpiresIn >= 0,
				e.Name != "endless" && e.Name != "r" && (e.ExpiresIn <= 0 || e.ExpiresIn > time.Minute),
				e.Name == "r" && (e.ExpiresIn < time.Hour-time.Minute || e.ExpiresIn > time.Hour),
				e.Waiters == 0 && e.LongestWait != 0, e.LongestWait > time.Minute:
				t.Errorf("%+v", e)
			}
		}
		for _, c := range []struct {
			opts admin.ListOptions
			want string
		}{
			{admin.ListOptions{Kinds: []lockkeeper.Kind{fair.Kind, semaphore.Kind}}, "fair {tag}f 1 2\nsemaphore \xffs 2 1\n"},
			{admin.ListOptions{Kinds: []lockkeeper.Kind{redlock.Kind}, Match: "m"}, "mutex m 1 1\n"},
			{admin.ListOptions{Match: "r*"}, "ratelimit r 2 0\nratelimit rc 1 0\nonce running 1 0\nrwlock rw*[ 2 2\n"},
			{admin.ListOptions{Match: `rw\*\[`}, "rwlock rw*[ 2 2\n"},
			{admin.ListOptions{Match: "lock:*"}, ""},
			{admin.ListOptions{WaitingLonger: time.Hour}, ""},
		} {
			want := strings.SplitAfter(c.want, "\n")
			slices.Sort(want)
			got := l.found(&c.opts)
			check.That(t, got == strings.Join(want, ""), "%+v: listed\n%s\nwant\n%s", c.opts, got, c.want)
		}
		l.eventually(func() bool {
			return l.found(&admin.ListOptions{WaitingLonger: 50 * time.Millisecond}) ==
				"fair {tag}f 1 2\nmutex m 1 1\nrwlock rw*[ 2 2\nsemaphore \xffs 2 1\n"
		})

		inspect := func(kind lockkeeper.Kind, name string) *admin.LockState {
			return must(admin.Inspect(background, k, kind, name))
		}
		for _, kind := range []lockkeeper.Kind{mutex.Kind, redlock.Kind} {
			in := inspect(kind, "m")
			if len(in.Holders) != 1 || in.Holders[0].Token != held.Token() || in.Holders[0].Owner != "me" || in.Fence != held.Fence() ||
				in.Limits != nil || in.Kind != kind || in.Name != "m" || len(in.Waiters) != 1 {
				t.Errorf("%+v", in)
			}
		}
		in := inspect(fair.Kind, "{tag}f")
		if len(in.Holders) != 1 || in.Fence != first.Fence() || len(in.Waiters) != 2 || in.Waiters[1].Owner != "me" {
			t.Errorf("%+v", in)
		}
		for _, want := range []admin.LockState{
			{Kind: semaphore.Kind, Name: "\xffs", Limits: &admin.Limits{Limit: 7, Used: 5}},
			{Kind: ratelimit.Kind, Name: "r", Limits: &admin.Limits{Limit: 9, Used: 3, Window: time.Hour}},
			{Kind: ratelimit.Kind, Name: "rc", Limits: &admin.Limits{Limit: 9, Used: 4, Window: time.Hour, MaxConcurrent: 4, Held: 3}},
		} {
			in := inspect(want.Kind, want.Name)
			check.That(t, in.Limits != nil && *in.Limits == *want.Limits, "%s %s: %+v, %+v", want.Kind, want.Name, in, in.Limits)
		}
		must("", r.Pause(background, time.Hour))
		if d := inspect(ratelimit.Kind, "r").Limits.PausedFor; d <= 59*time.Minute || d > time.Hour+time.Millisecond { // its end is rounded up
			t.Errorf("paused for %v of an hour", d)
		}
		must("", r.Resume(background))
		if d := inspect(ratelimit.Kind, "r").Limits.PausedFor; d != 0 {
			t.Errorf("paused for %v after the pause", d)
		}
		if in := inspect(once.Kind, "running"); len(in.Holders) != 1 || in.RunAgainIn != 0 {
			t.Errorf("while it runs: %+v", in)
		}
		if in := inspect(once.Kind, "o"); len(in.Holders) != 0 || in.RunAgainIn <= 59*time.Minute || in.RunAgainIn > time.Hour {
			t.Errorf("after the success: %+v", in)
		}
		for _, set := range lua.All {
			in := inspect(lockkeeper.Kind(set.Kind), "unused")
			check.That(t, len(in.Holders)+len(in.Waiters) == 0 && in.Fence == 0 && in.Limits == nil, "%s: %+v", set.Kind, in)
		}
	})
}

// TestListPrefixes checks that names are found under each kind of prefix, and no others.
func TestListPrefixes(t *testing.T) {
	s := miniredis.RunT(t)
	rdb := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: s.Addr()}) }
	for _, prefix := range []string{"a:", "a:b:", "{a}:", "*", "[a-z]", `\`} {
		l := newLooker(t, rdb(), &lockkeeper.Options{Prefix: prefix})
		must(must(mutex.New(l.Keeper, "m", nil)).TryLock(background))
		must(must(fair.New(l.Keeper, "f", nil)).TryLock(background))
	}
	for prefix, want := range map[string]string{
		"a:": "fair b:f 1 0\nfair f 1 0\nmutex b:m 1 0\nmutex m 1 0\n", "a:b:": "fair f 1 0\nmutex m 1 0\n", "{a}:": "fair f 1 0\nmutex m 1 0\n",
		"*": "fair f 1 0\nmutex m 1 0\n", "[a-z]": "fair f 1 0\nmutex m 1 0\n", `\`: "fair f 1 0\nmutex m 1 0\n", "b:": "",
	} {
		got := newLooker(t, rdb(), &lockkeeper.Options{Prefix: prefix}).found(nil)
		check.That(t, got == want, "%q: listed\n%s\nwant\n%s", prefix, got, want)
	}
	l := newLooker(t, rdb(), &lockkeeper.Options{NoPrefix: true})
	if got := len(l.list(nil)); got != 12 {
		t.Errorf("without a prefix: listed\n%s", l.found(nil))
	}
}

func TestListErrors(t *testing.T) {
	t.Parallel()
	s := miniredis.RunT(t)
	l := newLooker(t, redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1}), nil)
	errOf := func(ctx context.Context, k *lockkeeper.Keeper, opts *admin.ListOptions) (err error) {
		n := 0
		for e, end := range admin.List(ctx, k, opts) {
			if n++; end == nil || e != (admin.LockSummary{}) || n > 1 {
				t.Errorf("%+v, %v", e, end)
			}
			err = end
		}
		return err
	}
	for what, opts := range map[string]*admin.ListOptions{
		"Batch -1": {Batch: -1}, "Batch 20000": {Batch: 20000}, "WaitingLonger -1s": {WaitingLonger: -time.Second}, `"mutexes"`: {Kinds: []lockkeeper.Kind{"mutexes"}},
	} {
		err := errOf(background, l.Keeper, opts)
		check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), what), "%s: %v", what, err)
	}
	for _, k := range []*lockkeeper.Keeper{nil, {}} {
		check.Is(t, errOf(background, k, nil), lockkeeper.ErrInvalid, "the error")
	}
	ended, cancel := context.WithCancel(background)
	cancel()
	check.Is(t, errOf(ended, l.Keeper, nil), context.Canceled, "the error")
	s.Close()
	check.Is(t, errOf(background, l.Keeper, nil), lockkeeper.ErrUnavailable, "the error")
	_ = l.Close()
	check.Is(t, errOf(background, l.Keeper, nil), lockkeeper.ErrClosed, "the error")
}

// TestListStops checks that a loop that is left sends nothing more, and that the keeper can be closed in it.
func TestListStops(t *testing.T) {
	t.Parallel()
	s := miniredis.RunT(t)
	l := newLooker(t, redis.NewClient(&redis.Options{Addr: s.Addr()}), nil)
	for i := range 200 {
		must(must(mutex.New(l.Keeper, fmt.Sprint(i), nil)).TryLock(background))
	}
	n := 0
	for range admin.List(background, l.Keeper, nil) {
		if n++; n == 3 {
			break
		}
	}
	check.That(t, n == 3, "%d entries", n)
	var scanned, total int64
	if n := len(l.list(&admin.ListOptions{Batch: 10, Progress: func(a, b int64) { scanned, total = a, b }})); n != 200 {
		t.Errorf("%d entries", n)
	}
	check.That(t, scanned >= 200 && total == scanned, "scanned %d of %d", scanned, total)
	var last error
	for _, err := range admin.List(background, l.Keeper, nil) {
		if last = err; err == nil {
			_ = l.Close()
		}
	}
	check.Is(t, last, lockkeeper.ErrClosed, "the error")
}

func TestInspectErrors(t *testing.T) {
	l := newLooker(t, noServer(t), nil)
	for _, c := range []admin.LockState{{Kind: "mutexes", Name: "x"}, {Name: "x"}, {Kind: mutex.Kind}, {Kind: fair.Kind, Name: "}"}} {
		check.Is(t, check.ErrorOf(admin.Inspect(background, l.Keeper, c.Kind, c.Name)), lockkeeper.ErrInvalid, "%q %q", c.Kind, c.Name)
	}
	for _, k := range []*lockkeeper.Keeper{nil, {}} {
		check.Is(t, check.ErrorOf(admin.Inspect(background, k, mutex.Kind, "x")), lockkeeper.ErrInvalid, "the error")
	}
}

// TestKinds checks that the constants of the packages are the kinds that List and Inspect know.
func TestKinds(t *testing.T) {
	kinds := []lockkeeper.Kind{mutex.Kind, fair.Kind, rwlock.Kind, semaphore.Kind, ratelimit.Kind, redlock.Kind, once.Kind}
	for _, set := range lua.All {
		check.That(t, slices.Contains(kinds, lockkeeper.Kind(set.Kind)), "no package has the kind %q", set.Kind)
	}
	check.That(t, len(kinds) == len(lua.All), "%d kinds, want %d", len(kinds), len(lua.All))
}

// A lease that was handed to a waiter lasts for the heartbeat timeout only until it is renewed. Inspect tells it from one in trouble.
func TestInspectTellsUnconfirmedLeases(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { _ = rdb.Close() }()
	open := func(owner string) (*lockkeeper.Keeper, *fair.Lock) {
		k := must(lockkeeper.New(rdb, &lockkeeper.Options{Owner: owner, HeartbeatTimeout: 3 * time.Second}))
		t.Cleanup(func() { _ = k.Close() })
		return k, must(fair.New(k, "x", nil))
	}
	ops, first := open("first")
	_, second := open("second")
	inspect := func() *admin.LockState { return must(admin.Inspect(background, ops, fair.Kind, "x")) }
	lease := must(first.Lock(background))
	granted := make(chan *lockkeeper.Lease, 1)
	go func() { granted <- must(second.Lock(background)) }()
	for len(inspect().Waiters) == 0 {
		time.Sleep(time.Millisecond)
	}
	i := inspect()
	if h, w := i.Holders[0], i.Waiters[0]; h.Unconfirmed || w.HeartbeatAge < 0 || w.HeartbeatAge > 3*time.Second {
		t.Errorf("%+v", i)
	}
	for e, err := range admin.List(background, ops, &admin.ListOptions{Owners: true}) {
		check.That(t, err == nil && e.Owner == "first" && e.Keeper == ops.ID(), "%+v, %v", e, err)
	}
	release(t, lease)
	handed := <-granted
	if h := inspect().Holders[0]; !h.Unconfirmed || h.ExpiresIn > 3*time.Second || h.Owner != "second" {
		t.Errorf("just handed over: %+v", h)
	}
	for inspect().Holders[0].Unconfirmed { // until the first renewal, after a second
		time.Sleep(10 * time.Millisecond)
	}
	if h := inspect().Holders[0]; h.ExpiresIn < 10*time.Second {
		t.Errorf("confirmed: %+v", h)
	}
	release(t, handed)
}

// The age of a heartbeat is by the timeout of the waiter's keeper, not of the one that looks.
func TestHeartbeatAgeIsByTheWaitersTimeout(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { _ = rdb.Close() }()
	open := func(timeout time.Duration) *lockkeeper.Keeper {
		k := must(lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatTimeout: timeout}))
		t.Cleanup(func() { _ = k.Close() })
		return k
	}
	ops, app := open(time.Minute), open(900*time.Millisecond)
	f := must(fair.New(app, "x", nil))
	r := must(ratelimit.New(app, "x", 1, time.Minute, nil))
	must(f.Lock(background))
	must(r.Allow(background))
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	for range 2 {
		go func() { _, _ = f.Lock(ctx) }()
		go func() { _ = r.Do(ctx, func(context.Context, uint64) error { return nil }) }()
	}
	for _, kind := range []lockkeeper.Kind{fair.Kind, ratelimit.Kind} {
		var w []lockkeeper.Waiter
		for len(w) < 2 || w[0].WaitTime < time.Second {
			w = must(admin.Inspect(background, ops, kind, "x")).Waiters
			time.Sleep(5 * time.Millisecond)
		}
		check.That(t, w[0].HeartbeatAge <= 900*time.Millisecond, "%s: %+v", kind, w[0])
	}
}

// TestOneNodeOfACluster: with a client of a single server at a node of a Cluster, what is at other nodes is an error at once, and a listing
// says that it has the locks of one node.
func TestOneNodeOfACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	all := newLooker(t, c.Client(), nil)
	var log quiet.Buffer
	one := must(lockkeeper.New(redistest.Connect(c.Primaries[0]), &lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	t.Cleanup(func() { _ = one.Close() })
	refused := 0
	for i := range 30 {
		name := fmt.Sprint("x", i)
		must(must(mutex.New(all.Keeper, name, nil)).TryLock(background))
		_, err := must(mutex.New(one, name, nil)).TryLock(background)
		var moved redis.Error
		switch {
		case errors.Is(err, lockkeeper.ErrUnavailable):
			t.Fatalf("%s: %v", name, err)
		case errors.As(err, &moved) && strings.HasPrefix(moved.Error(), "MOVED"):
			refused++
			check.That(t, strings.Contains(err.Error(), "use a redis.ClusterClient"), "%s: %v", name, err)
			_, err = admin.Inspect(background, one, mutex.Kind, name)
			check.That(t, err != nil && strings.Contains(err.Error(), "use a redis.ClusterClient"), "inspect %s: %v", name, err)
		}
	}
	check.That(t, refused > 5 && refused < 30, "%d of 30 names are at other nodes", refused)
	list := func(k *lockkeeper.Keeper, opts *admin.ListOptions) (n int) {
		for _, err := range admin.List(background, k, opts) {
			must(0, err)
			n++
		}
		return n
	}
	for range 2 {
		n := list(one, nil)
		check.That(t, n == 30-refused, "%d locks at a node that has %d", n, 30-refused)
	}
	check.That(t, strings.Count(log.String(), "only its locks are listed") == 1, "the log:\n%s", &log)
	calls := 0
	count := &admin.ListOptions{OneNode: func() { calls++ }}
	list(one, count)
	check.That(t, calls == 1, "OneNode was called %d times", calls)
	n := list(all.Keeper, count)
	check.That(t, n == 30 && calls == 1, "%d locks of the Cluster; OneNode was called %d times", n, calls)
}
