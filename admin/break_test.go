package admin_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// primitive is a kind of lock, and what makes one of the name x.
type primitive struct {
	kind lockkeeper.Kind
	open func(k *lockkeeper.Keeper, ttl time.Duration) lock
}

type lock struct {
	lockkeeper.Locker
	adopt func(ctx context.Context, token string) (*lockkeeper.Lease, error)
}

// breakable are primitives of which one request at a time holds the lock, with a ttl, which decides when a keeper subscribes.
var breakable = []primitive{
	{mutex.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) lock {
		l := must(mutex.New(k, "x", &mutex.Options{TTL: ttl}))
		return lock{l, l.Adopt}
	}},
	{fair.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) lock {
		l := must(fair.New(k, "x", &fair.Options{TTL: ttl}))
		return lock{l, l.Adopt}
	}},
	{rwlock.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) lock {
		l := must(rwlock.New(k, "x", &rwlock.Options{TTL: ttl}))
		return lock{l, l.Adopt}
	}},
	{semaphore.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) lock {
		s := must(semaphore.New(k, "x", 2, &semaphore.Options{TTL: ttl}))
		return lock{must(s.LockerN(2)), s.Adopt}
	}},
	{ratelimit.Kind, func(k *lockkeeper.Keeper, ttl time.Duration) lock {
		r := must(ratelimit.NewConcurrent(k, "x", 1_000_000, time.Minute, 1, &ratelimit.ConcurrentOptions{TTL: ttl}))
		return lock{r.Locker(), r.Adopt}
	}},
}

// try acquires the lock, which must be free, for a minute.
func (p primitive) try(l *looker) *lockkeeper.Lease {
	return must(p.open(l.Keeper, time.Minute).TryLock(background))
}

// wait waits for the lock in the background, for a minute of lease.
func (p primitive) wait(l *looker) *waiting {
	l.Helper()
	return l.wait(p.kind, "x", p.open(l.Keeper, time.Minute).Lock)
}

// breaks breaks the lock.
func (p primitive) breaks(ops *looker, o *admin.BreakOptions) *admin.BreakResult {
	return must(admin.Break(background, ops.Keeper, p.kind, "x", o))
}

// onBreakable runs a test of each of them on each kind of deployment. The function another returns one more keeper.
func onBreakable(t *testing.T, test func(t *testing.T, p primitive, ops *looker, another func() *looker)) {
	servers(t, func(t *testing.T, rdb func() redis.UniversalClient) {
		for _, p := range breakable {
			t.Run(string(p.kind), func(t *testing.T) {
				ops := newLooker(t, rdb(), nil)
				t.Cleanup(func() { flush(ops) })
				test(t, p, ops, func() *looker { return newLooker(t, rdb(), nil) })
			})
		}
	})
}

func flush(l *looker) {
	if c, ok := l.rdb.(*redis.ClusterClient); ok {
		_ = c.ForEachMaster(background, func(ctx context.Context, n *redis.Client) error { return n.FlushAll(ctx).Err() })
		return
	}
	_ = l.rdb.FlushAll(background)
}

// onEmbedded returns a keeper of an embedded server.
func onEmbedded(t *testing.T, s *miniredis.Miniredis) *looker {
	t.Helper()
	return newLooker(t, redis.NewClient(&redis.Options{Addr: s.Addr()}), nil)
}

// behind returns a keeper of an embedded server, behind a network.
func behind(t *testing.T, s *miniredis.Miniredis, o *lockkeeper.Options) (*looker, *faultnet.Net) {
	t.Helper()
	n := faultnet.New(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return faultnet.TCP(ctx, network, s.Addr())
	})
	return newLooker(t, redis.NewClient(faultnet.Options(n, time.Second)), o), n
}

// release releases a lease, which must be held.
func release(t *testing.T, lease *lockkeeper.Lease) {
	t.Helper()
	if err := lease.Release(background); err != nil {
		t.Fatal(err)
	}
}

// isBroken checks that an error is one of a break.
func isBroken(t *testing.T, err, also error) {
	t.Helper()
	var b *lockkeeper.BrokenError
	check.That(t, errors.Is(err, also) && errors.As(err, &b) && *b == (lockkeeper.BrokenError{Reason: "stuck for hours", By: "ops 1"}),
		"the error is %v", err)
}

func withToken(token string) *admin.BreakOptions {
	return &admin.BreakOptions{Token: token, Reason: "stuck for hours", By: "ops 1"}
}

var all = &admin.BreakOptions{All: true, Reason: "stuck for hours", By: "ops 1"}

// TestBreakHolder checks that a holder whose keeper is subscribed is told at once, and the next waiter is granted the lock.
func TestBreakHolder(t *testing.T) {
	onBreakable(t, func(t *testing.T, p primitive, ops *looker, another func() *looker) {
		holder, next := another(), another()
		// The holder has waited, so its keeper is subscribed, also on a Cluster.
		first := p.try(ops)
		w := p.wait(holder)
		release(t, first)
		<-w.done
		lease := must(w.lease, w.err)
		ctx := lease.Context(background)
		waiter := p.wait(next)

		b := p.breaks(ops, withToken(lease.Token()))
		if len(b.Holders) != 1 || b.Holders[0].Token != lease.Token() || len(b.Waiters) != 0 || b.Notified != 1 {
			t.Errorf("%+v", b)
		}
		select {
		case <-lease.Done():
		case <-time.After(10 * time.Second): // less than a renewal takes
			t.Fatal("the holder was not told")
		}
		isBroken(t, lease.Err(), lockkeeper.ErrLost)
		<-ctx.Done()
		isBroken(t, context.Cause(ctx), lockkeeper.ErrLost)
		isBroken(t, lease.Release(background), lockkeeper.ErrLost)
		<-waiter.done
		if waiter.err != nil || waiter.lease.Fence() <= lease.Fence() {
			t.Fatalf("%v, fences %d and %d", waiter.err, waiter.lease.Fence(), lease.Fence())
		}
		again := p.breaks(ops, withToken(lease.Token()))
		check.That(t, len(again.Holders)+len(again.Waiters)+again.Notified == 0, "a token that is gone: %+v", again)
		release(t, waiter.lease)
	})
}

// TestBreakWaiterAndAll checks that a waiting call that is broken returns at once and leaves the queue, in which the others keep their
// order; and that a break of all ends everybody, and nobody is granted the lock meanwhile.
func TestBreakWaiterAndAll(t *testing.T) {
	onBreakable(t, func(t *testing.T, p primitive, ops *looker, another func() *looker) {
		holder := p.try(ops)
		var calls []*waiting
		for range 3 {
			calls = append(calls, p.wait(another()))
		}
		queue := ops.waiters(p.kind, "x")
		b := p.breaks(ops, withToken(queue[1].Token))
		if len(b.Waiters) != 1 || b.Waiters[0].Token != queue[1].Token || len(b.Holders) != 0 || b.Notified != 1 {
			t.Errorf("%+v", b)
		}
		<-calls[1].done
		left := ops.waiters(p.kind, "x")
		check.That(t, len(left) == 2 && left[0].Token == queue[0].Token && left[1].Token == queue[2].Token, "%+v", left)
		b = p.breaks(ops, all)
		if len(b.Holders) != 1 || len(b.Waiters) != 2 || b.Notified < 2 || b.Waiters[0].Token != queue[0].Token {
			t.Errorf("%+v", b)
		}
		for _, w := range calls {
			<-w.done
			isBroken(t, w.err, lockkeeper.ErrNotAcquired)
		}
		in := must(admin.Inspect(background, ops.Keeper, p.kind, "x"))
		check.That(t, len(in.Holders)+len(in.Waiters) == 0, "%+v", in)
		next := p.try(ops)
		check.That(t, next.Fence() > holder.Fence(), "fence %d after %d", next.Fence(), holder.Fence())
	})
}

// TestBreakWithoutMessage checks that, if the message of a break is lost, a holder and a waiter hear of it, and who has made it, by a
// renewal and a heartbeat; and by Extend, by a release, also of an adopted lease, whose release writes a tombstone, and by an adoption,
// before and after that.
func TestBreakWithoutMessage(t *testing.T) {
	t.Parallel()
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	for _, p := range breakable {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Cleanup(s.FlushAll)
			cut, network := behind(t, s, &lockkeeper.Options{HeartbeatInterval: 50 * time.Millisecond})
			ops := onEmbedded(t, s)
			short := p.open(cut.Keeper, time.Second)
			lease := must(short.TryLock(background))
			w := cut.wait(p.kind, "x", short.Lock)
			network.LoseMessages()
			p.breaks(ops, all)
			<-lease.Done()
			<-w.done
			isBroken(t, lease.Err(), lockkeeper.ErrLost)
			isBroken(t, w.err, lockkeeper.ErrNotAcquired)

			lease = p.try(cut)
			p.breaks(ops, all)
			isBroken(t, lease.Extend(background, time.Minute), lockkeeper.ErrLost)

			lease = p.try(cut)
			p.breaks(ops, all)
			isBroken(t, lease.Release(background), lockkeeper.ErrLost)
			release(t, lease) // again, which is no error

			adopt := p.open(cut.Keeper, time.Minute).adopt
			first := p.try(ops)
			lease = must(adopt(background, first.Token()))
			p.breaks(ops, all)
			_, err := adopt(background, first.Token())
			isBroken(t, err, lockkeeper.ErrLost)
			time.Sleep(2 * time.Millisecond) // the tombstone of the release lasts longer
			isBroken(t, lease.Release(background), lockkeeper.ErrLost)
			_, err = adopt(background, first.Token())
			isBroken(t, err, lockkeeper.ErrLost)
		})
	}
}

// TestBreakHolderThatNeverWaited checks that a keeper that was granted a lease, with a note or without one, is told before it has renewed
// that, and that both keepers and the hook say so.
func TestBreakHolderThatNeverWaited(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	var log quiet.Buffer
	lost := make(chan error, 1)
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer rdb.Close()
	k := must(lockkeeper.New(rdb, &lockkeeper.Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Hooks:  lockkeeper.Hooks{Lost: func(e lockkeeper.Event) { lost <- e.Err }},
	}))
	defer k.Close()
	ops := onEmbedded(t, s)
	m := must(mutex.New(k, "x", &mutex.Options{TTL: time.Hour}))
	for _, note := range []string{"", "job 7"} {
		lease := must(m.TryLock(lockkeeper.WithNote(background, note)))
		ops.eventually(func() bool { return len(s.PubSubChannels("*")) == 1 }) // it subscribes when it is granted its first lease
		b := must(admin.Break(background, ops.Keeper, mutex.Kind, "x", withToken(lease.Token())))
		check.That(t, b.Notified == 1, "note %q: %+v", note, b)
		select {
		case err := <-lost:
			isBroken(t, err, lockkeeper.ErrLost)
		case <-time.After(10 * time.Second): // less than a renewal takes
			t.Fatalf("note %q: the holder was told, but its lease has not ended", note)
		}
		ops.eventually(func() bool {
			text := log.Take()
			return strings.Contains(text, `a lease of this process was broken" kind=mutex name=x`) &&
				strings.Contains(text, `by="ops 1" reason="stuck for hours"`)
		})
	}
}

// TestBreakRedlock checks that a redlock is lost when it is broken on a majority of its servers, and not on one alone.
func TestBreakRedlock(t *testing.T) {
	t.Parallel()
	var ks, ops []*lockkeeper.Keeper
	for range 3 {
		s := miniredis.RunT(t)
		s.ClockTTL(true)
		for _, list := range []*[]*lockkeeper.Keeper{&ks, &ops} {
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
			k := must(lockkeeper.New(rdb, nil))
			t.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
			*list = append(*list, k)
		}
	}
	lock := must(redlock.New(ks, "x", &redlock.Options{TTL: 3 * time.Second}))
	lease := must(lock.Lock(background))
	// A majority has granted it; without the third one's reply, a break at one server could leave none.
	onAll := func(lease *lockkeeper.Lease) {
		for _, k := range ops {
			for len(must(admin.Inspect(background, k, redlock.Kind, "x")).Holders) == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		if err := lease.Extend(background, 3*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	onAll(lease)
	must(admin.Break(background, ops[0], redlock.Kind, "x", withToken(lease.Token())))
	if err := lease.Extend(background, 4*time.Second); err != nil {
		t.Errorf("broken on one of three servers: %v", err)
	}
	must(admin.Break(background, ops[1], redlock.Kind, "x", withToken(lease.Token())))
	b := must(admin.Break(background, ops[2], redlock.Kind, "x", withToken(lease.Token())))
	check.That(t, len(b.Holders) == 1, "%+v", b)
	<-lease.Done()
	isBroken(t, lease.Err(), lockkeeper.ErrLost)
	isBroken(t, lease.Release(background), lockkeeper.ErrLost)

	theirs := must(must(redlock.New(ops, "x", nil)).TryLock(background))
	onAll(theirs)
	again := must(lock.Adopt(background, theirs.Token()))
	for _, k := range ops {
		must(admin.Break(background, k, redlock.Kind, "x", withToken(theirs.Token())))
	}
	_, err := lock.Adopt(background, theirs.Token())
	isBroken(t, err, lockkeeper.ErrLost)
	// Its holder has lost a majority at the second break, and may have released the third part before that was broken.
	var parts *redlock.Error
	if errors.As(err, &parts) {
		told := 0
		for _, part := range parts.Servers {
			var broken *lockkeeper.BrokenError
			if errors.As(part.Err, &broken) && errors.Is(part.Err, lockkeeper.ErrLost) {
				told++
			}
		}
		check.That(t, told >= 2, "%d of 3 servers say who has broken the lease: %v", told, err)
	}
	isBroken(t, again.Release(background), lockkeeper.ErrLost)
	release(t, must(must(redlock.New(ks, "x", nil)).TryLock(background)))
}

// TestBreakOnce checks that a job whose lease is broken is not recorded as done.
func TestBreakOnce(t *testing.T) {
	s := miniredis.RunT(t)
	s.ClockTTL(true)
	ops, l := onEmbedded(t, s), onEmbedded(t, s)
	job := must(once.New(l.Keeper, "x", time.Hour, &once.Options{TTL: time.Second}))
	_, err := job.Do(background, func(ctx context.Context, _ uint64) error {
		b := must(admin.Break(background, ops.Keeper, once.Kind, "x", all))
		check.That(t, len(b.Holders) == 1, "%+v", b)
		<-ctx.Done()
		return nil
	})
	check.That(t, errors.Is(err, lockkeeper.ErrLost), "%v, want ErrLost", err)
	isBroken(t, err, lockkeeper.ErrLost)
	// It learns of the break only by its record, which is refused.
	cut, network := behind(t, s, nil)
	network.LoseMessages()
	_, err = must(once.New(cut.Keeper, "x", time.Hour, nil)).Do(background, func(context.Context, uint64) error {
		must(admin.Break(background, ops.Keeper, once.Kind, "x", all))
		return nil
	})
	isBroken(t, err, lockkeeper.ErrLost)
	r := must(job.Status(background))
	check.That(t, r.Outcome == once.None, "after the break: %+v", r)
}

// TestBreakWhoseAnswerIsLostIsCounted: the command is sent again, and finds nothing any more.
func TestBreakWhoseAnswerIsLostIsCounted(t *testing.T) {
	s := miniredis.RunT(t)
	for _, p := range breakable {
		t.Run(string(p.kind), func(t *testing.T) {
			t.Cleanup(s.FlushAll)
			ops, network := behind(t, s, nil)
			p.breaks(ops, withToken(p.try(onEmbedded(t, s)).Token())) // so that the server has the script
			lease := p.try(onEmbedded(t, s))
			w := p.wait(onEmbedded(t, s))
			for _, what := range []string{"waiter", "holder"} {
				network.Break("broken", 1, faultnet.CutReply)
				token := lease.Token()
				if what == "waiter" {
					token = must(admin.Inspect(background, ops.Keeper, p.kind, "x")).Waiters[0].Token
				}
				b := p.breaks(ops, withToken(token))
				check.That(t, len(b.Holders)+len(b.Waiters) == 1, "the %s: %+v", what, b)
			}
			<-w.done
			isBroken(t, w.err, lockkeeper.ErrNotAcquired)
			<-lease.Done()
			isBroken(t, lease.Err(), lockkeeper.ErrLost)
		})
	}
}

// TestBreakForeign checks that the key of another library is deleted, if it is a lock.
func TestBreakForeign(t *testing.T) {
	s := miniredis.RunT(t)
	ops := onEmbedded(t, s)
	_ = s.Set("lock:x", "their token")
	b := must(admin.Break(background, ops.Keeper, mutex.Kind, "x", all))
	check.That(t, len(b.Holders) == 1 && b.Notified == 0 && !s.Exists("lock:x"), "%+v", b)
	s.Del("lock:x")
	s.HSet("lock:x", "a", "b")
	if _, err := admin.Break(background, ops.Keeper, mutex.Kind, "x", all); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Error(err)
	}
}

// Permits that return by the clock are not held, so a break asks the server for none of them, however many there are.
func TestBreakSkipsPermitsThatReturnByTheClock(t *testing.T) {
	m := miniredis.RunT(t)
	k := onEmbedded(t, m).Keeper
	r := must(ratelimit.New(k, "x", 100, time.Minute, nil))
	for range 50 {
		must(r.Allow(background))
	}
	if i := must(admin.Inspect(background, k, ratelimit.Kind, "x")); !i.Limits.ByClock() || len(i.Holders) != 50 || i.Holders[0].ExpiresIn > time.Minute+time.Second {
		t.Errorf("%+v %+v", i.Limits, i.Holders[0])
	}
	before := m.CommandCount()
	b := must(admin.Break(background, k, ratelimit.Kind, "x", &admin.BreakOptions{All: true}))
	if n := m.CommandCount() - before; len(b.Holders) != 0 || must(r.Available(background)) != 50 || n > 100 { // those of the script that lists them included
		t.Errorf("%d holders were broken with %d commands", len(b.Holders), n)
	}
}

func TestBreakInvalid(t *testing.T) {
	l := newLooker(t, noServer(t), nil)
	for what, o := range map[string]admin.BreakOptions{
		"neither Token nor All": {}, `Token "t"`: {Token: "t", All: true},
		"Reason has 257 bytes": {All: true, Reason: strings.Repeat("x", 257)}, `Reason "a\nb"`: {All: true, Reason: "a\nb"},
		"By has 257 bytes": {All: true, By: strings.Repeat("x", 257)}, `By "\xff"`: {All: true, By: "\xff"},
	} {
		if b, err := admin.Break(background, l.Keeper, mutex.Kind, "x", &o); b != nil || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, %v", what, b, err)
		}
	}
	check.Is(t, check.ErrorOf(admin.Break(background, l.Keeper, mutex.Kind, "x", nil)), lockkeeper.ErrInvalid, "without options")
	check.Is(t, check.ErrorOf(admin.Break(background, l.Keeper, "lock", "x", all)), lockkeeper.ErrInvalid, "the error")
	for want, e := range map[string]lockkeeper.BrokenError{`broken by "a"`: {By: "a"}, `broken by "a": b`: {By: "a", Reason: "b"}} {
		got := fmt.Sprint(&e)
		check.That(t, got == want, "%s, want %s", got, want)
	}
}
