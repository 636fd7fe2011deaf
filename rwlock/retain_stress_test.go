package rwlock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// believed is what callers of all processes consider held of one name.
type believed struct {
	*testing.T
	mu   sync.Mutex // guards held
	held [2]map[*lockkeeper.Lease]bool
}

// The two uses of a lease.
const reading, writes = 0, 1

// begins records that its caller considers a lease held, in place of another if that is not nil. Nobody else may hold what it
// excludes.
func (b *believed) begins(l *lockkeeper.Lease, use int, instead *lockkeeper.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.held {
		delete(b.held[i], instead)
		if i == reading && use == reading {
			continue
		}
		for other := range b.held[i] {
			if other.Err() == nil && l.Err() == nil {
				b.Errorf("%s (use %d) and %s (use %d) are held at once", other.Token(), i, l.Token(), use)
			}
		}
	}
	b.held[use][l] = true
}

// ends records that its caller does not.
func (b *believed) ends(l *lockkeeper.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.held {
		delete(b.held[i], l)
	}
}

// stressed is a process of TestRetainStress.
type stressed struct {
	*lockkeeper.Keeper
	net   *faultnet.Net
	rdb   *redis.Client
	locks []*rwlock.Lock
}

func newStressed(t *testing.T, dial faultnet.Dialer, names []string, retain bool, local *atomic.Int64) *stressed {
	p := &stressed{net: faultnet.New(dial)}
	p.rdb = redis.NewClient(p.net.Options(5 * time.Second))
	var err error
	p.Keeper, err = lockkeeper.New(p.rdb, &lockkeeper.Options{
		HeartbeatInterval: 200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Hooks: lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
			if e.Local {
				local.Add(1)
			}
		}},
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range names {
		l, err := rwlock.New(p.Keeper, name, &rwlock.Options{Retain: retain})
		if err != nil {
			t.Error(err)
		}
		p.locks = append(p.locks, l)
	}
	return p
}

func (p *stressed) close() {
	_ = p.Close()
	_ = p.rdb.Close()
}

// TestRetainStress lets a thousand goroutines in four processes read, upgrade, downgrade, extend and write two names at random,
// while processes are closed and subscriptions are cut, until each has happened often enough. It checks that nobody considers held
// what another excludes, and that nothing is left behind.
func TestRetainStress(t *testing.T) {
	const writer = 250 // each 250th goroutine writes
	names := []string{"a", "b"}
	server := redistest.Start(t)
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return faultnet.TCP(ctx, network, server.Addr)
	}
	var local, written, converted, closed atomic.Int64
	var processes [4]atomic.Pointer[stressed]
	for i := range processes {
		processes[i].Store(newStressed(t, dial, names, i > 0, &local))
	}
	held := make([]*believed, len(names))
	for i := range held {
		held[i] = &believed{T: t, held: [2]map[*lockkeeper.Lease]bool{{}, {}}}
	}
	work := func(i int, r *rand.Rand) {
		p := processes[i/writer%len(processes)].Load()
		n := r.IntN(len(names))
		lock, b := p.locks[n], held[n]
		most := 2000
		if i%writer == 0 { // who has to wait for readers, on a busy machine for long
			most = 10_000
		}
		within, cancel := context.WithTimeout(context.Background(), time.Duration(1+r.IntN(most))*time.Millisecond)
		defer cancel()
		use, call := reading, lock.RLock
		switch {
		case i%writer == 0 && r.IntN(2) == 0:
			use, call = writes, lock.TryLock
		case i%writer == 0:
			use, call = writes, lock.Lock
		case r.IntN(4) == 0:
			call = lock.TryRLock
		}
		lease, err := call(within)
		if err != nil {
			return
		}
		b.begins(lease, use, nil)
		written.Add(int64(use))
		switch r.IntN(300 / (1 + 29*use)) {
		case 0:
			_ = lease.Extend(within, time.Duration(100+r.IntN(9000))*time.Millisecond)
		case 1, 2, 3:
			select {
			case <-lease.Done():
			case <-time.After(time.Duration(r.IntN(int(2 * time.Millisecond)))):
			}
		case 4, 5, 6:
			if err := lease.Context(within).Err(); err == nil && r.IntN(2) == 0 {
				runtime.Gosched()
			}
		case 7:
			convert := lock.Upgrade
			if use == writes {
				convert = lock.Downgrade
			}
			b.begins(lease, reading, lease) // until the outcome is known, it is only certain that the caller may read
			got, err := convert(within, lease)
			if err != nil {
				break
			}
			use = 1 - use
			b.begins(got, use, lease)
			lease = got
			converted.Add(1)
		}
		b.ends(lease)
		err = lease.Release(within)
		if err == nil && lease.Err() == nil || errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("after the release of %s: %v, %v", lease.Token(), err, lease.Err())
		}
	}
	running, stop := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for i := range 1000 {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(rand.Uint64(), 0))
			for running.Err() == nil {
				work(i, r)
				pause := 100 * time.Millisecond
				if i%writer == 0 {
					pause = time.Second
				}
				time.Sleep(time.Duration(r.IntN(int(pause))))
			}
		})
	}
	enough := func(n int64) bool {
		return local.Load() >= 200*n && written.Load() >= n && converted.Load() >= n && closed.Load() >= n/2
	}
	began := time.Now()
	for ; !enough(10) && time.Since(began) < 15*time.Second || !enough(1) && time.Since(began) < 2*time.Minute; time.Sleep(50 * time.Millisecond) {
		i := rand.IntN(len(processes))
		switch rand.IntN(8) {
		case 0, 1, 2, 3:
			continue
		case 4, 5, 6:
			processes[i].Load().net.CutSubscriptions()
			continue
		}
		processes[i].Swap(newStressed(t, dial, names, i > 0, &local)).close()
		closed.Add(1)
	}
	stop()
	workers.Wait()
	t.Logf("%d reads inside, %d writes, %d conversions, %d processes closed", local.Load(), written.Load(), converted.Load(), closed.Load())
	if !enough(1) {
		t.Error("too few of them")
	}
	fresh := newStressed(t, dial, names, false, &local)
	defer fresh.close()
	for i, l := range fresh.locks { // whatever is retained is recalled
		within, cancel := context.WithTimeout(context.Background(), 2*retainedTTL)
		lease, err := l.Lock(within)
		cancel()
		if err != nil {
			holders, _ := l.Holders(context.Background())
			t.Errorf("%s is not free: %v; %+v", names[i], err, holders)
			continue
		}
		_ = lease.Release(context.Background())
	}
	for i := range processes {
		processes[i].Load().close()
	}
}
