package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
)

// uptimes makes the servers report these uptimes in seconds, also to scripts.
func (w *world) uptimes() []atomic.Int64 {
	up := make([]atomic.Int64, len(w.servers))
	for i, m := range w.servers {
		up[i].Store(1000000)
		m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
			if strings.HasPrefix(command, "EVAL") {
				m.SetTime(time.Now().Add(w.offsets[i]))
			}
			if command == "INFO" {
				c.WriteBulk(fmt.Sprintf("# Server\r\nuptime_in_seconds:%d\r\n", up[i].Load()))
				return true
			}
			return false
		})
	}
	return up
}

// TestServerWithLostRepliesJoinsAndStays: no cleanup of a request whose answer was lost releases what a later request with the same
// token was granted.
func TestServerWithLostRepliesJoinsAndStays(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p := w.process()
		l := p.lock()
		w.connect(l)
		third := p.nets[2]
		third.Break(lua.Redlock.Acquire.SHA, 2, faultnet.CutReply)
		third.Break(lua.Redlock.Release.SHA, 1000, faultnet.LoseRequest)
		third.Break(lua.Redlock.Fast.Release.SHA, 1000, faultnet.LoseRequest)
		lease := w.hold(l)
		time.Sleep(ttl)
		w.owned(lease, 3)
		third.Restore()
		for range 50 {
			time.Sleep(ttl / 10)
			w.owned(lease, 3)
		}
		w.must(lease.Release(w.Context()))
		w.clean()
	})
}

// TestSlowServerRejoins: a server that was slow or cut off has a part of the lease again after the next renewal, so that another
// server may fail.
func TestSlowServerRejoins(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p := w.process()
		l := p.lock()
		w.connect(l)
		p.nets[2].Delay(2 * limit)
		lease := w.hold(l)
		time.Sleep(3 * limit)
		w.owned(lease, 3)
		p.nets[2].Delay(0)
		p.nets[2].Blackhole() // for longer than the lease lasts there, and than answers are awaited
		time.Sleep(5 * ttl)
		p.nets[2].Restore()
		time.Sleep(3 * ttl)
		w.must(lease.Err())
		w.owned(lease, 3)
		p.nets[0].Down()
		time.Sleep(5 * ttl)
		w.must(lease.Err())
		p.nets[0].Restore()
		time.Sleep(5 * ttl)
		w.must(lease.Release(w.Context()))
		w.clean()
	})
}

// TestFailedAdoptLeavesLeaseUnchanged: if too many of the servers that have the lease do not count, it stays with its holder.
func TestFailedAdoptLeavesLeaseUnchanged(t *testing.T) {
	onServers(t, 3, func(w *world) {
		up := w.uptimes()
		hour := func(o *redlock.Options) { o.TTL, o.NoRenewal, o.MinUptime = time.Hour, true, time.Hour }
		first := w.hold(w.process().lock(hour))
		w.owned(first, 3)
		for i := range up[:2] { // they restart with their data
			up[i].Store(10)
		}
		if _, err := w.process().lock(hour).Adopt(w.Context(), first.Token()); err == nil {
			t.Error("a lease was adopted on one server of three that counts")
		}
		time.Sleep(time.Second)
		w.owned(first, 3)
		w.must(first.Err())
		w.must(first.Release(w.Context()))
	})
}

// TestFenceIgnoresServersBelowMinUptime: the fence of a server that turns out not to count does not decide the lease's fence.
func TestFenceIgnoresServersBelowMinUptime(t *testing.T) {
	onServers(t, 3, func(w *world) {
		up := w.uptimes()
		w.offsets = []time.Duration{0, 0, 10 * time.Minute}
		delay := func(o *redlock.Options) { o.MinUptime = time.Minute }
		p, q := w.process(), w.process()
		p.nets[1].Down()
		first := w.hold(p.lock(delay)) // on servers 1 and 3
		w.must(first.Release(w.Context()))
		time.Sleep(2 * ttl)
		w.servers[0].FlushAll() // server 1 restarts without its data
		up[0].Store(1)
		q.nets[2].Delay(5 * time.Millisecond) // the others answer before the third
		second := w.hold(q.lock(delay))
		if second.Fence() <= first.Fence() {
			w.Errorf("fence %d after %d", second.Fence(), first.Fence())
		}
		w.must(second.Release(w.Context()))
	})
}

// TestServerCountsAfterMinUptime: the uptime is in whole seconds, and may be one second too large.
func TestServerCountsAfterMinUptime(t *testing.T) {
	onServers(t, 3, func(w *world) {
		up := w.uptimes()
		l := w.process().lock(func(o *redlock.Options) { o.MinUptime = time.Minute })
		for _, seconds := range []int64{0, 59, 60, 61} {
			for i := range up {
				up[i].Store(seconds)
			}
			lease, err := l.TryLock(w.Context())
			if seconds > 60 {
				w.must(err)
				w.must(lease.Release(w.Context()))
			} else if err == nil {
				w.Errorf("servers that say they have run for %d s count", seconds)
			}
		}
	})
}

// TestFencesRiseAfterMetadataTTL: metadata is kept for longer where its last fence is ahead of the server's clock.
func TestFencesRiseAfterMetadataTTL(t *testing.T) {
	onServers(t, 3, func(w *world) {
		w.offsets = []time.Duration{10 * time.Minute, 0, 0}
		p := w.process(func(o *lockkeeper.Options) { o.MetadataTTL = time.Minute })
		first := w.hold(p.lock())
		w.must(first.Release(w.Context()))
		time.Sleep(2 * time.Minute)
		p.nets[0].Down()
		second := w.hold(p.lock())
		if second.Fence() <= first.Fence() {
			w.Errorf("fence %d after %d", second.Fence(), first.Fence())
		}
		w.must(second.Release(w.Context()))
		time.Sleep(15 * time.Minute)
		w.owners()
		for i, m := range w.servers {
			ofNames := func(k string) bool { return !strings.HasPrefix(k, "{lock:}:owner:") }
			if keys := m.Keys(); slices.ContainsFunc(keys, ofNames) {
				w.Errorf("server %d: after a quarter of an hour there are %q", i+1, keys)
			}
		}
	})
}

// TestServerHangingInRaiseFenceIsNamed: a server that has not answered the request to raise its fence has not agreed.
func TestServerHangingInRaiseFenceIsNamed(t *testing.T) {
	onServers(t, 3, func(w *world) {
		w.offsets = []time.Duration{0, time.Hour, 0}
		p := w.process()
		w.connect(p.lock())
		time.Sleep(10 * time.Minute) // so that the clocks have passed the last fence, and no server's clock is known any more
		p.nets[2].Down()
		p.nets[0].Break(lua.Redlock.RaiseFence.SHA, 100, faultnet.SwallowReply)
		ctx, cancel := context.WithTimeout(w.Context(), limit+time.Millisecond) // too early for a second attempt, which knows the clocks
		defer cancel()
		_, err := p.lock().Lock(ctx)
		w.is(err, lockkeeper.ErrUnavailable, context.DeadlineExceeded)
		w.wantReplies(err, "-?-")
		p.nets[0].Restore()
		p.nets[2].Restore()
	})
}

// TestKeyWithoutExpiryIsPolledRarely: a key without an expiry does not say when to retry.
func TestKeyWithoutExpiryIsPolledRarely(t *testing.T) {
	onServers(t, 3, func(w *world) {
		for _, m := range w.servers {
			w.must(m.Set("lock:x", "theirs"))
		}
		p := w.process()
		p.nets[0].ResetCount()
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		_, err := p.lock().Lock(ctx)
		w.is(err, lockkeeper.ErrNotAcquired, context.DeadlineExceeded)
		if n := p.nets[0].Scripts(); n > 100 {
			w.Errorf("%d scripts at one server in 5s, with a MaxRetryDelay of %v", n, redlock.DefaultMaxRetryDelay)
		}
	})
}

// TestCloseReleasesLeaseWithoutLoss: also if no more than a majority has the lease, and Err is called while its parts are being
// released.
func TestCloseReleasesLeaseWithoutLoss(t *testing.T) {
	onServers(t, 3, func(w *world) {
		var lease atomic.Pointer[lockkeeper.Lease]
		var lost atomic.Int32
		p := w.process(func(o *lockkeeper.Options) {
			o.Hooks.Released = func(lockkeeper.Event) {
				if l := lease.Load(); l != nil {
					_ = l.Err()
				}
			}
			o.Hooks.Lost = func(lockkeeper.Event) { lost.Add(1) }
		})
		w.occupy(2)
		lease.Store(w.hold(p.lock()))
		for i := range 8 { // so that Close has other leases to release
			m, err := mutex.New(p.keepers[1], fmt.Sprint("m", i), nil)
			w.must(err)
			_, err = m.Lock(w.Context())
			w.must(err)
		}
		w.must(p.keepers[1].Close())
		w.is(lease.Load().Err(), lockkeeper.ErrReleased)
		if n := lost.Load(); n > 0 {
			w.Errorf("%d Lost events", n)
		}
	})
}

func TestRejoiningServerGetsExtendedTTL(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p := w.process()
		lease := w.hold(p.lock())
		w.owned(lease, 3)
		w.must(lease.Extend(w.Context(), 10*ttl))
		for i := range 3 {
			w.servers[i].FlushAll()
			time.Sleep(8 * ttl)
			w.must(lease.Err())
		}
		w.owned(lease, 3)
		if d := time.Until(lease.Deadline()); d < 5*ttl {
			w.Errorf("the deadline is in %v, renewals ask for %v", d, 10*ttl)
		}
		w.must(lease.Release(w.Context()))
	})
}

func TestExtendReturnsCallersContextError(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p := w.process()
		lease := w.hold(p.lock())
		w.owned(lease, 3)
		p.nets[1].Blackhole()
		p.nets[2].Blackhole()
		ctx, cancel := context.WithTimeout(w.Context(), limit/3)
		defer cancel()
		err := lease.Extend(ctx, ttl)
		w.is(err, lockkeeper.ErrUnavailable, context.DeadlineExceeded)
		if errors.Is(err, context.Canceled) {
			w.Errorf("the caller's context was not cancelled: %v", err)
		}
		w.wantReplies(err, "?--")
		_ = lease.Release(ctx)
	})
}

// TestSevenServers: the lock works with any three of seven servers down.
func TestSevenServers(t *testing.T) {
	onServers(t, 7, func(w *world) {
		p, q := w.process(), w.process()
		l, m := p.lock(), q.lock()
		w.connect(l)
		w.connect(m)
		var last uint64
		for round := range 7 {
			away := []int{round, (round + 2) % 7, (round + 3) % 7}
			for _, i := range away {
				p.nets[i].Down()
				q.nets[i].Down()
			}
			lease := w.hold(l)
			if lease.Fence() <= last {
				w.Errorf("fence %d after %d", lease.Fence(), last)
			}
			last = lease.Fence()
			if _, err := m.TryLock(w.Context()); !errors.Is(err, lockkeeper.ErrNotAcquired) {
				w.Errorf("another try: %v", err)
			}
			time.Sleep(2 * ttl)
			w.must(lease.Err())
			w.must(lease.Release(w.Context()))
			for _, i := range away {
				p.nets[i].Restore()
				q.nets[i].Restore()
			}
			time.Sleep(5 * time.Second) // what was left there expires
			synctest.Wait()
		}
		w.clean()
	})
}
