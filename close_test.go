package lockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// rwlock returns the read-write lock x.
func (p *process) rwlock(options *rwlock.Options) *rwlock.Lock {
	p.b.Helper()
	return must.Get(rwlock.New(p.Keeper, "x", options))(p.b)
}

// unanswered lets calls wait for a server that does not answer.
func (p *process) unanswered() {
	synctest.Wait()
	p.net.Blackhole()
}

// TestCloseEndsWaits checks that calls which wait for a server that does not answer end with the keeper, whatever they wait for, also
// if their contexts never end.
func TestCloseEndsWaits(t *testing.T) {
	type call = func(ctx context.Context) error // that is made while the server does not answer
	for name, c := range map[string]struct {
		within  time.Duration // of the call of Close
		options lockkeeper.Options
		begin   func(b *bubble, p *process) call
	}{
		"a write lease while a read lease lingers": {begin: func(b *bubble, p *process) call {
			l := p.rwlock(&rwlock.Options{Linger: 10 * time.Second})
			b.must(must.Get(l.RLock(background))(b).Release(background))
			p.unanswered()
			return func(ctx context.Context) error { _, err := l.TryLock(ctx); return err }
		}},
		"an upgrade whose first request is being withdrawn": {begin: func(b *bubble, p *process) call {
			l := p.rwlock(nil)
			h := must.Get(l.RLock(background))(b)
			p.unanswered()
			short, cancel := context.WithTimeout(background, 10*time.Millisecond)
			defer cancel()
			_ = l.Upgrade(short, h) // its outcome is unknown
			return func(ctx context.Context) error { return l.Upgrade(ctx, h) }
		}},
		"the subscription of a waiter": {options: lockkeeper.Options{HeartbeatInterval: time.Minute}, begin: func(b *bubble, p *process) call {
			b.process().hold("x")
			p.hold("y") // Close has something to wait for
			synctest.Wait()
			p.net.CutSubscriptions()
			p.net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.SwallowReply)
			p.net.Break("lock:y", 1_000_000, faultnet.SwallowReply)
			return func(ctx context.Context) error { _, err := p.mutex("x").Lock(ctx); return err }
		}},
		"the state of a lock": {begin: func(b *bubble, p *process) call {
			b.process().hold("x")
			p.net.Break("\r\nget\r\n", 1_000_000, faultnet.SwallowReply) // of the owner's label
			return func(ctx context.Context) error { _, err := admin.Inspect(ctx, p.Keeper, mutex.Kind, "x"); return err }
		}},
		"the acknowledgement of replicas": {
			options: lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: time.Second}},
			begin: func(_ *bubble, p *process) call {
				p.net.Break("\r\nwait\r\n", 1_000_000, faultnet.SwallowReply)
				return func(ctx context.Context) error { _, err := p.mutex("x").TryLock(ctx); return err }
			},
		},
		"an adoption by a majority": {begin: func(b *bubble, p *process) call {
			held := b.process().hold("x")
			l := must.Get(redlock.New([]*lockkeeper.Keeper{p.Keeper}, "x", nil))(b)
			p.unanswered()
			return func(ctx context.Context) error { _, err := l.Adopt(ctx, held.Token()); return err }
		}},
		"a release": {within: 3 * time.Second, begin: func(b *bubble, p *process) call {
			h := must.Get(p.rwlock(nil).TryLock(background))(b)
			p.unanswered()
			return h.Release
		}},
		"a release at a majority": {within: 3 * time.Second, begin: func(b *bubble, p *process) call {
			l := must.Get(redlock.New([]*lockkeeper.Keeper{p.Keeper}, "x", nil))(b)
			h := must.Get(l.TryLock(background))(b)
			p.unanswered()
			return h.Release
		}},
	} {
		for _, inline := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, inline %v", name, inline), func(t *testing.T) {
				inBubble(t, func(b *bubble) {
					p := b.processWith(time.Minute, c.options)
					if inline {
						p.call(20)
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
	inBubble(t, func(b *bubble) {
		p, q := b.process(), b.process()
		other, l := must.Get(q.rwlock(nil).RLock(background))(b), p.rwlock(nil)
		read := must.Get(l.RLock(background))(b)
		ended := make(chan error)
		go func() { ended <- l.Upgrade(background, read) }()
		synctest.Wait()
		b.must(p.Close())
		if err := <-ended; !errors.Is(err, lockkeeper.ErrClosed) || errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		b.must(other.Release(background))
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
	inBubble(t, func(b *bubble) {
		p, q := b.process(), b.process()
		held, l := q.hold("x"), p.mutex("x")
		ctx, cancel := context.WithCancel(background)
		c := &endsWithGrant{ctx, nil}
		ended := make(chan error)
		go func() {
			_, err := l.Lock(c)
			ended <- err
		}()
		synctest.Wait()
		c.grant = func() {
			b.must(held.Release(background))
			synctest.Wait()
			go p.Close()
			synctest.Wait()
		}
		cancel()
		check.Is(b, <-ended, context.Canceled, "the error")
		b.must(p.Close())
		for _, e := range p.events {
			check.That(b, e.hook != "Released" && e.hook != "Lost", "%s of %q, which no caller got", e.hook, e.Token)
		}
		if len(p.events) < 2 {
			b.Error("the call is not reported:", p.events)
		}
	})
}

// TestCloseRepeatsReleaseThatItEnds checks that a release which is under way reaches the server although Close ends its call, also if pauses
// between attempts are longer than Close waits.
func TestCloseRepeatsReleaseThatItEnds(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p := b.processWith(time.Second, lockkeeper.Options{Retry: lockkeeper.RetryPolicy{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
		lease := must.Get(p.mutex("x").Lock(background))(b)
		p.unanswered()
		released, closed := make(chan error, 1), make(chan error, 1)
		go func() { released <- lease.Release(background) }()
		synctest.Wait()
		go func() { closed <- p.Close() }()
		time.Sleep(100 * time.Millisecond)
		p.net.Restore()
		b.must(<-closed)
		b.must(<-released)
		check.That(b, !b.Mini.Exists("lock:x"), "the key is there after Close")
	})
}
