package rwlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

const retainedTTL = retaining.TTL

var ctx = context.Background()

// retainer is a process of a test of Options.Retain.
type retainer struct {
	*retaining.Process
	*rwlock.Lock
}

// retains runs a test with two processes in virtual time. The first retains its leases.
func retains(t *testing.T, test func(s *embedded.Server, p, other *retainer)) {
	t.Helper()
	var locks []*rwlock.Lock
	retaining.Run(t, func(k *lockkeeper.Keeper, retain bool) (retaining.Lock, error) {
		l, err := rwlock.New(k, "x", &rwlock.Options{Retain: retain})
		locks = append(locks, l)
		return retaining.Lock{Inside: l.RLock, Alone: l.Lock, TryAlone: l.TryLock}, err
	}, func(s *embedded.Server, p, other *retaining.Process) {
		test(s, &retainer{p, locks[0]}, &retainer{other, locks[1]})
	})
}

func TestRetainedReads(t *testing.T) {
	retaining.Test(t, func(k *lockkeeper.Keeper, retain bool) (retaining.Lock, error) {
		l, err := rwlock.New(k, "x", &rwlock.Options{Retain: retain})
		return retaining.Lock{Inside: l.RLock, Alone: l.Lock, TryAlone: l.TryLock}, err
	})
}

func TestRetainedReadsShareOneLease(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		first := p.Retained()
		var leases []*lockkeeper.Lease
		if n := p.Scripts(func() {
			for range 100 {
				leases = append(leases, p.Enter())
			}
		}); n != 0 {
			t.Errorf("100 reads took %d scripts", n)
		}
		holders, err := other.Holders(ctx)
		p.Must(err)
		if len(holders) != 1 || holders[0].Token != first.Token() || holders[0].Fence != first.Fence() {
			t.Errorf("holders: %+v; want one, %s with fence %d", holders, first.Token(), first.Fence())
		}
		read := leases[0]
		work := read.Context(ctx)
		if read.Token() != first.Token() || read.Fence() != first.Fence() || !read.Deadline().Equal(first.Deadline()) || read.Name() != "x" || read.Err() != nil {
			t.Errorf("%s, fence %d, until %v, %v", read.Token(), read.Fence(), read.Deadline(), read.Err())
		}
		p.Leave(read)
		p.Leave(read)
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
		p.Must(p.DoRead(ctx, func(ctx context.Context, fence uint64) error {
			if fence != first.Fence() {
				t.Errorf("DoRead has fence %d", fence)
			}
			return ctx.Err()
		}))
	})
}

func TestRetainedLeaseIsRecalledByWriter(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.Retained()
		inside2 := p.Enter()
		began := time.Now()
		write := other.Waits()
		if retaining.IsGranted(write) {
			t.Fatal("a writer holds the lock with readers inside")
		}
		late := make(chan *lockkeeper.Lease, 1)
		go func() { late <- p.Enter() }()
		synctest.Wait()
		if len(late) != 0 {
			t.Fatal("a reader passes a writer that waits")
		}
		p.Leave(inside)
		if retaining.IsGranted(write) {
			t.Fatal("a writer holds the lock with a reader inside")
		}
		p.Leave(inside2)
		if !retaining.IsGranted(write) || time.Since(began) != 0 {
			t.Fatalf("the writer waits after the last reader has left, %v", time.Since(began))
		}
		l := <-write
		if l.Fence() <= inside.Fence() {
			t.Error("the fence does not rise")
		}
		other.Leave(l)
		p.Leave(<-late)
		if p.Local() {
			t.Error("retained again at once after a recall")
		}
		time.Sleep(time.Minute)
		for range 20 {
			p.Leave(p.Enter())
		}
		if !p.Local() {
			t.Error("not retained again")
		}
	})
}

func TestLostRecall(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		inside := p.Retained()
		p.Net.BlackholeSubscriptions()
		write := other.Waits()
		if !p.Local() {
			t.Error("a recall has come")
		}
		began := time.Now()
		for !p.Local() || !retaining.IsGranted(write) {
			if time.Since(began) > retainedTTL/3+time.Second {
				t.Fatal("the lease is retained although a renewal has told that it was recalled")
			}
			time.Sleep(10 * time.Millisecond)
			if inside != nil && !p.LocalNow() {
				p.Leave(inside)
				inside = nil
			}
			if inside == nil && retaining.IsGranted(write) {
				break
			}
		}
		other.Leave(<-write)
	})
}

func TestNothingIsGrantedInsideWithoutSubscription(t *testing.T) {
	retains(t, func(s *embedded.Server, p, _ *retainer) {
		inside := p.Retained()
		p.Net.Down()
		synctest.Wait()
		if p.LocalNow() {
			t.Error("granted inside without a subscription")
		}
		p.Net.Restore()
		p.Net.Break("evalsha", 1000, faultnet.LoseRequest)
		for subscribed := 0; subscribed == 0; { // the new subscription is acknowledged
			time.Sleep(time.Millisecond)
			for _, n := range s.Mini.PubSubNumSub("lock:wake:" + p.ID()) {
				subscribed = n
			}
		}
		synctest.Wait()
		if p.LocalNow() {
			t.Error("granted inside before the server has said that the lease was not recalled meanwhile")
		}
		p.Net.Restore()
		time.Sleep(2 * time.Second)
		if inside.Err() != nil {
			t.Error("the lease is lost with the subscription")
		}
		if !p.Local() {
			t.Error("not granted inside with a new subscription")
		}
		p.Leave(inside)
	})
}

func TestUpgradeOfRetainedRead(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		inside, inside2 := p.Retained(), p.Enter()
		work := inside.Context(ctx)
		upgraded := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, err := p.Upgrade(ctx, inside)
			if err != nil {
				t.Error(err)
			}
			upgraded <- l
		}()
		if retaining.IsGranted(upgraded) {
			t.Fatal("upgraded with another reader inside")
		}
		if _, err := p.Upgrade(ctx, inside2); !errors.Is(err, rwlock.ErrUpgradeConflict) || inside2.Err() != nil {
			t.Errorf("a second upgrade: %v, %v", err, inside2.Err())
		}
		p.Leave(inside2)
		if !retaining.IsGranted(upgraded) {
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
		p.Must(err)
		p.Leave(read)
		p.Must(inside.Release(ctx))
	})
}

func TestUpgradeOfRetainedReadGivesUp(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		for _, elsewhere := range []bool{false, true} { // where the other reader is
			inside, inside2 := p.Retained(), p.Enter()
			if elsewhere {
				p.Leave(inside2)
				inside2 = other.Enter()
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
			other.Must(inside2.Release(ctx))
			w, err := p.Upgrade(ctx, inside)
			p.Must(err)
			p.Leave(w)
			time.Sleep(time.Minute)
		}
	})
}

func TestExtendOfRetainedRead(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, _ *retainer) {
		inside, inside2 := p.Retained(), p.Enter()
		p.Must(inside.Extend(ctx, time.Minute))
		for _, l := range []*lockkeeper.Lease{inside, inside2} {
			if left := time.Until(l.Deadline()); left < 59*time.Second {
				t.Errorf("it lasts for %v", left)
			}
		}
		if p.Local() {
			t.Error("a lease that was extended is retained")
		}
		if err := inside.Extend(ctx, time.Second); !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), "ttl 1s") {
			t.Errorf("Extend to less, of a lease that another reader shares: %v", err)
		}
		if left := time.Until(inside2.Deadline()); left < 59*time.Second {
			t.Errorf("another reader's lease was shortened to %v", left)
		}
		p.Leave(inside)
		if err := inside.Extend(ctx, time.Minute); !errors.Is(err, lockkeeper.ErrReleased) {
			t.Errorf("Extend of a lease that was released: %v", err)
		}
		p.Must(inside2.Extend(ctx, time.Second)) // it is alone
		if left := time.Until(inside2.Deadline()); left > time.Second {
			t.Errorf("it lasts for %v", left)
		}
		time.Sleep(time.Minute)
		p.Must(inside2.Err()) // it is renewed
		p.Leave(inside2)
		if holders, err := p.Holders(ctx); err != nil || len(holders) != 0 {
			t.Errorf("holders: %v, %v", holders, err)
		}
	})
}

func TestRetainRefuses(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		for _, o := range []rwlock.Options{{NoRenewal: true}, {MaxLifetime: time.Hour}} {
			o.Retain = true
			if _, err := rwlock.New(p.Keeper, "x", &o); !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("%+v: %v", o, err)
			}
		}
		inside := p.Retained()
		if _, err := other.Adopt(ctx, inside.Token()); !errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("Adopt: %v", err)
		}
		if _, err := p.Downgrade(ctx, inside); !errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("Downgrade: %v", err)
		}
		if _, err := other.Upgrade(ctx, inside); !errors.Is(err, lockkeeper.ErrInvalid) {
			t.Errorf("Upgrade of another keeper: %v", err)
		}
		p.Leave(inside)
	})
}

func TestRetainHooks(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		p.Leave(p.Retained())
		p.Events()
		p.Leave(p.Enter())
		other.Leave(<-other.Waits())
		synctest.Wait()
		if got := p.Events(); got != "[start true done true released true recalled false]" {
			t.Errorf("events: %s", got)
		}
	})
}

// TestStaleSubscriptionIsReplacedAfterLostRecall checks that a subscription on which a recall did not come is replaced, although
// nobody was inside, so that the next recall comes.
func TestStaleSubscriptionIsReplacedAfterLostRecall(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		for _, stale := range []bool{true, false} {
			p.Leave(p.Enter()) // it subscribes
			time.Sleep(time.Second)
			p.Leave(p.Retained())
			if stale {
				p.Net.BlackholeSubscriptions()
			}
			began := time.Now()
			other.Leave(<-other.Waits())
			if d := time.Since(began); !stale && d > 0 || d > retainedTTL/3 {
				t.Errorf("stale %t: the writer waited for %v", stale, d)
			}
			time.Sleep(time.Minute)
		}
	})
}
