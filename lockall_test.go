package lockkeeper_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/growth"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

var lockAllSeed = flag.Uint64("lockall-seed", 0, "the only `seed` of TestLockAllNeverDeadlocks; 0: drawn")

// kinds are locks of each kind with one name, by their keeper.
type kinds struct {
	mutex, fair, read, write, permits lockkeeper.Locker
}

func kindsOf(t *testing.T, k *lockkeeper.Keeper, name string) kinds {
	t.Helper()
	m, err1 := mutex.New(k, name, nil)
	f, err2 := fair.New(k, name, nil)
	rw, err3 := rwlock.New(k, name, nil)
	sem, err4 := semaphore.New(k, name, 3, nil)
	p, err5 := sem.LockerN(2)
	must.OK(t, errors.Join(err1, err2, err3, err4, err5))
	return kinds{m, f, rw.RLocker(), rw, p}
}

func onServer(t *testing.T, test func(t *testing.T, s *lockkeepertest.Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockkeepertest.New(t)) })
}

func TestLockAllHoldsAllAndReleasesAll(t *testing.T) {
	onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		x, majority := kindsOf(t, k, "x"), must.Get(redlock.New([]*lockkeeper.Keeper{k}, "y", nil))(t)
		lockers := []lockkeeper.Locker{majority, x.permits, x.write, x.mutex, x.fair}
		all := must.Get(lockkeeper.LockAll(t.Context(), lockers...))(t)
		ctx, done := all.Context(t.Context()), all.Done()
		time.Sleep(5 * lockkeeper.DefaultTTL) // all are renewed
		check.That(t, all.Err() == nil && ctx.Err() == nil, "%v, %v", all.Err(), ctx.Err())
		for i, lease := range all.All() {
			check.That(t, lease == all.Of(lockers[i]) && lease.Fence() != 0 && lease.Name() == lockers[i].Name(),
				"lease %d is %v", i, lease)
			check.That(t, !all.Deadline().After(lease.Deadline()), "the deadline is not the earliest")
		}
		if lease := all.Of(kindsOf(t, s.Keeper(t, nil), "z").mutex); lease != nil || all.Of(nil) != nil {
			t.Errorf("another locker has %v", lease)
		}
		err := all.Extend(t.Context(), time.Hour)
		check.That(t, err == nil && time.Until(all.Deadline()) >= 50*time.Minute, "%v, %v", err, time.Until(all.Deadline()))
		other := kindsOf(t, s.Keeper(t, nil), "x")
		check.Is(t, check.ErrorOf(lockkeeper.TryLockAll(t.Context(), other.mutex, other.read)), lockkeeper.ErrNotAcquired, "the error")
		must.Report(t, all.Release(t.Context()))
		<-done
		check.That(t, errors.Is(all.Err(), lockkeeper.ErrReleased) && errors.Is(context.Cause(ctx), lockkeeper.ErrReleased),
			"%v, %v", all.Err(), context.Cause(ctx))
		all = must.Get(lockkeeper.TryLockAll(t.Context(), other.mutex, other.read, other.fair, other.permits))(t)
		must.Report(t, all.Release(t.Context()))
	})
}

// TestLockAllIsLostWithOne checks that the loss of any lease ends the whole, and that the others are held until Release.
func TestLockAllIsLostWithOne(t *testing.T) {
	for i, lost := range []string{"a", "b", "c"} {
		t.Run(lost, func(t *testing.T) {
			onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
				k := s.Keeper(t, nil)
				lockers := []lockkeeper.Locker{kindsOf(t, k, "a").fair, kindsOf(t, k, "b").fair, kindsOf(t, k, "c").fair}
				all := must.Get(lockkeeper.LockAll(t.Context(), lockers...))(t)
				ctx := all.Context(t.Context())
				s.LoseLease(t, lost)
				<-ctx.Done()
				check.That(t, errors.Is(all.Err(), lockkeeper.ErrLost) && errors.Is(context.Cause(ctx), lockkeeper.ErrLost),
					"%v, %v", all.Err(), context.Cause(ctx))
				for j, lease := range all.All() {
					held := lease.Err() == nil
					check.That(t, held == (j != i), "lease %d: %v", j, lease.Err())
				}
				check.Is(t, all.Extend(t.Context(), time.Minute), lockkeeper.ErrLost, "the error")
				check.Is(t, all.Release(t.Context()), lockkeeper.ErrLost, "the error")
				check.Is(t, all.Err(), lockkeeper.ErrLost, "the error")
			})
		})
	}
}

// TestLockAllReleasesWhatItHasAcquired checks that nothing is held after an error, whatever the reason: LockAll holds a, and waits for b.
func TestLockAllReleasesWhatItHasAcquired(t *testing.T) {
	type calls struct {
		cancel   func()
		ofA, ofB *lockkeeper.Keeper
	}
	for name, x := range map[string]struct {
		fault func(t *testing.T, s *lockkeepertest.Server, c calls)
		want  error
	}{
		"canceled":       {func(_ *testing.T, _ *lockkeepertest.Server, c calls) { c.cancel() }, context.Canceled},
		"lost":           {func(t *testing.T, s *lockkeepertest.Server, _ calls) { s.LoseLease(t, "a") }, lockkeeper.ErrLost},
		"closed":         {func(_ *testing.T, _ *lockkeepertest.Server, c calls) { _ = c.ofB.Close() }, lockkeeper.ErrClosed},
		"closed_of_held": {func(_ *testing.T, _ *lockkeepertest.Server, c calls) { _ = c.ofA.Close() }, lockkeeper.ErrClosed},
		"outage": {func(_ *testing.T, s *lockkeepertest.Server, _ calls) {
			s.Unreachable()
			time.Sleep(5 * lockkeeper.DefaultTTL)
			s.Restore()
		}, lockkeeper.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
				held := must.Get(kindsOf(t, s.Keeper(t, nil), "b").fair.Lock(t.Context()))(t)
				c := calls{ofA: s.Keeper(t, nil), ofB: s.Keeper(t, nil)}
				var ctx context.Context
				ctx, c.cancel = context.WithCancel(t.Context())
				defer c.cancel()
				result := make(chan error, 1)
				go func() {
					_, err := lockkeeper.LockAll(ctx, kindsOf(t, c.ofB, "b").fair, kindsOf(t, c.ofA, "a").fair)
					result <- err
				}()
				s.RequireHeld(t, "a")
				s.RequireWaiting(t, "b", 1)
				x.fault(t, s, c)
				check.Is(t, <-result, x.want, "the error")
				s.RequireFree(t, "a")
				_ = held.Release(t.Context())
				s.RequireFree(t, "b")
			})
		})
	}
}

// incomparable is a Locker of another module.
type incomparable struct {
	lockkeeper.Locker
	many []int // it cannot be compared
}

func TestLockAllRefuses(t *testing.T) {
	onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		x, same, y := kindsOf(t, k, "x"), kindsOf(t, s.Keeper(t, nil), "x"), kindsOf(t, k, "y")
		var none *mutex.Mutex
		for says, lockers := range map[string][]lockkeeper.Locker{
			"no lockers":           {},
			"locker 2 of 2 is nil": {x.mutex, nil},
			"locker 1 of 2 is nil": {none, x.mutex},
			"1 and 3 of 3":         {x.mutex, y.mutex, x.mutex},
			`key "lock:x"`:         {x.mutex, same.mutex},
			`"{lock:x}:rwlock:`:    {x.read, y.mutex, x.write},
			`"{lock:x}:semaphore:`: {x.permits, x.permits},
			"2 and 3 of 3":         {x.mutex, incomparable{y.mutex, nil}, y.mutex},
		} {
			_, err := lockkeeper.LockAll(t.Context(), lockers...)
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says), "%v instead of %s", err, says)
		}
	})
}

// foreign is a Locker of another module, whose TryLock and Lock are one function.
type foreign struct {
	*mutex.Mutex
	lock func() (*lockkeeper.Lease, error)
}

func (f foreign) Lock(context.Context) (*lockkeeper.Lease, error)    { return f.lock() }
func (f foreign) TryLock(context.Context) (*lockkeeper.Lease, error) { return f.lock() }

func TestLockAllReleasesAfterAForeignLockerFails(t *testing.T) {
	onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		first, second := kindsOf(t, k, "a").mutex, kindsOf(t, k, "b").mutex.(*mutex.Mutex)
		for name, call := range map[string]func(context.Context, ...lockkeeper.Locker) (*lockkeeper.Leases, error){
			"LockAll": lockkeeper.LockAll, "TryLockAll": lockkeeper.TryLockAll,
		} {
			nothing := foreign{second, func() (*lockkeeper.Lease, error) { return nil, nil }}
			_, err := call(t.Context(), first, nothing)
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), "locker 2 of 2"),
				"%s of a locker that returns nothing: %v", name, err)
			s.RequireFree(t, "a")
			func() {
				defer func() {
					r := recover()
					check.That(t, r == "broken", "%s: recovered %v", name, r)
				}()
				_, err := call(t.Context(), first, foreign{second, func() (*lockkeeper.Lease, error) { panic("broken") }})
				t.Errorf("%s returned %v after a panic", name, err)
			}()
			s.RequireFree(t, "a")
		}
	})
}

// TestLockAllNeverDeadlocks lets goroutines of several keepers acquire random locks in random order: all get them, no lock has too
// many holders, and nothing is left. The seeds are others in each run; those that failed are run by -lockall-seed.
func TestLockAllNeverDeadlocks(t *testing.T) {
	seeds := []uint64{*lockAllSeed}
	if *lockAllSeed == 0 {
		seeds = []uint64{rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()}
	}
	for _, seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0))
		keepers, workers, rounds := 1+r.IntN(3), 2+r.IntN(5), 1+r.IntN(4)
		onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
			var held [2][4]atomic.Int64 // by name, of the mutex, the fair lock, the read-write lock and the semaphore
			most := [4]int64{1, 1, 100, 3}
			type choice struct {
				lockkeeper.Locker
				held         *atomic.Int64
				weight, most int64 // a reader counts 1, a writer 100
			}
			var ks []*lockkeeper.Keeper
			for range keepers {
				ks = append(ks, s.Keeper(t, nil))
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			var group sync.WaitGroup
			for w := range workers {
				r := rand.New(rand.NewPCG(seed, 1+uint64(w)))
				names := [2]kinds{kindsOf(t, ks[w%keepers], "x"), kindsOf(t, ks[w%keepers], "y")}
				group.Go(func() {
					for range rounds {
						var chosen []choice
						for name, l := range names {
							weights, lockers := [4]int64{1, 1, 1, 2}, [4]lockkeeper.Locker{l.mutex, l.fair, l.read, l.permits}
							if r.IntN(2) == 0 {
								weights[2], lockers[2] = 100, l.write
							}
							for kind, locker := range lockers {
								if r.IntN(2) == 0 {
									chosen = append(chosen, choice{locker, &held[name][kind], weights[kind], most[kind]})
								}
							}
						}
						if len(chosen) == 0 {
							continue
						}
						r.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
						var lockers []lockkeeper.Locker
						for _, c := range chosen {
							lockers = append(lockers, c.Locker)
						}
						all, err := lockkeeper.LockAll(ctx, lockers...)
						if err != nil {
							t.Errorf("LockAll: %v", err)
							return
						}
						for _, c := range chosen {
							n := c.held.Add(c.weight)
							check.That(t, n <= c.most, "%s is held %d times", c.Key(), n)
						}
						time.Sleep(time.Duration(r.Int64N(int64(2 * lockkeeper.DefaultTTL))))
						for _, c := range chosen {
							c.held.Add(-c.weight)
						}
						must.Report(t, all.Release(ctx))
					}
				})
			}
			group.Wait()
			for _, kind := range []lockkeeper.Kind{mutex.Kind, fair.Kind, rwlock.Kind, semaphore.Kind} {
				s.Kind(kind).RequireFree(t, "x")
				s.Kind(kind).RequireFree(t, "y")
			}
		})
		must.That(t, !t.Failed(), "repeat with -args -lockall-seed=%d", seed)
	}
}

// heldLease is a lease without a server.
type heldLease struct {
	lifecycle.Lifecycle
	name string
}

func (h *heldLease) Name() string                                { return h.name }
func (h *heldLease) Token() string                               { return h.name }
func (h *heldLease) Fence() uint64                               { return 1 }
func (h *heldLease) Deadline() time.Time                         { return time.Time{} }
func (h *heldLease) CheckDeadline()                              {}
func (h *heldLease) Extend(context.Context, time.Duration) error { return nil }

func (h *heldLease) Release(context.Context) error {
	h.End(lockkeeper.ErrReleased)()
	return nil
}

// freeLock is a lock without a server, which is free.
type freeLock string

func (l freeLock) Name() string { return string(l) }
func (l freeLock) Key() string  { return string(l) }

func (l freeLock) Lock(ctx context.Context) (*lockkeeper.Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h := &heldLease{name: string(l)}
	h.Begin(h)
	return access.Lease[lockkeeper.Lease](h, nil)
}

func (l freeLock) TryLock(ctx context.Context) (*lockkeeper.Lease, error) { return l.Lock(ctx) }

// TestLockAllCostsTheSameForEachLock checks that a lock among many needs no more memory than one among few.
func TestLockAllCostsTheSameForEachLock(t *testing.T) {
	bytes := func(n int) func() int64 { // for each of n locks that are acquired together
		return func() int64 {
			lockers := make([]lockkeeper.Locker, n)
			for i := range lockers {
				lockers[i] = freeLock(fmt.Sprint("x", i))
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			must.OK(t, must.Get(lockkeeper.LockAll(t.Context(), lockers...))(t).Release(t.Context()))
			runtime.ReadMemStats(&after)
			return int64(after.TotalAlloc-before.TotalAlloc) / int64(n)
		}
	}
	growth.AtMost(t, 3, bytes(40), bytes(800))
}

// TestLeasesKeepNothingOfCalls checks that loops around Done, and around Context with a parent that never ends, need no memory that
// lasts as long as the leases.
func TestLeasesKeepNothingOfCalls(t *testing.T) {
	onServer(t, func(t *testing.T, s *lockkeepertest.Server) {
		k := s.Keeper(t, nil)
		x, y := kindsOf(t, k, "x"), kindsOf(t, k, "y")
		all := must.Get(lockkeeper.LockAll(context.Background(), x.mutex, x.fair, y.write))(t)
		one := all.Of(x.mutex)
		for what, call := range map[string]func(){
			"Leases.Done":    func() { all.Done() },
			"Leases.Context": func() { all.Context(context.Background()) },
			"Leases.Context, without cancel": func() {
				all.Context(context.WithValue(context.Background(), kinds{}, 1))
			},
			"Lease.Done":    func() { one.Done() },
			"Lease.Context": func() { one.Context(context.Background()) },
		} {
			objects := func() uint64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				return m.HeapObjects
			}
			const n = 20_000
			before := objects()
			for range n {
				call()
			}
			if after := objects(); after > before+n/4 {
				t.Errorf("%s leaves %d objects of %d calls", what, after-before, n)
			}
		}
		done, ctx, derived := all.Done(), all.Context(context.Background()), all.Context(t.Context())
		if all.Err() != nil || ctx.Err() != nil || derived.Err() != nil || lockkeeper.LeaseFromContext(ctx) == nil {
			t.Errorf("%v, %v, %v", all.Err(), ctx.Err(), derived.Err())
		}
		must.OK(t, one.Release(context.Background()))
		select { // at once, not some time later
		case <-done:
		default:
			t.Error("Done is open")
		}
		if context.Cause(ctx) == nil || context.Cause(derived) == nil || all.Context(context.Background()).Err() == nil {
			t.Error("a context has not ended")
		}
		must.OK(t, all.Release(context.Background()))
	})
}
