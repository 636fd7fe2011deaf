package redlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/redlock"
)

// TestFirstKeepersHooksAreCalled: and no hooks for events at single servers.
func TestFirstKeepersHooksAreCalled(t *testing.T) {
	for what, end := range map[string]func(p *process, l *lockkeeper.Lease) error{
		"Release": func(_ *process, l *lockkeeper.Lease) error { return l.Release(context.Background()) },
		"Close":   func(p *process, _ *lockkeeper.Lease) error { return p.keepers[2].Close() },
	} {
		t.Run(what, func(t *testing.T) {
			onServers(t, 3, func(w *world) {
				var recorders []*lockkeepertest.Recorder
				p := w.process(func(o *lockkeeper.Options) {
					r := &lockkeepertest.Recorder{}
					recorders = append(recorders, r)
					o.Hooks = r.Hooks()
				})
				lease := w.hold(p.lock())
				time.Sleep(ttl / 2)
				w.must(end(p, lease))
				synctest.Wait()
				var reported []string
				for _, e := range recorders[0].Events() {
					reported = append(reported, e.Hook)
					ofLease := e.Hook == "AcquireStart" || e.Token == lease.Token() && e.Fence == lease.Fence()
					check.That(w, e.Kind == "redlock" && e.Name == "x" && e.Err == nil && ofLease, "%s: %+v", e.Hook, e.Event)
				}
				others := len(recorders[1].Events()) + len(recorders[2].Events())
				if want := []string{"AcquireStart", "AcquireDone", "Renewed", "Released"}; !slices.Equal(reported, want) || others != 0 {
					w.Errorf("events %v, want %v at the first keeper, and %d at the others", reported, want, others)
				}
			})
		})
	}
}

// TestDefaultServerTimeout: a tenth of TTL, but at most half a second. Without a majority TryLock makes three attempts.
func TestDefaultServerTimeout(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{time.Second: 100 * time.Millisecond, 30 * time.Second: 500 * time.Millisecond} {
		onServers(t, 3, func(w *world) {
			p := w.process()
			l := p.lock(func(o *redlock.Options) { o.TTL, o.ServerTimeout = ttl, 0 })
			w.connect(l)
			p.nets[0].Blackhole()
			p.nets[1].Blackhole()
			start := time.Now()
			_, err := l.TryLock(w.Context())
			check.That(w, err != nil, "one server of three is a majority")
			// Each attempt waits for answers and then for cleanups; the pauses between attempts are a few ms.
			if d := time.Since(start); d < 3*want || d > 5*want+100*time.Millisecond {
				w.Errorf("with a TTL of %v it took %v, which is not three to five times %v", ttl, d, want)
			}
		})
	}
}

// TestOneGoroutinePerProcessPolls: the others wait locally.
func TestOneGoroutinePerProcessPolls(t *testing.T) {
	asked := func(goroutines int) (n int) {
		onServers(t, 1, func(w *world) {
			p := w.process()
			l := p.lock()
			w.connect(l)
			w.occupy(0)
			p.nets[0].ResetCount()
			ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
			defer cancel()
			var all sync.WaitGroup
			for range goroutines {
				all.Go(func() {
					check.Is(w, check.ErrorOf(l.Lock(ctx)), lockkeeper.ErrNotAcquired, "the error")
				})
			}
			all.Wait()
			n = p.nets[0].Scripts()
		})
		return n
	}
	one, many := asked(1), asked(20)
	check.That(t, many <= 2*one, "20 goroutines sent %d scripts, one sent %d", many, one)
}

func TestOptionBounds(t *testing.T) {
	const year = 365 * 24 * time.Hour
	onServers(t, 1, func(w *world) {
		ks := w.process().keepers
		for _, x := range []struct {
			o     redlock.Options
			names string // "": valid
		}{
			{redlock.Options{MaxRetryDelay: time.Hour}, ""},
			{redlock.Options{MaxRetryDelay: time.Hour + 1}, "MaxRetryDelay 1h0m0"},
			{redlock.Options{MaxRetryDelay: 10 * time.Millisecond}, ""},
			{redlock.Options{MaxRetryDelay: 10*time.Millisecond - 1}, "MaxRetryDelay 9.999999ms"},
			{redlock.Options{MinUptime: year}, ""},
			{redlock.Options{MinUptime: year + 1}, "MinUptime 8760h0m0"},
			{redlock.Options{MinUptime: 30 * time.Second}, ""},
			{redlock.Options{ServerTimeout: 15 * time.Second}, ""},
			{redlock.Options{ServerTimeout: time.Millisecond}, ""},
			{redlock.Options{ServerTimeout: 15*time.Second + 1}, "ServerTimeout 15.000000001s"},
			{redlock.Options{ServerTimeout: time.Millisecond - 1}, "ServerTimeout 999.999µs"},
			{redlock.Options{ServerTimeout: -time.Second}, "ServerTimeout -1s"},
			{redlock.Options{ServerTimeout: 6 * time.Second, TTL: 10 * time.Second}, "ServerTimeout 6s"},
			{redlock.Options{MinUptime: time.Second}, "MinUptime 1s"},
			{redlock.Options{MinUptime: -time.Second}, "MinUptime -1s"},
			{redlock.Options{TTL: time.Millisecond}, "TTL 1ms"},
			{redlock.Options{MaxLifetime: time.Second}, "MaxLifetime 1s is s"},
		} {
			_, err := redlock.New(ks, "x", &x.o)
			named := errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), x.names)
			if x.names == "" && err != nil || x.names != "" && !named {
				w.Errorf("%+v: %v", x.o, err)
			}
		}
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
		check.That(w, second.Fence() > first.Fence(), "fence %d after %d", second.Fence(), first.Fence())
		w.must(second.Release(w.Context()))
	})
}

// TestFencesRiseAfterMetadataTTL: metadata is kept for longer where its last fence is ahead of the server's clock.
func TestFencesRiseAfterMetadataTTL(t *testing.T) {
	onServers(t, 3, func(w *world) {
		w.offsets = []time.Duration{10 * time.Minute, 0, 0}
		p := w.process(func(o *lockkeeper.Options) { o.MetadataTTL = time.Minute })
		p.nets[2].Down() // so that the fence is that of the clock which is ahead
		first := w.hold(p.lock())
		w.must(first.Release(w.Context()))
		p.nets[2].Restore()
		time.Sleep(2 * time.Minute)
		p.nets[0].Down()
		second := w.hold(p.lock())
		check.That(w, second.Fence() > first.Fence(), "fence %d after %d", second.Fence(), first.Fence())
		w.must(second.Release(w.Context()))
		time.Sleep(15 * time.Minute)
		w.owners()
		for i, m := range w.servers {
			ofNames := func(k string) bool { return !strings.HasPrefix(k, "{lock:}:owner:") }
			keys := m.Keys()
			check.That(w, !slices.ContainsFunc(keys, ofNames), "server %d: after a quarter of an hour there are %q", i+1, keys)
		}
	})
}

func TestHolderIsThatOfAMajority(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p, q := w.process(), w.process()
		l, watcher := p.lock(), q.lock()
		check := func(what string, want *lockkeeper.Lease) {
			t.Helper()
			began := time.Now()
			h, held, err := watcher.Holder(w.Context())
			switch {
			case err != nil, held != (want != nil):
				t.Errorf("%s: %+v, %v, %v", what, h, held, err)
			case held && (h.Token != want.Token() || h.Fence != want.Fence() || (h.Owner == "") != (what == "one does not answer") || h.Since.IsZero() || h.ExpiresIn <= 0 || h.ExpiresIn > ttl):
				t.Errorf("%s: %+v, want token %s and fence %d", what, h, want.Token(), want.Fence())
			case time.Since(began) > limit:
				t.Errorf("%s: it took %v", what, time.Since(began))
			}
		}
		check("nobody holds it", nil)
		lease := w.hold(l)
		synctest.Wait() // the third server grants it as well
		check("held at three servers", lease)
		q.nets[0].Down()
		check("one does not answer", lease)
		q.nets[1].Down()
		if _, _, err := watcher.Holder(w.Context()); !errors.Is(err, lockkeeper.ErrUnavailable) {
			t.Errorf("without a majority: %v", err)
		}
		q.nets[0].Restore()
		q.nets[1].Restore()
		time.Sleep(2 * time.Second)
		w.must(lease.Release(w.Context()))
		w.occupy(1)
		check("a minority is held", nil)
		w.occupy(2)
		h, held, err := watcher.Holder(w.Context())
		if err != nil || !held || h.Token != "theirs" || h.Fence != 0 || h.Keeper != "" || !h.Since.IsZero() {
			t.Errorf("held by another library: %+v, %v, %v", h, held, err)
		}
	})
}
