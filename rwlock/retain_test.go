package rwlock_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

var ctx = context.Background()

// retainer is a process of a test of Options.Retain.
type retainer struct {
	*retaining.Process
	*rwlock.Lock
}

// newRetaining returns a lock whose reads a process may grant inside.
func newRetaining(k *lockkeeper.Keeper, o retaining.Options) (retaining.Lock, error) {
	l, err := rwlock.New(k, "x", &rwlock.Options{Retain: o.Retain, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
	return retaining.Lock{Inside: l.RLock, Alone: l.Lock, TryAlone: l.TryLock, Do: l.DoRead, Adopt: l.Adopt, Kind: rwlock.Kind}, err
}

// retains runs a test with two processes in virtual time. The first retains its leases.
func retains(t *testing.T, test func(s *embedded.Server, p, other *retainer)) {
	t.Helper()
	retaining.Run(t, newRetaining, func(s *embedded.Server, p, other *retaining.Process) {
		retains := must.Get(rwlock.New(p.Keeper, "x", &rwlock.Options{Retain: true}))(t)
		test(s, &retainer{p, retains}, &retainer{other, must.Get(rwlock.New(other.Keeper, "x", nil))(t)})
	})
}

func TestRetainedReads(t *testing.T) { retaining.Test(t, newRetaining) }

func TestNothingIsGrantedInsideWithoutSubscription(t *testing.T) {
	retains(t, func(s *embedded.Server, p, _ *retainer) {
		inside := p.Retained()
		p.Net.Down()
		synctest.Wait()
		check.That(t, !p.LocalNow(), "granted inside without a subscription")
		p.Net.Restore()
		p.Net.Break("evalsha", 1000, faultnet.LoseRequest)
		for subscribed := 0; subscribed == 0; { // the new subscription is acknowledged
			time.Sleep(time.Millisecond)
			for _, n := range s.Mini.PubSubNumSub("lock:wake:" + p.ID()) {
				subscribed = n
			}
		}
		synctest.Wait()
		check.That(t, !p.LocalNow(), "granted inside before the server has said that the lease was not recalled meanwhile")
		p.Net.Restore()
		time.Sleep(2 * time.Second)
		check.That(t, inside.Err() == nil, "the lease is lost with the subscription")
		check.That(t, p.Local(), "not granted inside with a new subscription")
		p.Leave(inside)
	})
}

func TestUpgradeOfRetainedRead(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, other *retainer) {
		p.Leave(must.Get(p.TryRLock(ctx))(t)) // nothing is retained yet
		inside, inside2 := p.Retained(), must.Get(p.TryRLock(ctx))(t)
		check.That(t, inside.Token() == inside2.Token(), "two reads have the leases %s and %s", inside.Token(), inside2.Token())
		check.Is(t, check.ErrorOf(p.Downgrade(ctx, inside)), lockkeeper.ErrInvalid, "the error")
		check.Is(t, check.ErrorOf(other.Upgrade(ctx, inside)), lockkeeper.ErrInvalid, "the error")
		work := inside.Context(ctx)
		upgraded := make(chan *lockkeeper.Lease, 1)
		go func() {
			l, err := p.Upgrade(ctx, inside)
			must.Report(t, err)
			upgraded <- l
		}()
		must.That(t, !retaining.IsGranted(upgraded), "upgraded with another reader inside")
		if _, err := p.Upgrade(ctx, inside2); !errors.Is(err, rwlock.ErrUpgradeConflict) || inside2.Err() != nil {
			t.Errorf("a second upgrade: %v, %v", err, inside2.Err())
		}
		p.Leave(inside2)
		must.That(t, retaining.IsGranted(upgraded), "not upgraded although nobody else is inside")
		w := <-upgraded
		if !errors.Is(inside.Err(), lockkeeper.ErrReleased) || !errors.Is(context.Cause(work), lockkeeper.ErrReleased) || w.Fence() <= inside.Fence() {
			t.Errorf("%v, %v, fence %d after %d", inside.Err(), context.Cause(work), w.Fence(), inside.Fence())
		}
		check.Is(t, check.ErrorOf(other.TryRLock(ctx)), lockkeeper.ErrNotAcquired, "the error")
		p.Leave(must.Get(p.Downgrade(ctx, w))(t))
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
			check.That(t, errors.Is(err, lockkeeper.ErrNotAcquired) && errors.Is(err, context.DeadlineExceeded) && inside.Err() == nil,
				"%v, %v", err, inside.Err())
			time.Sleep(time.Minute) // it is held as before
			must.Report(t, inside.Err())
			other.Must(inside2.Release(ctx))
			p.Leave(must.Get(p.Upgrade(ctx, inside))(t))
			time.Sleep(time.Minute)
		}
	})
}

func TestExtendOfRetainedRead(t *testing.T) {
	retains(t, func(_ *embedded.Server, p, _ *retainer) {
		inside, inside2 := p.Retained(), p.Enter()
		p.Must(inside.Extend(ctx, time.Minute))
		for _, l := range []*lockkeeper.Lease{inside, inside2} {
			left := time.Until(l.Deadline())
			check.That(t, left >= 59*time.Second, "it lasts for %v", left)
		}
		check.That(t, !p.Local(), "a lease that was extended is retained")
		if err := inside.Extend(ctx, time.Second); !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), "ttl 1s") {
			t.Errorf("Extend to less, of a lease that another reader shares: %v", err)
		}
		if left := time.Until(inside2.Deadline()); left < 59*time.Second {
			t.Errorf("another reader's lease was shortened to %v", left)
		}
		p.Leave(inside)
		check.Is(t, inside.Extend(ctx, time.Minute), lockkeeper.ErrReleased, "the error")
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

// TestRetainCostsContinuousWriterATenth lets two processes read all the time and retain leases when they may, while another one writes
// again and again.
func TestRetainCostsContinuousWriterATenth(t *testing.T) {
	const length, rtt, pause = time.Second, time.Millisecond, 2 * time.Millisecond
	writes := map[bool]int{}
	for _, retain := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := lockkeepertest.New(t)
			var recorder lockkeepertest.Recorder
			open := func(retain bool) *rwlock.Lock {
				k := s.Keeper(t, &lockkeeper.Options{Hooks: recorder.Hooks()})
				return must.Get(rwlock.New(k, "x", &rwlock.Options{Retain: retain}))(t)
			}
			writer := open(false)
			s.SlowAnswers(rtt)
			start := time.Now()
			var readers sync.WaitGroup
			for range 2 {
				l := open(retain)
				readers.Go(func() {
					for time.Since(start) < length {
						lease, err := l.RLock(ctx)
						if err != nil {
							t.Error(err)
							return
						}
						time.Sleep(100 * time.Microsecond)
						must.Report(t, lease.Release(ctx))
					}
				})
			}
			for time.Since(start) < length {
				must.OK(t, must.Get(writer.Lock(ctx))(t).Release(ctx))
				writes[retain]++
				time.Sleep(pause)
			}
			readers.Wait()
			s.Restore()
			if retain {
				recorder.Require(t, "Recalled", "x")
			}
		})
	}
	check.That(t, writes[true] >= writes[false]*9/10, "%d writes with Retain, %d without", writes[true], writes[false])
}
