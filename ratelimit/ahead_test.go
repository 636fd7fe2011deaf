package ratelimit_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// counted is a limiter of one process, and how many of its decisions were made inside, or by the server.
type counted struct {
	*ratelimit.Limiter
	keeper            *lockkeeper.Keeper
	inside, roundTrip atomic.Int64
}

// ahead returns limiters of processes that take permits ahead: so many in any second.
func ahead(t *testing.T, limit, processes int) (*lockkeepertest.Server, []*counted) {
	t.Helper()
	s := lockkeepertest.New(t)
	list := make([]*counted, processes)
	for i := range list {
		c := &counted{}
		c.keeper = s.Keeper(t, &lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
			if e.Local {
				c.inside.Add(1)
			} else {
				c.roundTrip.Add(1)
			}
		}}})
		c.Limiter = must.Get(ratelimit.New(c.keeper, "api", limit, time.Second, &ratelimit.Options{Ahead: true}))(t)
		list[i] = c
	}
	return s, list
}

func (c *counted) told() int64 { return c.inside.Load() + c.roundTrip.Load() }

// settling is how long a process may not know of what others have changed.
const settling = 50 * time.Millisecond

// allows returns how many of so many calls, one after the other, are allowed. The observer is told of each of them, and of nothing else.
func (c *counted) allows(t *testing.T, calls int) (n int) {
	t.Helper()
	before := c.told()
	defer func() {
		t.Helper()
		told := c.told() - before
		check.That(t, told == int64(calls), "the observer was told of %d calls, want %d", told, calls)
	}()
	for range calls {
		r := must.Get(c.Allow(t.Context()))(t)
		if r.Allowed {
			n++
		}
		if r.Limit == 0 || r.Remaining < 0 || r.Allowed == (r.Fence == 0) || !r.Allowed && (r.RetryAfter <= 0 || r.RetryAfter > time.Minute) {
			t.Fatalf("%+v", r)
		}
	}
	return n
}

// grants checks how many of so many calls are allowed.
func (c *counted) grants(t *testing.T, when string, calls, want int) {
	t.Helper()
	n := c.allows(t, calls)
	check.That(t, n == want, "%s: %d of %d calls were allowed, want %d", when, n, calls, want)
}

func TestAheadDecidesInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 1000, 1)
		l[0].grants(t, "at once", 1000, 1000)
		if n := l[0].inside.Load(); n < 980 {
			t.Errorf("%d of 1000 grants were decided inside", n)
		}
		l[0].grants(t, "above the limit", 1000, 0)
		if n := l[0].inside.Load(); n < 1970 {
			t.Errorf("%d of 2000 decisions were made inside", n)
		}
		time.Sleep(time.Second - 1)
		l[0].grants(t, "in the same window", 10, 0)
		time.Sleep(2 * settling)
		l[0].grants(t, "after a window and the time ahead", 1000, 1000)
	})
}

// TestAheadOfFewCalls: a process whose calls are rare takes nothing ahead, so that others get all of the limit.
func TestAheadOfFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 10, 2)
		for range 5 {
			must.That(t, l[0].allows(t, 1) == 1, "refused")
			time.Sleep(2 * settling)
		}
		l[1].grants(t, "in another process", 20, 5)
		n := l[0].inside.Load()
		check.That(t, n == 0, "%d were granted inside", n)
	})
}

// TestAheadForgetsAnswersUnderWay: what the server has granted before a pause, limit or resumption is known here is not used after it.
func TestAheadForgetsAnswersUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := ahead(t, 1000, 1)
		must.OK(t, l[0].Resume(t.Context())) // the server knows the script from now on
		l[0].allows(t, 50)
		time.Sleep(settling)
		const answer = 5 * time.Millisecond
		s.SlowAnswers(answer)
		resumed := make(chan error, 1)
		go func() { resumed <- l[0].Resume(t.Context()) }()
		time.Sleep(time.Millisecond)
		start := time.Now()
		r, err := l[0].Allow(t.Context())
		check.That(t, err == nil && r.Allowed, "%+v, %v", r, err)
		d := time.Since(start)
		check.That(t, d >= 2*answer, "granted after %v, by the answer that was under way when Resume returned", d)
		must.Report(t, <-resumed)
		s.Restore()
		l[0].allows(t, 100)
		synctest.Wait()                                        // nothing is being given back
		requireAvailable(t, l[0].Limiter, 1000-taken(t, l[0])) // the first answer's permits were given back
	})
}

// taken returns how many permits are taken of the window.
func taken(t *testing.T, l *counted) (n int) {
	t.Helper()
	for _, h := range must.Get(l.Holders(t.Context()))(t) {
		n += h.Permits
	}
	return n
}

// TestAheadPauseOfAnotherLimiter: a pause ends the blocks of all limiters of the name, whatever their settings.
func TestAheadPauseOfAnotherLimiter(t *testing.T) {
	type pauser interface {
		Pause(context.Context, time.Duration) error
	}
	for name, of := range map[string]func(*lockkeeper.Keeper) (pauser, error){
		"another limit": func(k *lockkeeper.Keeper) (pauser, error) {
			return ratelimit.New(k, "api", 500, time.Second, &ratelimit.Options{Ahead: true})
		},
		"without Ahead": func(k *lockkeeper.Keeper) (pauser, error) {
			return ratelimit.New(k, "api", 1000, time.Second, nil)
		},
		"concurrent": func(k *lockkeeper.Keeper) (pauser, error) {
			return ratelimit.NewConcurrent(k, "api", 1000, time.Second, 1, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, l := ahead(t, 1000, 1)
				l[0].grants(t, "at once", 100, 100)
				must.OK(t, must.Get(of(l[0].keeper))(t).Pause(t.Context(), time.Minute))
				l[0].grants(t, "in the pause", 10, 0)
			})
		})
	}
}

func TestAheadSetLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 100, 2)
		must.OK(t, l[0].SetLimit(t.Context(), 10))
		n := l[0].allows(t, 50) + l[1].allows(t, 50)
		check.That(t, n == 10, "%d of 10 were granted", n)
		r, err := l[1].Allow(t.Context())
		check.That(t, err == nil && r.Limit == 10, "%+v, %v", r, err)
		check.Is(t, check.ErrorOf(l[1].AllowN(t.Context(), 11)), ratelimit.ErrAboveLimit, "the error")
		must.OK(t, l[0].SetLimit(t.Context(), 100))
		l[0].grants(t, "after the limit was raised", 20, 20)
		time.Sleep(settling)
		l[1].grants(t, "by another process after the limit was raised", 20, 20)
	})
}

// TestAheadAboveLimit: a request that the limit in force does not allow fails alone, although others wait for the same answer.
func TestAheadAboveLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := ahead(t, 100, 2)
		l[0].allows(t, 50)
		must.OK(t, l[1].SetLimit(t.Context(), 10))
		time.Sleep(settling) // the first block is over, and the demand is known
		s.SlowAnswers(5 * time.Millisecond)
		failed := make(chan error, 1)
		go func() {
			_, err := l[0].AllowN(t.Context(), 12)
			failed <- err
		}()
		time.Sleep(time.Millisecond)
		if r, err := l[0].Allow(t.Context()); err != nil || r.Limit != 10 {
			t.Errorf("%+v, %v", r, err)
		}
		check.Is(t, <-failed, ratelimit.ErrAboveLimit, "the error")
	})
}

// TestAheadWaits: a caller who waits is queued at the server, and newcomers of its process do not pass it.
func TestAheadWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 20, 1)
		l[0].allows(t, 20)
		ctx := must.Within(t, 500*time.Millisecond)
		var limited *ratelimit.LimitedError
		if err := l[0].Wait(ctx); !errors.As(err, &limited) {
			t.Errorf("Wait with a short deadline: %v", err)
		}
		granted := make(chan error, 1)
		go func() { granted <- l[0].WaitN(t.Context(), 20) }()
		synctest.Wait()
		time.Sleep(time.Second)
		for {
			select {
			case err := <-granted:
				must.Report(t, err)
				return
			default:
			}
			n := l[0].allows(t, 1)
			must.That(t, n == 0, "a newcomer has passed a waiter")
			time.Sleep(time.Millisecond)
		}
	})
}

// TestAheadRefusalSaysWhen: a refusal that is made inside says as well when the call could be allowed, which the server has said. A call
// that waits then is one call to observers.
func TestAheadRefusalSaysWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 2, 1)
		l[0].grants(t, "at first", 2, 2)
		free := time.Now().Add(time.Second)
		for range 5 {
			r, err := l[0].Allow(t.Context())
			if at := time.Now().Add(r.RetryAfter); err != nil || r.Allowed || at.Before(free) || at.After(free.Add(2*settling)) {
				t.Errorf("%v before the next permit: %+v, %v", time.Until(free), r, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		check.That(t, l[0].inside.Load() != 0, "nothing was refused inside")
		before := l[0].told()
		must.Report(t, l[0].Wait(t.Context()))
		if told := l[0].told() - before; told != 1 {
			t.Errorf("the observer was told of %d calls, want 1", told)
		}
	})
}

// TestAheadKeepsTheQueue: no process takes a block past a waiter of another one, nor grants the rest of its own past one of its own.
func TestAheadKeepsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 20, 2)
		l[1].grants(t, "at first", 8, 8)
		n, before := 0, taken(t, l[0])
		for taken(t, l[0])-before <= n { // until there is a block, of which something is left
			n += l[0].allows(t, 1)
		}
		granted := make(chan error, 1)
		go func() { granted <- l[0].WaitN(t.Context(), 20) }()
		synctest.Wait()
		l[0].grants(t, "past a waiter of the process", 4, 0)
		time.Sleep(settling) // blocks are over
		l[1].grants(t, "past a waiter of another process", 8, 0)
		must.Report(t, <-granted)
	})
}

// TestAheadLimitsThatDiffer: of two processes with different limits each is granted by its own, and all together by the larger one.
func TestAheadLimitsThatDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := ahead(t, 20, 1)
		lower := must.Get(ratelimit.New(s.Keeper(t, nil), "api", 10, time.Second, &ratelimit.Options{Ahead: true}))(t)
		all := 0
		for range 40 {
			all += l[0].allows(t, 1)
			if r, err := lower.Allow(t.Context()); err != nil || r.Limit > 20 {
				t.Fatalf("%+v, %v", r, err)
			} else if r.Allowed {
				all++
			}
		}
		check.That(t, all >= 10 && all <= 20, "%d were granted under limits of 10 and 20", all)
	})
}

// TestAheadShowsBlocks: what a process has taken ahead is shown as taken by it. It is permits that return by the clock, so Break returns
// none, and the process goes on.
func TestAheadShowsBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 1000, 1)
		l[0].allows(t, 200)
		most, all := 0, 0
		for _, h := range must.Get(l[0].Holders(t.Context()))(t) {
			most, all = max(most, h.Permits), all+h.Permits
			check.That(t, h.ExpiresIn > 0 && h.ExpiresIn <= time.Second+settling+time.Millisecond, "%+v", h)
		}
		check.That(t, most >= 50 && all >= 200, "%d permits in all, %d at once", all, most)
		requireAvailable(t, l[0].Limiter, 1000-all)
		must.Get(admin.Break(t.Context(), l[0].keeper, ratelimit.Kind, "api", &admin.BreakOptions{All: true}))(t)
		requireAvailable(t, l[0].Limiter, 1000-all)
		l[0].grants(t, "after a break", 1000, 800)
	})
}

// TestAheadOutage: while the server does not answer, what was taken ahead is granted, for as long as it may be, and then nothing.
func TestAheadOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := ahead(t, 1000, 1)
		l[0].allows(t, 100)
		s.Unreachable()
		time.Sleep(settling)
		before := l[0].told()
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			r, err := l[0].Allow(ctx)
			check.That(t, errors.Is(err, lockkeeper.ErrUnavailable), "%+v, %v", r, err)
			cancel()
		}
		if told := l[0].told() - before; told != 5 {
			t.Errorf("the observer was told of %d calls that failed, want 5", told)
		}
		s.Restore()
		time.Sleep(10 * time.Second)
		l[0].grants(t, "after the outage", 1000, 1000)
		s.Flush(t)
		time.Sleep(settling)
		l[0].grants(t, "by a server that has lost its data", 1000, 1000)
	})
}

// TestAheadOfSlowServer: while answers take longer than a block may be used, the process asks for each call alone.
func TestAheadOfSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := ahead(t, 1000, 1)
		l[0].allows(t, 50)
		s.SlowAnswers(settling)
		start := time.Now()
		for range 8 {
			must.Get(l[0].AllowN(t.Context(), 50))(t) // so that a block is worth while
			l[0].allows(t, 1)
		}
		n := time.Since(start) / settling
		check.That(t, n <= 24, "%d round trips for 16 calls", n)
		s.Restore()
	})
}

func TestAheadEndedContextAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 1000, 1)
		l[0].allows(t, 100)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r, err := l[0].Allow(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", r, err)
		}
		must.OK(t, l[0].keeper.Close())
		if r, err := l[0].Allow(t.Context()); !errors.Is(err, lockkeeper.ErrClosed) {
			t.Errorf("%+v, %v", r, err)
		}
		check.Is(t, l[0].Wait(t.Context()), lockkeeper.ErrClosed, "the error")
	})
}

// TestAheadSharesByName: limiters of one name in one process use the same permits.
func TestAheadSharesByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l := ahead(t, 1000, 1)
		l[0].allows(t, 200)
		before := l[0].roundTrip.Load()
		for range 100 {
			other := must.Get(ratelimit.New(l[0].keeper, "api", 1000, time.Second, &ratelimit.Options{Ahead: true}))(t)
			r, err := other.Allow(t.Context())
			must.That(t, err == nil && r.Allowed, "%+v, %v", r, err)
		}
		n := l[0].roundTrip.Load() - before
		check.That(t, n <= 2, "%d round trips by other limiters of the name", n)
	})
}
