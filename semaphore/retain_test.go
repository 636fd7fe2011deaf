package semaphore_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/retaining"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// ofLimit returns what opens a semaphore of so many permits, which a process may retain.
func ofLimit(limit int) retaining.New {
	return func(k *lockkeeper.Keeper, o retaining.Options) (retaining.Lock, error) {
		s, err := semaphore.New(k, "x", limit, &semaphore.Options{Retain: o.Retain, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
		return retaining.Lock{
			Inside: s.Acquire, Alone: s.Acquire, TryAlone: s.TryAcquire, Do: s.Do, Adopt: s.Adopt, Kind: semaphore.Kind, Turns: true,
		}, err
	}
}

// A semaphore of one permit is a lock with one holder at a time.
func TestRetainedSemaphore(t *testing.T) { retaining.Test(t, ofLimit(1)) }

// retainer is a process of a test of Options.Retain.
type retainer struct {
	*retaining.Process
	*semaphore.Semaphore
	t *testing.T
}

// retains runs a test in virtual time with two processes that use a semaphore. The first retains permits.
func retains(t *testing.T, limit int, test func(s *embedded.Server, p, other *retainer)) {
	t.Helper()
	retaining.Run(t, ofLimit(limit), func(s *embedded.Server, p, other *retaining.Process) {
		kept := must.Get(semaphore.New(p.Keeper, "x", limit, &semaphore.Options{Retain: true}))(s)
		test(s, &retainer{p, kept, s.T}, &retainer{other, must.Get(semaphore.New(other.Keeper, "x", limit, nil))(s), s.T})
	})
}

// hold acquires n permits.
func (p *retainer) hold(n int) *lockkeeper.Lease {
	p.t.Helper()
	return must.Get(p.AcquireN(context.Background(), n))(p.t)
}

// fill makes the process retain so many leases of one permit.
func (p *retainer) fill(leases int) {
	p.t.Helper()
	p.Leave(p.Retained())
	var all []*lockkeeper.Lease
	for range leases {
		all = append(all, p.hold(1))
	}
	for _, l := range all {
		p.Leave(l)
	}
}

// refuses checks that a try to acquire a permit is refused.
func (p *retainer) refuses(what string) {
	p.t.Helper()
	check.Is(p.t, check.ErrorOf(p.TryAcquire(context.Background())), lockkeeper.ErrNotAcquired, "%s", what)
}

// waits acquires n permits in the background.
func (p *retainer) waits(ctx context.Context, n int) (granted chan *lockkeeper.Lease, failed chan error) {
	granted, failed = make(chan *lockkeeper.Lease, 1), make(chan error, 1)
	go func() {
		l, err := p.AcquireN(ctx, n)
		if err != nil {
			failed <- err
			return
		}
		granted <- l
	}()
	synctest.Wait()
	return granted, failed
}

func TestRetainedPermitsAreServedInOrder(t *testing.T) {
	retains(t, 2, func(s *embedded.Server, p, _ *retainer) {
		p.fill(2)
		first, second := p.hold(1), p.hold(1)
		a, _ := p.waits(context.Background(), 1)
		cancelled, cancel := context.WithCancelCause(context.Background())
		b, gaveUp := p.waits(cancelled, 1)
		c, _ := p.waits(context.Background(), 1)
		if n := p.Scripts(func() {
			p.Leave(second)
			synctest.Wait()
			check.That(s, len(a) == 1 && len(b)+len(c) == 0, "after one was released: %d, %d, %d", len(a), len(b), len(c))
			p.refuses("a try while others wait")
			why := errors.New("enough")
			cancel(why)
			if err := <-gaveUp; !errors.Is(err, lockkeeper.ErrNotAcquired) || !errors.Is(err, why) && !errors.Is(err, context.Canceled) {
				s.Errorf("a caller that gives up: %v", err)
			}
			p.Leave(first)
			p.Leave(<-c)
			p.Leave(<-a)
		}); n != 0 {
			s.Errorf("%d scripts", n)
		}
	})
}

// A caller that wants several permits gets them although the process retains single ones, and others do not pass it.
func TestRetainedPermitsOfOtherSizes(t *testing.T) {
	retains(t, 4, func(s *embedded.Server, p, other *retainer) {
		p.fill(4)
		p.Leave(p.hold(3))
		busy := p.hold(3)
		several, _ := p.waits(context.Background(), 4)
		single, _ := p.waits(context.Background(), 1)
		time.Sleep(time.Second)
		must.That(s, len(several)+len(single) == 0, "granted beside three of four")
		p.Leave(busy)
		synctest.Wait()
		must.That(s, len(several) == 1 && len(single) == 0, "of four permits, and then one: %d, %d", len(several), len(single))
		p.Leave(<-several)
		p.Leave(<-single)
		p.Leave(p.hold(4))
		four, _ := other.waits(context.Background(), 4)
		other.Leave(<-four)
	})
}

// A try finds what the process keeps and nobody uses, also in leases of another size.
func TestRetainedPermitsTriedInOtherSizes(t *testing.T) {
	retains(t, 4, func(s *embedded.Server, p, _ *retainer) {
		p.fill(4)
		for _, n := range []int{4, 1, 3} {
			p.Leave(must.Get(p.TryAcquireN(s.Context(), n))(s))
		}
	})
}

func TestRetainedPermitsAreRecalled(t *testing.T) {
	retains(t, 3, func(s *embedded.Server, p, other *retainer) {
		p.fill(3)
		inside := p.hold(1)
		granted, _ := other.waits(context.Background(), 2) // the two that nobody uses
		must.That(s, len(granted) == 1, "another process waits for permits that nobody uses")
		two := <-granted
		third, _ := other.waits(context.Background(), 1)
		local, _ := p.waits(context.Background(), 1) // behind it
		must.That(s, len(third)+len(local) == 0, "more than three permits")
		p.Leave(inside)
		synctest.Wait()
		must.That(s, len(third) == 1 && len(local) == 0,
			"after the permit inside was released: %d in the other process, %d in this one", len(third), len(local))
		other.Leave(two)
		synctest.Wait()
		p.Leave(<-local)
		other.Leave(<-third)
		time.Sleep(time.Minute)
		p.fill(3)
		check.That(s, p.Local(), "permits are not retained again")
	})
}

func TestRetainedPermitsLoweredLimit(t *testing.T) {
	retains(t, 3, func(s *embedded.Server, p, other *retainer) {
		p.fill(3)
		a, b, c := p.hold(1), p.hold(1), p.hold(1)
		must.OK(s, other.SetLimit(s.Context(), 1))
		synctest.Wait()
		p.Leave(a)
		p.Leave(b)
		synctest.Wait()
		p.refuses("beside one of one")
		p.Leave(c)
		synctest.Wait()
		p.Leave(p.hold(1))
		check.Is(s, check.ErrorOf(p.TryAcquireN(s.Context(), 2)), semaphore.ErrAboveLimit, "the error")
		must.OK(s, other.SetLimit(s.Context(), 3))
		p.Leave(p.hold(3))
	})
}

// A process keeps no more permits than its own limit, under a higher one that another process has set; and gives up what exceeds a lower
// one.
func TestRetainedPermitsLimitsThatDiffer(t *testing.T) {
	retains(t, 3, func(s *embedded.Server, p, other *retainer) {
		p.fill(3)
		must.OK(s, other.SetLimit(s.Context(), 5))
		a := []*lockkeeper.Lease{p.hold(1), p.hold(1), p.hold(1)}
		n := p.Scripts(func() { p.refuses("beyond its own limit") })
		check.That(s, n == 0, "%d calls of the server for it", n)
		for _, l := range a[1:] {
			p.Leave(l)
		}
		other.Semaphore = must.Get(semaphore.New(other.Keeper, "x", 1, nil))(s)
		granted, _ := other.waits(context.Background(), 1)
		must.That(s, len(granted) == 0, "granted beside one of one")
		p.Leave(a[0])
		other.Leave(<-granted)
	})
}

// TestTryAfterOwnRelease releases leases that the process does not retain, since it cannot subscribe: when Release has returned, the permit is
// free for the process as well.
func TestTryAfterOwnRelease(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		net := s.Network()
		net.Break("\r\nsubscribe\r\n", math.MaxInt, faultnet.LoseRequest)
		rdb := redis.NewClient(net.Options(time.Second))
		defer func() { _ = rdb.Close() }()
		k := must.Get(lockkeeper.New(rdb, nil))(t)
		defer func() { _ = k.Close() }()
		x := must.Get(semaphore.New(k, "x", 1, &semaphore.Options{Retain: true}))(t)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for range 300 {
			h, err := x.TryAcquire(ctx)
			must.That(t, err == nil, "of a semaphore that nobody else uses: %v", err)
			must.OK(t, h.Release(ctx))
		}
	})
}
