package lockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/processes"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// unanswered lets calls wait for a server that does not answer.
func unanswered(p *processes.Process) {
	synctest.Wait()
	p.Net.Blackhole()
}

// TestCloseEndsWaits checks that calls which wait for a server that does not answer end with the keeper, whatever they wait for, also
// if their contexts never end.
func TestCloseEndsWaits(t *testing.T) {
	type call = func(ctx context.Context) error // that is made while the server does not answer
	for name, c := range map[string]struct {
		within  time.Duration // of the call of Close
		options lockkeeper.Options
		begin   func(b *processes.Bubble, p *processes.Process) call
	}{
		"a write lease while a read lease lingers": {begin: func(b *processes.Bubble, p *processes.Process) call {
			l := p.RWLock(&rwlock.Options{Linger: 10 * time.Second})
			b.Must(must.Get(l.RLock(background))(b).Release(background))
			unanswered(p)
			return func(ctx context.Context) error { _, err := l.TryLock(ctx); return err }
		}},
		"an upgrade whose first request is being withdrawn": {begin: func(b *processes.Bubble, p *processes.Process) call {
			l := p.RWLock(nil)
			h := must.Get(l.RLock(background))(b)
			unanswered(p)
			short, cancel := context.WithTimeout(background, 10*time.Millisecond)
			defer cancel()
			_ = l.Upgrade(short, h) // its outcome is unknown
			return func(ctx context.Context) error { return l.Upgrade(ctx, h) }
		}},
		"the subscription of a waiter": {options: lockkeeper.Options{HeartbeatInterval: time.Minute}, begin: func(b *processes.Bubble, p *processes.Process) call {
			b.Process().Hold("x")
			p.Hold("y") // Close has something to wait for
			synctest.Wait()
			p.Net.CutSubscriptions()
			p.Net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.SwallowReply)
			p.Net.Break("lock:y", 1_000_000, faultnet.SwallowReply)
			return func(ctx context.Context) error { _, err := p.Mutex("x").Lock(ctx); return err }
		}},
		"the state of a lock": {begin: func(b *processes.Bubble, p *processes.Process) call {
			b.Process().Hold("x")
			p.Net.Break("\r\nget\r\n", 1_000_000, faultnet.SwallowReply) // of the owner's label
			return func(ctx context.Context) error { _, err := admin.Inspect(ctx, p.Keeper, mutex.Kind, "x"); return err }
		}},
		"the acknowledgement of replicas": {
			options: lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: time.Second}},
			begin: func(_ *processes.Bubble, p *processes.Process) call {
				p.Net.Break("\r\nwait\r\n", 1_000_000, faultnet.SwallowReply)
				return func(ctx context.Context) error { _, err := p.Mutex("x").TryLock(ctx); return err }
			},
		},
		"an adoption by a majority": {begin: func(b *processes.Bubble, p *processes.Process) call {
			held := b.Process().Hold("x")
			l := must.Get(redlock.New([]*lockkeeper.Keeper{p.Keeper}, "x", nil))(b)
			unanswered(p)
			return func(ctx context.Context) error { _, err := l.Adopt(ctx, held.Token()); return err }
		}},
		"a release": {within: 3 * time.Second, begin: func(b *processes.Bubble, p *processes.Process) call {
			h := must.Get(p.RWLock(nil).TryLock(background))(b)
			unanswered(p)
			return h.Release
		}},
		"a release at a majority": {within: 3 * time.Second, begin: func(b *processes.Bubble, p *processes.Process) call {
			l := must.Get(redlock.New([]*lockkeeper.Keeper{p.Keeper}, "x", nil))(b)
			h := must.Get(l.TryLock(background))(b)
			unanswered(p)
			return h.Release
		}},
	} {
		for _, inline := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, inline %v", name, inline), func(t *testing.T) {
				processes.Run(t, func(b *processes.Bubble) {
					p := b.ProcessWith(time.Minute, c.options)
					if inline {
						p.Call(20)
					}
					call := c.begin(b, p)
					ctx, cancel := context.WithCancel(background)
					defer cancel()
					ended := make(chan error, 1)
					go func() { ended <- call(ctx) }()
					synctest.Wait()
					time.Sleep(10 * time.Millisecond)
					select {
					case err := <-ended:
						t.Fatalf("it did not wait: %v", err)
					default:
					}
					began := time.Now()
					go p.Close()
					var err error
					select {
					case err = <-ended:
					case <-time.After(time.Minute):
						err = errors.New("it has not ended")
					}
					d := time.Since(began)
					check.That(t, d <= c.within && err != nil, "it ended after %v: %v", d, err)
					_ = p.Close() // while the server does not answer
				})
			})
		}
	}
}

// TestCloseDuringUpgrade checks that the error does not say that the caller's context has ended.
func TestCloseDuringUpgrade(t *testing.T) {
	processes.Run(t, func(b *processes.Bubble) {
		p, q := b.Process(), b.Process()
		other, l := must.Get(q.RWLock(nil).RLock(background))(b), p.RWLock(nil)
		read := must.Get(l.RLock(background))(b)
		ended := make(chan error)
		go func() { ended <- l.Upgrade(background, read) }()
		synctest.Wait()
		b.Must(p.Close())
		if err := <-ended; !errors.Is(err, lockkeeper.ErrClosed) || errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		b.Must(other.Release(background))
	})
}

// endsWithGrant is the context of a caller who learns of its end, and is granted the lease before it has acted on that.
type endsWithGrant struct {
	context.Context
	grant func()
}

func (c *endsWithGrant) Err() error {
	err := c.Context.Err()
	if err != nil && c.grant != nil {
		grant := c.grant
		c.grant = nil
		grant()
	}
	return err
}

// TestCloseReleasesLeaseThatNobodyGets checks that the hooks are not told of a lease which Close releases while the call that it was granted
// to ends with its context.
func TestCloseReleasesLeaseThatNobodyGets(t *testing.T) {
	processes.Run(t, func(b *processes.Bubble) {
		p, q := b.Process(), b.Process()
		held, l := q.Hold("x"), p.Mutex("x")
		ctx, cancel := context.WithCancel(background)
		c := &endsWithGrant{ctx, nil}
		ended := make(chan error)
		go func() {
			_, err := l.Lock(c)
			ended <- err
		}()
		synctest.Wait()
		c.grant = func() {
			b.Must(held.Release(background))
			synctest.Wait()
			go p.Close()
			synctest.Wait()
		}
		cancel()
		check.Is(b, <-ended, context.Canceled, "the error")
		b.Must(p.Close())
		events := p.Events()
		for _, e := range events {
			check.That(b, e.Hook != "Released" && e.Hook != "Lost", "%s of %q, which no caller got", e.Hook, e.Token)
		}
		if len(events) < 2 {
			b.Error("the call is not reported:", events)
		}
	})
}

// TestCloseRepeatsReleaseThatItEnds checks that a release which is under way reaches the server although Close ends its call, also if pauses
// between attempts are longer than Close waits.
func TestCloseRepeatsReleaseThatItEnds(t *testing.T) {
	processes.Run(t, func(b *processes.Bubble) {
		p := b.ProcessWith(time.Second, lockkeeper.Options{Retry: lockkeeper.RetryPolicy{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
		lease := must.Get(p.Mutex("x").Lock(background))(b)
		unanswered(p)
		released, closed := make(chan error, 1), make(chan error, 1)
		go func() { released <- lease.Release(background) }()
		synctest.Wait()
		go func() { closed <- p.Close() }()
		time.Sleep(100 * time.Millisecond)
		p.Net.Restore()
		b.Must(<-closed)
		b.Must(<-released)
		check.That(b, !b.Mini.Exists("lock:x"), "the key is there after Close")
	})
}

// TestClosedKeeperIsCollected: a program whose hooks know its leases becomes unreachable with its keeper. It is in real time,
// because the garbage collector does not know of a bubble.
func TestClosedKeeperIsCollected(t *testing.T) {
	t.Parallel()
	type program struct {
		keeper *lockkeeper.Keeper
		leases []*lockkeeper.Lease
		lost   int
	}
	run := func() weak.Pointer[program] {
		rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		p := &program{}
		p.keeper = must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.Hooks{Lost: func(lockkeeper.Event) { p.lost++ }}}))(t)
		one := must.Get(mutex.New(p.keeper, "one server", nil))(t)
		majority := must.Get(redlock.New([]*lockkeeper.Keeper{p.keeper}, "a majority", nil))(t)
		for _, l := range []lockkeeper.Locker{one, majority} {
			lease := must.Get(l.TryLock(t.Context()))(t)
			p.leases = append(p.leases, lease)
		}
		must.OK(t, p.keeper.Close())
		return weak.Make(p)
	}
	w := run()
	for end := time.Now().Add(20 * time.Second); w.Value() != nil; time.Sleep(20 * time.Millisecond) {
		if runtime.GC(); time.Now().After(end) {
			t.Fatal("it is still reachable")
		}
	}
}
