package redlock_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// TestLocalCallersFailTogether cuts off the server while 12 callers of a process want one name, in whose queue they wait for each other.
// They must not each add a MaxElapsed of their own to the wait of the next. When the server is back, everything starts anew.
func TestLocalCallersFailTogether(t *testing.T) {
	const maxElapsed, readTimeout = time.Second, 500 * time.Millisecond
	type locker interface {
		Lock(ctx context.Context) (*lockkeeper.Lease, error)
	}
	for name, of := range map[string]func(k *lockkeeper.Keeper) (locker, error){
		"mutex": func(k *lockkeeper.Keeper) (locker, error) { return mutex.New(k, "x", nil) },
		"shared_mutex": func(k *lockkeeper.Keeper) (locker, error) {
			return mutex.New(k, "x", &mutex.Options{Linger: 50 * time.Millisecond})
		},
		"shared_permits": func(k *lockkeeper.Keeper) (locker, error) {
			s, err := semaphore.New(k, "x", 1, &semaphore.Options{Linger: 50 * time.Millisecond})
			return s.Locker(), err
		},
		"redlock": func(k *lockkeeper.Keeper) (locker, error) { return redlock.New([]*lockkeeper.Keeper{k}, "x", nil) },
	} {
		test := func(t *embedded.Server, breakIt func(n *faultnet.Net), held bool) {
			process := func() (locker, *faultnet.Net) {
				n := t.Network()
				rdb := redis.NewClient(faultnet.Options(n, readTimeout))
				k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{
					Retry: lockkeeper.RetryPolicy{MaxElapsed: maxElapsed}, HeartbeatInterval: 200 * time.Millisecond,
					Logger: slog.New(slog.DiscardHandler),
				}))(t)
				t.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
				return must.Get(of(k))(t), n
			}
			lockOnce := func(l locker) { must.OK(t, must.Get(l.Lock(t.Context()))(t).Release(t.Context())) }
			l, n := process()
			lockOnce(l)
			time.Sleep(100 * time.Millisecond) // until its lease does not linger any more
			var other *lockkeeper.Lease
			if held {
				o, _ := process()
				other = must.Get(o.Lock(t.Context()))(t)
			} else {
				breakIt(n)
			}
			start := time.Now()
			var callers sync.WaitGroup
			var failed [12]time.Time
			for i := range failed {
				callers.Go(func() {
					lease, err := l.Lock(context.Background())
					check.That(t, lease == nil && errors.Is(err, lockkeeper.ErrUnavailable), "%v, %v", lease, err)
					failed[i] = time.Now()
				})
			}
			if held {
				time.Sleep(5 * time.Second) // which does not count
				breakIt(n)
				start = time.Now()
			}
			callers.Wait()
			for _, at := range failed {
				d := at.Sub(start)
				check.That(t, d >= maxElapsed && d <= maxElapsed+3*readTimeout, "a caller failed after %v", d)
			}
			n.Restore()
			must.OK(t, other.Release(t.Context()))
			lockOnce(l)
		}
		for fault, breakIt := range map[string]func(n *faultnet.Net){"down": (*faultnet.Net).Down, "frozen": (*faultnet.Net).Blackhole} {
			for when, held := range map[string]bool{"": false, "_held": true} { // then the first caller waits at the server by then
				t.Run(name+"_"+fault+when, func(t *testing.T) {
					embedded.Run(t, func(s *embedded.Server) { test(s, breakIt, held) })
				})
			}
		}
	}
}
