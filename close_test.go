package lockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// outage is a keeper whose server stops to answer, while the client waits for longer than Close does.
type outage struct {
	*lockkeeper.Keeper
	*bubble
	net *faultnet.Net
}

func (o *outage) rwlock(options *rwlock.Options) *rwlock.Lock {
	o.Helper()
	return must.Get(rwlock.New(o.Keeper, "x", options))(o)
}

// fail lets calls wait for a server that does not answer.
func (o *outage) fail() {
	synctest.Wait()
	o.net.Blackhole()
}

// TestCloseEndsWaits checks that calls which wait for a server that does not answer end with the keeper, whatever they wait for, also
// if their contexts never end.
func TestCloseEndsWaits(t *testing.T) {
	cases := map[string]struct {
		within  time.Duration // of the call of Close
		options lockkeeper.Options
		begin   func(o *outage) (call func(ctx context.Context) error) // call is made while the server does not answer
	}{
		"a write lease after a retained read lease": {begin: func(o *outage) func(ctx context.Context) error {
			l := o.rwlock(&rwlock.Options{Retain: true})
			for range 3 { // the first one subscribes, the second one retains
				h := must.Get(l.RLock(background))(o)
				o.must(h.Release(background))
				synctest.Wait()
			}
			o.fail()
			return func(ctx context.Context) error { _, err := l.TryLock(ctx); return err }
		}},
		"an upgrade whose first request is being withdrawn": {begin: func(o *outage) func(ctx context.Context) error {
			l := o.rwlock(nil)
			h := must.Get(l.RLock(background))(o)
			o.fail()
			short, cancel := context.WithTimeout(background, 10*time.Millisecond)
			defer cancel()
			_, _ = l.Upgrade(short, h) // its outcome is unknown
			return func(ctx context.Context) error { _, err := l.Upgrade(ctx, h); return err }
		}},
		"the subscription of a waiter": {options: lockkeeper.Options{HeartbeatInterval: time.Minute}, begin: func(o *outage) func(ctx context.Context) error {
			must.Get(o.process().mutex("x").TryLock(background))(o)
			m := must.Get(mutex.New(o.Keeper, "x", nil))(o)
			y := must.Get(mutex.New(o.Keeper, "y", nil))(o)
			must.Get(y.TryLock(background))(o) // Close has something to wait for
			synctest.Wait()
			o.net.CutSubscriptions()
			o.net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.SwallowReply)
			o.net.Break("lock:y", 1_000_000, faultnet.SwallowReply)
			return func(ctx context.Context) error { _, err := m.Lock(ctx); return err }
		}},
		"the state of a lock": {begin: func(o *outage) func(ctx context.Context) error {
			must.Get(o.process().mutex("x").TryLock(background))(o)
			o.net.Break("\r\nget\r\n", 1_000_000, faultnet.SwallowReply) // of the owner's label
			return func(ctx context.Context) error {
				_, err := admin.Inspect(ctx, o.Keeper, mutex.Kind, "x")
				return err
			}
		}},
		"the acknowledgement of replicas": {options: lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: time.Second}}, begin: func(o *outage) func(ctx context.Context) error {
			m := must.Get(mutex.New(o.Keeper, "x", nil))(o)
			o.net.Break("\r\nwait\r\n", 1_000_000, faultnet.SwallowReply)
			return func(ctx context.Context) error { _, err := m.TryLock(ctx); return err }
		}},
		"an adoption by a majority": {begin: func(o *outage) func(ctx context.Context) error {
			held := must.Get(o.process().mutex("x").TryLock(background))(o)
			l := must.Get(redlock.New([]*lockkeeper.Keeper{o.Keeper}, "x", nil))(o)
			o.fail()
			return func(ctx context.Context) error { _, err := l.Adopt(ctx, held.Token()); return err }
		}},
		"a release": {within: 3 * time.Second, begin: func(o *outage) func(ctx context.Context) error {
			m := must.Get(mutex.New(o.Keeper, "x", nil))(o)
			h := must.Get(m.TryLock(background))(o)
			o.fail()
			return h.Release
		}},
		"a release at a majority": {within: 3 * time.Second, begin: func(o *outage) func(ctx context.Context) error {
			l := must.Get(redlock.New([]*lockkeeper.Keeper{o.Keeper}, "x", nil))(o)
			h := must.Get(l.TryLock(background))(o)
			o.fail()
			return h.Release
		}},
	}
	for name, c := range cases {
		for _, inline := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, inline %v", name, inline), func(t *testing.T) {
				inBubble(t, func(b *bubble) {
					net := b.Network()
					rdb := redis.NewClient(net.Options(time.Minute))
					c.options.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
					k := must.Get(lockkeeper.New(rdb, &c.options))(b)
					o := &outage{k, b, net}
					if m := must.Get(mutex.New(k, "x", nil))(b); inline {
						for range 20 {
							_, _, err := m.Holder(background)
							b.must(err)
							synctest.Wait()
						}
					}
					call := c.begin(o)
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
					go k.Close()
					var err error
					select {
					case err = <-ended:
					case <-time.After(time.Minute):
						err = errors.New("it has not ended")
					}
					if d := time.Since(began); d > c.within || err == nil {
						t.Errorf("it ended after %v: %v", d, err)
					}
					_ = k.Close()
					_ = rdb.Close()
				})
			})
		}
	}
}

// TestCloseDuringUpgrade checks that the error does not say that the caller's context has ended.
func TestCloseDuringUpgrade(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, q := b.process(), b.process()
		other := must.Get(must.Get(rwlock.New(q.Keeper, "x", nil))(b).RLock(background))(b)
		l := must.Get(rwlock.New(p.Keeper, "x", nil))(b)
		read := must.Get(l.RLock(background))(b)
		ended := make(chan error)
		go func() {
			_, err := l.Upgrade(background, read)
			ended <- err
		}()
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
		held := must.Get(must.Get(mutex.New(q.Keeper, "x", nil))(b).Lock(background))(b)
		l := must.Get(mutex.New(p.Keeper, "x", nil))(b)
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
		if err := <-ended; !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		b.must(p.Close())
		for _, e := range p.events {
			if e.hook == "Released" || e.hook == "Lost" {
				b.Errorf("%s of %q, which no caller got", e.hook, e.Token)
			}
		}
		if len(p.events) < 2 {
			b.Error("the call is not reported:", p.events)
		}
	})
}
