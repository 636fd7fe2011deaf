package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// pair returns a limiter of one name in each of two processes: ten permits a second.
func pair(t *testing.T) (s *lockkeepertest.Server, a, b *ratelimit.Limiter) {
	t.Helper()
	s = lockkeepertest.New(t)
	open := func() *ratelimit.Limiter {
		return must.Get(ratelimit.New(s.Keeper(t, nil), "api", 10, time.Second, nil))(t)
	}
	return s, open(), open()
}

func requireAvailable(t *testing.T, l *ratelimit.Limiter, want int) {
	t.Helper()
	if n, err := l.Available(t.Context()); n != want || err != nil {
		t.Fatalf("%d permits are available, %v; want %d", n, err, want)
	}
}

func requirePause(t *testing.T, l *ratelimit.Limiter, d time.Duration) {
	t.Helper()
	must.OK(t, l.Pause(t.Context(), d))
}

func TestPauseHoldsBackAllProcesses(t *testing.T) {
	// In a minute the first permit has returned.
	for pause, available := range map[time.Duration]int{time.Millisecond: 8, 300 * time.Millisecond: 8, time.Minute: 9} {
		synctest.Test(t, func(t *testing.T) {
			_, a, b := pair(t)
			must.OK(t, b.Wait(t.Context()))
			start := time.Now()
			requirePause(t, a, pause)
			r, err := b.Allow(t.Context())
			if err != nil || r.Allowed || r.Remaining != 0 || r.RetryAfter != pause || r.ResetAfter < pause {
				t.Errorf("%+v, %v; want a refusal for %v", r, err, pause)
			}
			requireAvailable(t, b, 0)
			ctx, cancel := context.WithTimeout(t.Context(), pause-time.Second)
			defer cancel()
			var limited *ratelimit.LimitedError
			if err := b.Wait(ctx); pause > time.Second && (!errors.As(err, &limited) || limited.RetryAfter != pause || time.Since(start) > 0) {
				t.Errorf("%v after %v, want a LimitedError of %v at once", err, time.Since(start), pause)
			}
			must.OK(t, b.Wait(t.Context()))
			if d := time.Since(start); d < pause || d > pause+100*time.Millisecond {
				t.Errorf("a permit came after %v, the pause is %v", d, pause)
			}
			requireAvailable(t, a, available)
		})
	}
}

// TestWaitersKeepOrderInPause: those that waited before the pause, and those that came in it.
func TestWaitersKeepOrderInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		must.OK(t, a.WaitN(t.Context(), 10))
		start := time.Now()
		served := make(chan int, 3)
		for i, l := range []*ratelimit.Limiter{a, b, a} {
			if i == 1 {
				requirePause(t, b, time.Minute)
			}
			go func() {
				must.Report(t, l.WaitN(t.Context(), 10))
				if d := time.Since(start); d < time.Minute+time.Duration(i)*time.Second {
					t.Errorf("waiter %d was served after %v", i, d)
				}
				served <- i
			}()
			synctest.Wait()
		}
		for want := range 3 {
			if got := <-served; got != want {
				t.Errorf("waiter %d was served, want %d", got, want)
			}
		}
	})
}

func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b := pair(t)
		requirePause(t, a, ratelimit.MaxPause)
		requirePause(t, b, time.Second) // a longer one stays
		start := time.Now()
		done := make(chan error)
		go func() { done <- b.Wait(t.Context()) }()
		time.Sleep(time.Hour)
		select {
		case err := <-done:
			t.Fatalf("Wait returned in the pause: %v", err)
		default:
		}
		must.OK(t, a.Resume(t.Context()))
		must.OK(t, <-done)
		if d := time.Since(start); d > time.Hour+100*time.Millisecond {
			t.Errorf("the waiter was served %v after Resume", d-time.Hour)
		}
		must.Report(t, a.Resume(t.Context())) // there is none
	})
}

func TestPauseKeepsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		a := must.Get(ratelimit.NewConcurrent(s.Keeper(t, nil), "api", 10, time.Second, 2, nil))(t)
		b := must.Get(ratelimit.NewConcurrent(s.Keeper(t, nil), "api", 10, time.Second, 2, nil))(t)
		lease := must.Get(a.Acquire(t.Context()))(t)
		must.OK(t, b.Pause(t.Context(), 10*time.Minute))
		time.Sleep(5 * time.Minute) // ten ttls
		if err := lease.Err(); err != nil {
			t.Errorf("the lease ended in the pause: %v", err)
		}
		var limited *ratelimit.LimitedError
		if _, err := b.TryAcquire(t.Context()); !errors.As(err, &limited) || limited.RetryAfter > 5*time.Minute || limited.RetryAfter < 299*time.Second {
			t.Errorf("%v, want a LimitedError of 5m", err)
		}
		must.Report(t, lease.Release(t.Context()))
	})
}

func TestPauseBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _ := pair(t)
		for _, d := range []time.Duration{-1, 0, time.Millisecond - 1, ratelimit.MaxPause + 1} {
			err := a.Pause(t.Context(), d)
			if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), d.String()) {
				t.Errorf("%v: %v", d, err)
			}
		}
		requireAvailable(t, a, 10)
		requirePause(t, a, time.Millisecond+1) // rounded up
		if r, err := a.Allow(t.Context()); err != nil || r.RetryAfter != 2*time.Millisecond {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestPauseWithoutReply: what may have been done is not done again later.
func TestPauseWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, a, _ := pair(t)
		requireAvailable(t, a, 10)
		s.Unreachable()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		must.Match(t, a.Pause(ctx, time.Hour), lockkeeper.ErrUnavailable)
		s.Restore()
		time.Sleep(time.Minute)
		requireAvailable(t, a, 10)
	})
}
