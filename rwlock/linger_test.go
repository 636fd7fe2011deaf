package rwlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/lingering"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

var ctx = context.Background()

// lingerer is a process of a test of Options.Linger.
type lingerer struct {
	*lingering.Process
	*rwlock.Lock
}

func newLingering(k *lockkeeper.Keeper, o lingering.Options) (lingering.Lock, error) {
	l, err := rwlock.New(k, "x", &rwlock.Options{Linger: o.Linger, TTL: o.TTL, NoRenewal: o.NoRenewal})
	return lingering.Lock{Shared: l.RLock, Alone: l.Lock, TryAlone: l.TryLock, Do: l.DoRead, Adopt: l.Adopt, Kind: rwlock.Kind}, err
}

// lingers runs a test with two processes in virtual time. The first one's readers share a lease.
func lingers(t *testing.T, test func(s *embedded.Server, p, other *lingerer)) {
	t.Helper()
	lingering.Run(t, newLingering, func(s *embedded.Server, p, other *lingering.Process) {
		lock := must.Get(rwlock.New(p.Keeper, "x", &rwlock.Options{Linger: lingering.Linger}))(t)
		test(s, &lingerer{p, lock}, &lingerer{other, must.Get(rwlock.New(other.Keeper, "x", nil))(t)})
	})
}

func TestLinger(t *testing.T) { lingering.Test(t, newLingering) }

// TestWriterOfTheProcessEndsTheSharing: a writer waits for the readers inside, and for nobody who comes after it; without readers it waits for
// nobody.
func TestWriterOfTheProcessEndsTheSharing(t *testing.T) {
	lingers(t, func(_ *embedded.Server, p, _ *lingerer) {
		began := time.Now()
		p.Leave(p.Enter())
		p.Leave(must.Get(p.Lock.Lock(ctx))(t))
		p.Leave(p.Enter())
		p.Leave(must.Get(p.TryLock(ctx))(t))
		p.Leave(p.Enter())
		p.Must(p.DoWrite(ctx, func(context.Context, uint64) error { return nil }))
		check.That(t, time.Since(began) == 0, "writers waited for %v for a lease that nobody reads by", time.Since(began))

		inside := p.Enter()
		check.Is(t, check.ErrorOf(p.TryLock(ctx)), lockkeeper.ErrNotAcquired, "a try beside a reader")
		inside2 := p.Enter() // by another lease
		writing := p.Waits()
		reading := p.WaitsInside()
		must.That(t, !lingering.IsGranted(writing) && !lingering.IsGranted(reading), "a reader has passed a writer, or a writer reads with others")
		p.Leave(inside)
		p.Leave(inside2)
		must.That(t, lingering.IsGranted(writing) && !lingering.IsGranted(reading), "the writer waits although the readers have left")
		p.Leave(<-writing)
		p.Leave(<-reading)
		check.That(t, time.Since(began) == 0, "it took %v", time.Since(began))
		p.Leave(p.Enter())
		check.That(t, p.Local(), "reads are not shared any more after a writer")
	})
}

func TestUpgradeOfSharedRead(t *testing.T) {
	lingers(t, func(_ *embedded.Server, p, other *lingerer) {
		inside, inside2 := p.Enter(), must.Get(p.TryRLock(ctx))(t)
		check.That(t, inside.Token() == inside2.Token(), "two reads have the leases %s and %s", inside.Token(), inside2.Token())
		check.Is(t, p.Downgrade(ctx, inside), lockkeeper.ErrInvalid, "the error")
		check.Is(t, other.Upgrade(ctx, inside), lockkeeper.ErrInvalid, "the error")
		work, token, fence := inside.Context(ctx), inside.Token(), inside.Fence()
		upgraded := make(chan *lockkeeper.Lease, 1)
		go func() {
			must.Report(t, p.Upgrade(ctx, inside))
			upgraded <- inside
		}()
		must.That(t, !lingering.IsGranted(upgraded) && !p.Local(), "upgraded, or shared, with another reader inside")
		if err := p.Upgrade(ctx, inside2); !errors.Is(err, rwlock.ErrUpgradeConflict) || inside2.Err() != nil {
			t.Errorf("a second upgrade: %v, %v", err, inside2.Err())
		}
		check.Is(t, p.Upgrade(ctx, inside), lockkeeper.ErrInvalid, "of the same lease by another call")
		p.Leave(inside2)
		must.That(t, lingering.IsGranted(upgraded), "not upgraded although nobody else is inside")
		<-upgraded
		if inside.Err() != nil || work.Err() != nil || inside.Token() != token || inside.Fence() <= fence {
			t.Errorf("%v, %v, %q with fence %d after %q with %d", inside.Err(), work.Err(), inside.Token(), inside.Fence(), token, fence)
		}
		check.Is(t, check.ErrorOf(other.TryRLock(ctx)), lockkeeper.ErrNotAcquired, "the error")
		check.Is(t, check.ErrorOf(p.TryRLock(ctx)), lockkeeper.ErrNotAcquired, "the error in the same process")
		must.OK(t, p.Downgrade(ctx, inside))
		check.That(t, !p.Local(), "the lease is shared again")
		must.OK(t, p.Upgrade(ctx, inside))
		p.Leave(inside)
		other.Leave(must.Get(other.TryLock(ctx))(t))
	})
}

func TestUpgradeOfSharedReadGivesUp(t *testing.T) {
	lingers(t, func(_ *embedded.Server, p, other *lingerer) {
		for _, elsewhere := range []bool{false, true} { // where the other reader is
			inside, inside2 := p.Enter(), p.Enter()
			if elsewhere {
				p.Leave(inside2)
				inside2 = other.Enter()
			}
			brief, cancel := context.WithTimeout(ctx, time.Second)
			err := p.Upgrade(brief, inside)
			cancel()
			check.That(t, errors.Is(err, lockkeeper.ErrNotAcquired) && errors.Is(err, context.DeadlineExceeded) && inside.Err() == nil,
				"%v, %v", err, inside.Err())
			time.Sleep(time.Minute) // it is held as before
			must.Report(t, inside.Err())
			other.Must(inside2.Release(ctx))
			must.OK(t, p.Upgrade(ctx, inside))
			p.Leave(inside)
			time.Sleep(time.Minute)
		}
		inside, inside2 := p.Enter(), p.Enter()
		upgrading := make(chan error, 1)
		go func() { upgrading <- p.Upgrade(ctx, inside) }()
		synctest.Wait()
		p.Leave(inside)
		check.Is(t, <-upgrading, lockkeeper.ErrReleased, "released meanwhile")
		p.Leave(inside2)
		other.Leave(must.Get(other.TryLock(ctx))(t))
	})
}
