package rwlock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// believed is what callers of all processes consider held, and whether they write.
type believed struct {
	*testing.T
	mu     sync.Mutex // guards writes
	writes map[*lockkeeper.Lease]bool
}

// begins records that its caller considers a lease held, in place of another if that is not nil. Nobody else may hold what it
// excludes.
func (b *believed) begins(l *lockkeeper.Lease, writes bool, instead *lockkeeper.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.writes, instead)
	for other, otherWrites := range b.writes {
		if (writes || otherWrites) && other.Err() == nil && l.Err() == nil {
			b.Errorf("%s (writes %t) and %s (writes %t) are held at once", other.Token(), otherWrites, l.Token(), writes)
		}
	}
	b.writes[l] = writes
}

// ends records that its caller does not.
func (b *believed) ends(l *lockkeeper.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.writes, l)
}

// stressed is a process of TestRetainStress.
type stressed struct {
	*rwlock.Lock
	net   *faultnet.Net
	close func()
}

// TestRetainStress lets a thousand goroutines in four processes read, upgrade, downgrade, extend and write at random, while processes are
// closed and subscriptions are cut, until each has happened often enough. It checks that nobody considers held what another excludes, and
// that nothing is left behind.
func TestRetainStress(t *testing.T) {
	const perProcess = 250 // goroutines, of which one writes
	server := redistest.Start(t)
	var local, written, converted atomic.Int64
	newProcess := func(retain bool) *stressed {
		n := faultnet.New(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return faultnet.TCP(ctx, network, server.Addr)
		})
		rdb := redis.NewClient(n.Options(5 * time.Second))
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{
			HeartbeatInterval: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Hooks: lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
				if e.Local {
					local.Add(1)
				}
			}},
		}))(t)
		l := must.Get(rwlock.New(k, "x", &rwlock.Options{Retain: retain}))(t)
		return &stressed{l, n, func() { _, _ = k.Close(), rdb.Close() }}
	}
	var processes [4]atomic.Pointer[stressed]
	for i := range processes {
		processes[i].Store(newProcess(i > 0))
	}
	held := &believed{T: t, writes: map[*lockkeeper.Lease]bool{}}
	work := func(i int, r *rand.Rand) {
		lock := processes[i/perProcess].Load()
		writes := i%perProcess == 0
		calls, most := []func(context.Context) (*lockkeeper.Lease, error){lock.RLock, lock.RLock, lock.RLock, lock.TryRLock}, 2000
		if writes { // who has to wait for readers, on a busy machine for long
			calls, most = []func(context.Context) (*lockkeeper.Lease, error){lock.Lock.Lock, lock.TryLock}, 10_000
		}
		within, cancel := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(most))*time.Millisecond)
		defer cancel()
		lease, err := calls[r.IntN(len(calls))](within)
		if err != nil {
			return
		}
		held.begins(lease, writes, nil)
		oneOf := 300
		if writes {
			written.Add(1)
			oneOf = 10
		}
		switch r.IntN(oneOf) {
		case 0:
			_ = lease.Extend(within, time.Duration(100+r.IntN(9000))*time.Millisecond)
		case 1, 2, 3:
			select {
			case <-lease.Done():
			case <-time.After(time.Duration(r.IntN(int(2 * time.Millisecond)))):
			}
		case 4:
			convert := lock.Upgrade
			if writes {
				convert = lock.Downgrade
			}
			held.begins(lease, false, lease) // until the outcome is known, it is only certain that the caller may read
			if got, err := convert(within, lease); err == nil {
				held.begins(got, !writes, lease)
				lease = got
				converted.Add(1)
			}
		}
		held.ends(lease)
		err = lease.Release(within)
		if err == nil && lease.Err() == nil || errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("after the release of %s: %v, %v", lease.Token(), err, lease.Err())
		}
	}
	running, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for i := range perProcess * len(processes) {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(rand.Uint64(), 0))
			pause := 100 * time.Millisecond
			if i%perProcess == 0 {
				pause = time.Second
			}
			for running.Err() == nil {
				work(i, r)
				time.Sleep(time.Duration(r.IntN(int(pause))))
			}
		})
	}
	closed := int64(0)
	enough := func(n int64) bool {
		return local.Load() >= 200*n && written.Load() >= n && converted.Load() >= n && closed >= n/2
	}
	began := time.Now()
	for ; !enough(10) && time.Since(began) < 15*time.Second || !enough(1) && time.Since(began) < 2*time.Minute; time.Sleep(50 * time.Millisecond) {
		i := rand.IntN(len(processes))
		switch rand.IntN(8) {
		case 0, 1, 2:
			processes[i].Load().net.CutSubscriptions()
		case 3:
			processes[i].Swap(newProcess(i > 0)).close()
			closed++
		}
	}
	stop()
	workers.Wait()
	if !enough(1) {
		t.Errorf("too few: %d reads inside, %d writes, %d conversions, %d processes closed", local.Load(), written.Load(), converted.Load(), closed)
	}
	fresh := newProcess(false)
	defer fresh.close()
	within, cancel := context.WithTimeout(t.Context(), 2*retaining.TTL)
	defer cancel()
	if lease, err := fresh.Lock.Lock(within); err != nil { // whatever is retained is recalled
		holders, _ := fresh.Holders(t.Context())
		t.Errorf("not free: %v; %+v", err, holders)
	} else {
		must.Report(t, lease.Release(t.Context()))
	}
	for i := range processes {
		processes[i].Load().close()
	}
}
