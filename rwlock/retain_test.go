package rwlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

const retainedTTL = 5 * time.Second

// retainer is a process of a test of Options.Retain, with a lock of the name x.
type retainer struct {
	*lockkeeper.Keeper
	*rwlock.Lock
	t   *testing.T
	net *faultnet.Net

	mu     sync.Mutex
	events []string
}

var ctx = context.Background()

// retaining runs a test with two processes in virtual time. The first retains read leases.
func retaining(t *testing.T, test func(s *embedded.Server, p, other *retainer)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var all []*retainer
		for i := range 2 {
			p := &retainer{t: s.T, net: s.Network()}
			rdb := redis.NewClient(p.net.Options(time.Second))
			saw := func(what string) func(lockkeeper.Event) {
				return func(e lockkeeper.Event) {
					p.mu.Lock()
					defer p.mu.Unlock()
					p.events = append(p.events, fmt.Sprintf("%s %v", what, e.Local))
					if e.Mode != "read" && e.Mode != "write" || e.Context == nil || e.Request == 0 {
						t.Errorf("%s: %+v", what, e)
					}
				}
			}
			var err error
			p.Keeper, err = lockkeeper.New(rdb, &lockkeeper.Options{
				Hooks: lockkeeper.Hooks{
					AcquireStart: saw("start"), AcquireDone: saw("done"), Released: saw("released"), Recalled: saw("recalled"), Lost: saw("lost"),
				},
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			p.must(err)
			p.Lock, err = rwlock.New(p.Keeper, "x", &rwlock.Options{Retain: i == 0})
			p.must(err)
			s.Cleanup(func() {
				p.net.Restore()
				_ = p.Close()
				_ = rdb.Close()
			})
			all = append(all, p)
		}
		test(s, all[0], all[1])
	})
}

func (p *retainer) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// reads acquires a read lease.
func (p *retainer) reads() *lockkeeper.Lease {
	p.t.Helper()
	l, err := p.RLock(ctx)
	p.must(err)
	return l
}

func (p *retainer) release(l *lockkeeper.Lease) {
	p.t.Helper()
	p.must(l.Release(ctx))
}

// retains makes the process retain a lease, and returns a read lease that was granted by it.
func (p *retainer) retains() *lockkeeper.Lease {
	p.t.Helper()
	p.release(p.reads()) // it subscribes
	synctest.Wait()
	p.release(p.reads()) // it retains
	l := p.reads()
	if n := p.scripts(func() { p.release(p.reads()) }); n != 0 {
		p.t.Fatalf("a read took %d scripts", n)
	}
	return l
}

// scripts returns how many scripts the process has sent during the function.
func (p *retainer) scripts(f func()) int {
	p.net.ResetCount()
	f()
	return p.net.Scripts()
}

// local reports whether a read is granted inside the process.
func (p *retainer) local() bool {
	p.t.Helper()
	return p.scripts(func() { p.release(p.reads()) }) == 0
}

// writes requests a write lease in the background.
func (p *retainer) writes() chan *lockkeeper.Lease {
	granted := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := p.Lock.Lock(ctx)
		if err != nil {
			p.t.Error(err)
		}
		granted <- l
	}()
	synctest.Wait()
	return granted
}

func isGranted(granted chan *lockkeeper.Lease) bool {
	synctest.Wait()
	return len(granted) > 0
}

func TestRetainedReadsShareOneLease(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		first := p.retains()
		var leases []*lockkeeper.Lease
		if n := p.scripts(func() {
			for range 100 {
				leases = append(leases, p.reads())
			}
		}); n != 0 {
			t.Errorf("100 reads took %d scripts", n)
		}
		holders, err := other.Holders(ctx)
		p.must(err)
		if len(holders) != 1 || holders[0].Token != first.Token() || holders[0].Fence != first.Fence() {
			t.Errorf("holders: %+v; want one, %s with fence %d", holders, first.Token(), first.Fence())
		}
		read := leases[0]
		work := read.Context(ctx)
		if read.Token() != first.Token() || read.Fence() != first.Fence() || !read.Deadline().Equal(first.Deadline()) || read.Name() != "x" || read.Err() != nil {
			t.Errorf("%s, fence %d, until %v, %v", read.Token(), read.Fence(), read.Deadline(), read.Err())
		}
		p.release(read)
		p.release(read)
		select {
		case <-read.Done():
		default:
			t.Error("a released lease is not done")
		}
		if !errors.Is(read.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) || leases[1].Err() != nil {
			t.Errorf("%v, %v, %v", read.Err(), context.Cause(work), leases[1].Err())
		}
		time.Sleep(time.Minute) // it is renewed while somebody is inside
		if leases[1].Err() != nil || first.Err() != nil {
			t.Errorf("lost: %v", first.Err())
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := p.RLock(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("RLock with a context that has ended: %v", err)
		}
		p.must(p.DoRead(ctx, func(ctx context.Context, fence uint64) error {
			if fence != first.Fence() {
				t.Errorf("DoRead has fence %d", fence)
			}
			return ctx.Err()
		}))
	})
}

// TestNewObjectForEachRead checks that the process retains a lease of the name, not of the object by which it was acquired.
func TestNewObjectForEachRead(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, _ *retainer) {
		made := func() *rwlock.Lock {
			l, err := rwlock.New(p.Keeper, "x", &rwlock.Options{Retain: true})
			p.must(err)
			return l
		}
		read := func(acquire func(*rwlock.Lock) (*lockkeeper.Lease, error)) {
			l, err := acquire(made())
			p.must(err)
			p.release(l)
		}
		lock := func(l *rwlock.Lock) (*lockkeeper.Lease, error) { return l.RLock(ctx) }
		read(lock) // it subscribes
		synctest.Wait()
		read(lock) // it retains
		for what, acquire := range map[string]func(*rwlock.Lock) (*lockkeeper.Lease, error){
			"RLock": lock, "TryRLock": func(l *rwlock.Lock) (*lockkeeper.Lease, error) { return l.TryRLock(ctx) },
		} {
			if n := p.scripts(func() {
				for range 100 {
					read(acquire)
				}
			}); n != 0 {
				t.Errorf("100 times %s of a new object took %d scripts", what, n)
			}
		}
		w, err := made().TryLock(ctx) // it gives back what the process retains
		p.must(err)
		p.release(w)
	})
}

func TestRetainedLeaseIsRecalledByWriter(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.retains()
		inside2 := p.reads()
		began := time.Now()
		write := other.writes()
		if isGranted(write) {
			t.Fatal("a writer holds the lock with readers inside")
		}
		late := make(chan *lockkeeper.Lease, 1)
		go func() { late <- p.reads() }()
		synctest.Wait()
		if len(late) != 0 {
			t.Fatal("a reader passes a writer that waits")
		}
		p.release(inside)
		if isGranted(write) {
			t.Fatal("a writer holds the lock with a reader inside")
		}
		p.release(inside2)
		if !isGranted(write) || time.Since(began) != 0 {
			t.Fatalf("the writer waits after the last reader has left, %v", time.Since(began))
		}
		l := <-write
		if l.Fence() <= inside.Fence() {
			t.Error("the fence does not rise")
		}
		other.release(l)
		p.release(<-late)
		if p.local() {
			t.Error("retained again at once after a recall")
		}
		time.Sleep(time.Minute)
		for range 20 {
			p.release(p.reads())
		}
		if !p.local() {
			t.Error("not retained again")
		}
	})
}

func TestUnusedRetainedLeaseDelaysNobody(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		p.release(p.retains())
		began := time.Now()
		if _, err := other.TryLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("TryLock while another process retains a lease: %v", err)
		}
		synctest.Wait()
		l, err := other.TryLock(ctx) // the first has recalled it
		other.must(err)
		other.release(l)

		time.Sleep(time.Minute)
		p.release(p.retains())
		var write chan *lockkeeper.Lease
		if n := p.scripts(func() { write = other.writes() }); n != 1 {
			t.Errorf("the lease was given back by %d scripts", n)
		}
		if !isGranted(write) || time.Since(began) > time.Minute {
			t.Error("the writer waits with nobody inside")
		}
		other.release(<-write)

		time.Sleep(time.Minute)
		p.release(p.retains())
		time.Sleep(retainedTTL * 7 / 3)
		if holders, err := other.Holders(ctx); err != nil || len(holders) != 0 {
			t.Errorf("a lease that was not used for its ttl is kept: %v, %v", holders, err)
		}
	})
}

func TestLostRecall(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.retains()
		p.net.BlackholeSubscriptions()
		write := other.writes()
		if !p.local() {
			t.Error("a recall has come")
		}
		began := time.Now()
		for !p.local() || !isGranted(write) {
			if time.Since(began) > retainedTTL/3+time.Second {
				t.Fatal("the lease is retained although a renewal has told that it was recalled")
			}
			time.Sleep(10 * time.Millisecond)
			if inside != nil && !p.localNow() {
				p.release(inside)
				inside = nil
			}
			if inside == nil && isGranted(write) {
				break
			}
		}
		other.release(<-write)
	})
}

// localNow reports whether a read would be granted inside the process, without waiting for one that is not.
func (p *retainer) localNow() bool {
	brief, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	local := false
	n := p.scripts(func() {
		if l, err := p.RLock(brief); err == nil {
			local = true
			p.release(l)
		}
	})
	return local && n == 0
}

func TestNothingIsGrantedInsideWithoutSubscription(t *testing.T) {
	retaining(t, func(s *embedded.Server, p, _ *retainer) {
		inside := p.retains()
		p.net.Down()
		synctest.Wait()
		if p.localNow() {
			t.Error("granted inside without a subscription")
		}
		p.net.Restore()
		p.net.Break("evalsha", 1000, faultnet.LoseRequest)
		for subscribed := 0; subscribed == 0; { // the new subscription is acknowledged
			time.Sleep(time.Millisecond)
			for _, n := range s.Mini.PubSubNumSub("lock:wake:" + p.ID()) {
				subscribed = n
			}
		}
		synctest.Wait()
		if p.localNow() {
			t.Error("granted inside before the server has said that the lease was not recalled meanwhile")
		}
		p.net.Restore()
		time.Sleep(2 * time.Second)
		if inside.Err() != nil {
			t.Error("the lease is lost with the subscription")
		}
		if !p.local() {
			t.Error("not granted inside with a new subscription")
		}
		p.release(inside)
	})
}

func TestRetainedLeaseIsLostWithItsReaders(t *testing.T) {
	retaining(t, func(s *embedded.Server, p, other *retainer) {
		inside, inside2 := p.retains(), p.reads()
		work := inside.Context(ctx)
		s.Mini.FlushAll()
		other.release(<-other.writes())
		time.Sleep(retainedTTL / 2)
		for _, err := range []error{inside.Err(), inside2.Err(), context.Cause(work), inside.Release(ctx)} {
			if !errors.Is(err, lockkeeper.ErrLost) {
				t.Errorf("not lost: %v", err)
			}
		}
		p.must(inside.Release(ctx))
		if err := inside2.Release(ctx); !errors.Is(err, lockkeeper.ErrLost) {
			t.Errorf("not lost: %v", err)
		}
		p.release(p.reads())
	})
}

func TestRetainedLeaseIsNotBelievedPastItsDeadline(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, _ *retainer) {
		inside, inside2 := p.retains(), p.reads()
		work := inside.Context(ctx)
		p.net.Down()
		deadline := inside.Deadline()
		time.Sleep(time.Until(deadline) - 1)
		if inside.Err() != nil || inside2.Err() != nil {
			t.Error("lost too early")
		}
		time.Sleep(time.Nanosecond)
		if p.localNow() {
			t.Error("granted inside after the deadline")
		}
		for _, err := range []error{inside.Err(), inside2.Err(), context.Cause(work), inside2.Release(ctx)} {
			if !errors.Is(err, lockkeeper.ErrLost) {
				t.Errorf("not lost: %v", err)
			}
		}
	})
}

func TestCloseEndsRetainedReads(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.retains()
		work := inside.Context(ctx)
		p.must(p.Close())
		if !errors.Is(inside.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) {
			t.Errorf("%v, %v", inside.Err(), context.Cause(work))
		}
		if _, err := p.RLock(ctx); !errors.Is(err, lockkeeper.ErrClosed) {
			t.Errorf("RLock of a closed keeper: %v", err)
		}
		p.must(inside.Release(ctx))
		l, err := other.TryLock(ctx)
		p.must(err)
		other.release(l)
	})
}

func TestWriterOfSameProcessPrecedesRetainedReads(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, _ *retainer) {
		inside := p.retains()
		if _, err := p.TryLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("TryLock with a reader inside: %v", err)
		}
		write := p.writes()
		if p.localNow() {
			t.Error("a reader passes a writer of its process")
		}
		p.release(inside)
		if !isGranted(write) {
			t.Fatal("the writer waits with nobody inside")
		}
		p.release(<-write)

		time.Sleep(time.Minute)
		p.release(p.retains())
		l, err := p.TryLock(ctx)
		p.must(err)
		p.release(l)
	})
}

func TestUpgradeOfRetainedRead(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		inside, inside2 := p.retains(), p.reads()
		work := inside.Context(ctx)
		upgraded := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, err := p.Upgrade(ctx, inside)
			if err != nil {
				t.Error(err)
			}
			upgraded <- l
		}()
		if isGranted(upgraded) {
			t.Fatal("upgraded with another reader inside")
		}
		if _, err := p.Upgrade(ctx, inside2); !errors.Is(err, rwlock.ErrUpgradeConflict) || inside2.Err() != nil {
			t.Errorf("a second upgrade: %v, %v", err, inside2.Err())
		}
		p.release(inside2)
		if !isGranted(upgraded) {
			t.Fatal("not upgraded although nobody else is inside")
		}
		w := <-upgraded
		if !errors.Is(inside.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) || w.Fence() <= inside.Fence() {
			t.Errorf("%v, %v, fence %d after %d", inside.Err(), context.Cause(work), w.Fence(), inside.Fence())
		}
		if _, err := other.TryRLock(ctx); !errors.Is(err, lockkeeper.ErrNotAcquired) {
			t.Errorf("a reader beside a writer: %v", err)
		}
		read, err := p.Downgrade(ctx, w)
		p.must(err)
		p.release(read)
		p.must(inside.Release(ctx))
	})
}

func TestUpgradeOfRetainedReadGivesUp(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		for _, elsewhere := range []bool{false, true} { // where the other reader is
			inside, inside2 := p.retains(), p.reads()
			if elsewhere {
				p.release(inside2)
				inside2 = other.reads()
			}
			brief, cancel := context.WithTimeout(ctx, time.Second)
			_, err := p.Upgrade(brief, inside)
			cancel()
			if !errors.Is(err, lockkeeper.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || inside.Err() != nil {
				t.Errorf("%v, %v", err, inside.Err())
			}
			time.Sleep(time.Minute) // it is held as before
			if inside.Err() != nil {
				t.Error(inside.Err())
			}
			other.must(inside2.Release(ctx))
			w, err := p.Upgrade(ctx, inside)
			p.must(err)
			p.release(w)
			time.Sleep(time.Minute)
		}
	})
}

func TestExtendOfRetainedRead(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, _ *retainer) {
		inside, inside2 := p.retains(), p.reads()
		p.must(inside.Extend(ctx, time.Minute))
		for _, l := range []*lockkeeper.Lease{inside, inside2} {
			if left := time.Until(l.Deadline()); left < 59*time.Second {
				t.Errorf("it lasts for %v", left)
			}
		}
		if p.local() {
			t.Error("a lease that was extended is retained")
		}
		if err := inside.Extend(ctx, time.Second); !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), "ttl 1s") {
			t.Errorf("Extend to less, of a lease that another reader shares: %v", err)
		}
		if left := time.Until(inside2.Deadline()); left < 59*time.Second {
			t.Errorf("another reader's lease was shortened to %v", left)
		}
		p.release(inside)
		if err := inside.Extend(ctx, time.Minute); !errors.Is(err, lockkeeper.ErrReleased) {
			t.Errorf("Extend of a lease that was released: %v", err)
		}
		p.must(inside2.Extend(ctx, time.Second)) // it is alone
		if left := time.Until(inside2.Deadline()); left > time.Second {
			t.Errorf("it lasts for %v", left)
		}
		time.Sleep(time.Minute)
		p.must(inside2.Err()) // it is renewed
		p.release(inside2)
		if holders, err := p.Holders(ctx); err != nil || len(holders) != 0 {
			t.Errorf("holders: %v, %v", holders, err)
		}
	})
}

func TestRetainRefuses(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		for _, o := range []rwlock.Options{{NoRenewal: true}, {MaxLifetime: time.Hour}} {
			o.Retain = true
			if _, err := rwlock.New(p.Keeper, "x", &o); !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		inside := p.retains()
		if _, err := other.Adopt(ctx, inside.Token()); !errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("Adopt: %v", err)
		}
		if _, err := p.Downgrade(ctx, inside); !errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("Downgrade: %v", err)
		}
		if _, err := other.Upgrade(ctx, inside); !errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("Upgrade of another keeper: %v", err)
		}
		p.release(inside)
	})
}

func TestRetainHooks(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		p.release(p.retains())
		p.events = nil
		p.release(p.reads())
		other.release(<-other.writes())
		synctest.Wait()
		if got := fmt.Sprint(p.events); got != "[start true done true released true recalled false]" {
			t.Errorf("events: %s", got)
		}
	})
}

// TestStaleSubscriptionIsReplacedAfterLostRecall checks that a subscription on which a recall did not come is replaced, although
// nobody was inside, so that the next recall comes.
func TestStaleSubscriptionIsReplacedAfterLostRecall(t *testing.T) {
	retaining(t, func(_ *embedded.Server, p, other *retainer) {
		for _, stale := range []bool{true, false} {
			p.release(p.reads()) // it subscribes
			time.Sleep(time.Second)
			p.release(p.retains())
			if stale {
				p.net.BlackholeSubscriptions()
			}
			began := time.Now()
			other.release(<-other.writes())
			if d := time.Since(began); !stale && d > 0 || d > retainedTTL/3 {
				t.Errorf("stale %t: the writer waited for %v", stale, d)
			}
			time.Sleep(time.Minute)
		}
	})
}
