package redlock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/redlock"
)

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
		for i := range w.uptimes {
			w.uptimes[i].Store(1_000_000)
		}
		w.offsets = []time.Duration{0, 0, 10 * time.Minute}
		delay := func(o *redlock.Options) { o.MinUptime = time.Minute }
		p, q := w.process(), w.process()
		p.nets[1].Down()
		first := w.hold(p.lock(delay)) // on servers 1 and 3
		w.must(first.Release(w.Context()))
		time.Sleep(2 * ttl)
		w.servers[0].FlushAll() // server 1 restarts without its data
		w.uptimes[0].Store(1)
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
