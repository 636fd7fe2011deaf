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
					if e.Kind != "redlock" || e.Name != "x" || e.Err != nil || e.Hook != "AcquireStart" && (e.Token != lease.Token() || e.Fence != lease.Fence()) {
						w.Errorf("%s: %+v", e.Hook, e.Event)
					}
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
			if _, err := l.TryLock(w.Context()); err == nil {
				w.Error("one server of three is a majority")
			}
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
					if _, err := l.Lock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
						w.Error(err)
					}
				})
			}
			all.Wait()
			n = p.nets[0].Scripts()
		})
		return n
	}
	if one, many := asked(1), asked(20); many > 2*one {
		t.Errorf("20 goroutines sent %d scripts, one sent %d", many, one)
	}
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
			if refused := err != nil; refused != (x.names != "") || refused && (!errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), x.names)) {
				w.Errorf("%+v: %v", x.o, err)
			}
		}
	})
}
