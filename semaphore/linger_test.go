package semaphore_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/lingering"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// ofLimit returns what opens a semaphore of so many permits.
func ofLimit(limit int) lingering.New {
	return func(k *lockkeeper.Keeper, o lingering.Options) (lingering.Lock, error) {
		s, err := semaphore.New(k, "x", limit, &semaphore.Options{Linger: o.Linger, TTL: o.TTL, NoRenewal: o.NoRenewal})
		return lingering.Lock{
			Shared: s.Acquire, Alone: s.Acquire, TryAlone: s.TryAcquire, Do: s.Do, Adopt: s.Adopt, Kind: semaphore.Kind, Turns: true,
		}, err
	}
}

// A semaphore of one permit is a lock with one holder at a time.
func TestLinger(t *testing.T) { lingering.Test(t, ofLimit(1)) }

// lingerer is a process of a test of Options.Linger.
type lingerer struct {
	*lingering.Process
	*semaphore.Semaphore
	t *testing.T
}

// lingers runs a test in virtual time with two processes that use a semaphore. The first one's has Linger.
func lingers(t *testing.T, limit int, test func(s *embedded.Server, p, other *lingerer)) {
	t.Helper()
	lingering.Run(t, ofLimit(limit), func(s *embedded.Server, p, other *lingering.Process) {
		sem := must.Get(semaphore.New(p.Keeper, "x", limit, &semaphore.Options{Linger: lingering.Linger}))(s)
		test(s, &lingerer{p, sem, s.T}, &lingerer{other, must.Get(semaphore.New(other.Keeper, "x", limit, nil))(s), s.T})
	})
}

// hold acquires n permits.
func (p *lingerer) hold(n int) *lockkeeper.Lease {
	p.t.Helper()
	return must.Get(p.AcquireN(context.Background(), n))(p.t)
}

// waits acquires n permits in the background.
func (p *lingerer) waits(n int) chan *lockkeeper.Lease {
	return p.InBackground(context.Background(), func(ctx context.Context) (*lockkeeper.Lease, error) { return p.AcquireN(ctx, n) })
}

// TestLingerPassesPermitsOfTheSameNumber: a lease goes to a caller who wants as many permits as it has.
func TestLingerPassesPermitsOfTheSameNumber(t *testing.T) {
	lingers(t, 6, func(s *embedded.Server, p, other *lingerer) {
		one, two, three := p.hold(1), p.hold(2), p.hold(3)
		for _, l := range []*lockkeeper.Lease{one, two, three} {
			p.Leave(l)
		}
		n := p.Scripts(func() {
			for range 10 {
				a, b := p.hold(3), p.hold(2)
				check.That(s, a.Token() == three.Token() && b.Token() == two.Token(), "permits of other leases")
				p.Leave(a)
				p.Leave(b)
			}
		})
		check.That(s, n == 0, "%d scripts", n)
		began := time.Now()
		other.Leave(<-other.waits(6))
		check.That(s, time.Since(began) == lingering.Linger, "another process waited for %v", time.Since(began))
	})
}

// TestLingerQueuedCallerOfTheProcessGoesFirst: what the process has and nobody uses goes to a caller of it that waits for more, and whoever comes
// after that caller is behind it.
func TestLingerQueuedCallerOfTheProcessGoesFirst(t *testing.T) {
	lingers(t, 4, func(s *embedded.Server, p, _ *lingerer) {
		idle, busy := p.hold(1), p.hold(3)
		p.Leave(idle)
		began := time.Now()
		several := p.waits(4)
		single := p.waits(1)
		must.That(s, !lingering.IsGranted(several) && !lingering.IsGranted(single), "granted beside three of four, or before a caller that came first")
		p.Leave(busy)
		must.That(s, lingering.IsGranted(several) && !lingering.IsGranted(single), "a lease lingers although a caller of the process waits for it")
		p.Leave(<-several)
		p.Leave(<-single)
		check.That(s, time.Since(began) == 0, "it took %v", time.Since(began))
		p.Leave(p.hold(1))
		check.That(s, p.Local(), "permits are not shared any more")
	})
}

// TestLingerTriesInOtherSizes: a try finds what the process has and nobody uses, also in leases of another size.
func TestLingerTriesInOtherSizes(t *testing.T) {
	lingers(t, 4, func(s *embedded.Server, p, _ *lingerer) {
		for _, n := range []int{2, 4, 1, 3, 4} {
			p.Leave(must.Get(p.TryAcquireN(s.Context(), n))(s))
		}
	})
}

func TestLingerAfterTheLimitIsLowered(t *testing.T) {
	lingers(t, 3, func(s *embedded.Server, p, other *lingerer) {
		a, b, c := p.hold(1), p.hold(1), p.hold(1)
		must.OK(s, other.SetLimit(s.Context(), 1))
		for _, l := range []*lockkeeper.Lease{a, b, c} {
			p.Leave(l)
		}
		time.Sleep(lingering.Linger)
		synctest.Wait()
		inside := p.hold(1)
		check.Is(s, check.ErrorOf(p.TryAcquire(s.Context())), lockkeeper.ErrNotAcquired, "beside one of one")
		check.Is(s, check.ErrorOf(p.TryAcquireN(s.Context(), 2)), semaphore.ErrAboveLimit, "the error")
		p.Leave(inside)
	})
}
