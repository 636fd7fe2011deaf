package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
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
			w.Errorf("%d scripts at one server in 5s, with a MaxRetryDelay of 250ms", n)
		}
	})
}
