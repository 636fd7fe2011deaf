package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestExtendBeyondMetadataTTLKeepsLease checks a lease that is held or extended for longer than MetadataTTL. The metadata
// records that the lease was extended beyond the ttl in its token. If it expired before the lease, the next request
// would shorten the lease to the ttl in the token, as it does after the server's clock was set back.
func TestExtendBeyondMetadataTTLKeepsLease(t *testing.T) {
	for _, set := range []*lua.Set{lua.Mutex, lua.Fair, lua.RWLock} {
		subtest(t, set.Kind, func(s *fixture) {
			terms := Terms{}
			if set == lua.RWLock {
				terms.Flags = "w"
			}
			l := must.Get(s.Keeper.Lock(Spec{Scripts: set, Name: "x", TTL: ttl}))(s)
			h := must.Get(l.Try(context.Background(), terms))(s)
			const hours = 5 * time.Hour // longer than the metadata of an unused name is kept
			long := 10 * time.Minute
			must.OK(s, h.Extend(context.Background(), long))
			for began := time.Now(); time.Since(began) < 2*hours; time.Sleep(long / 20) {
				if long < hours && time.Since(began) > hours {
					long = hours
					must.OK(s, h.Extend(context.Background(), long))
				}
				if _, err := l.Try(context.Background(), terms); !errors.Is(err, server.ErrNotAcquired) {
					s.Errorf("another request acquired the lock: %v", err)
					return
				}
				if at := s.mini.TTL(l.KeyOf(server.LockKey)); at < time.Until(h.Deadline()) {
					s.Errorf("the holder's deadline is in %v, the lease lasts %v", time.Until(h.Deadline()), at)
					return
				}
			}
			must.Report(s, h.Release(context.Background()))
		})
	}
}

// TestUpgradeOfExtendedLeaseInDoubt: a lease of an hour whose upgrade was given up is released, also after some ttls without an answer.
func TestUpgradeOfExtendedLeaseInDoubt(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := must.Get(s.Keeper.Lock(Spec{Scripts: lua.RWLock, Name: "x", TTL: ttl}))(s)
		s.must(must.Get(l.Try(context.Background(), Terms{Flags: "w"}))(s).Release(context.Background())) // the server knows the script
		from := must.Get(l.Try(context.Background(), Terms{Flags: "r"}))(s)
		s.must(from.Extend(context.Background(), time.Hour))
		s.net.Break(lua.RWLock.Acquire.SHA, 1, faultnet.SwallowReply)
		time.AfterFunc(400*time.Millisecond, s.net.Down)
		check.Is(s, l.Upgrade(must.Within(s, 500*time.Millisecond), from, nil), server.ErrUnavailable, "the upgrade")
		time.Sleep(5 * ttl)
		s.net.Restore()
		s.must(from.Err())
		s.must(from.Release(context.Background()))
		synctest.Wait()
		key := l.KeyOf(server.LockKey)
		check.That(s, !s.mini.Exists(key), "nobody has a lease, and the server keeps one for %v", s.mini.TTL(key))
	})
}

// TestExtendFindsThatTheUpgradeWasLost: after a failover that has lost the upgrade, others may read, so the lease is lost.
func TestExtendFindsThatTheUpgradeWasLost(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := must.Get(s.Keeper.Lock(Spec{Scripts: lua.RWLock, Name: "x", TTL: ttl}))(s)
		h := must.Get(l.Try(context.Background(), Terms{Flags: "r"}))(s)
		s.must(l.Upgrade(context.Background(), h, nil))
		s.must(h.Extend(context.Background(), ttl))
		key := l.KeyOf(server.LockKey)
		at := must.Get(s.mini.ZScore(key, h.Token()))(s)
		must.Get(s.mini.ZAdd(key, math.Ceil(at), h.Token()))(s)
		err := h.Extend(context.Background(), ttl)
		check.That(s, errors.Is(err, server.ErrLost) && errors.Is(h.Err(), server.ErrLost),
			"Extend: %v; the lease: %v", err, h.Err())
		_ = h.Release(context.Background())
	})
}

// TestExtendRefusedAsContextEnds: an Extend that is refused returns as its context ends, also while the server is asked for the reason.
func TestExtendRefusedAsContextEnds(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		s.mini.Del(s.lock("x").Key())
		s.net.Break(lua.Mutex.Inspect.SHA, 1, faultnet.SwallowReply)
		ctx := must.Within(s, 20*time.Millisecond)
		err := h.Extend(ctx, ttl)
		deadline, _ := ctx.Deadline()
		d := time.Since(deadline)
		check.That(t, d <= 50*time.Millisecond, "it returned %v after the end of its context: %v", d, err)
	})
}

// sendTimes records when a script is sent from now on.
func (s *fixture) sendTimes(scripts ...*lua.Script) func() []time.Time {
	var mu sync.Mutex
	var list []time.Time
	s.net.Watch(func(b []byte) {
		if slices.ContainsFunc(scripts, func(script *lua.Script) bool { return bytes.Contains(b, []byte(script.SHA)) }) {
			mu.Lock()
			defer mu.Unlock()
			list = append(list, time.Now())
		}
	})
	return func() []time.Time {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}

// TestBackoffFollowsRetryPolicy checks that the pauses begin at about MinBackoff, grow to about MaxBackoff, and are
// jittered, and that there are no more attempts after MaxElapsed.
func TestBackoffFollowsRetryPolicy(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.must(s.hold("x").Release(context.Background()))
		s.Config.Retry = server.Retry{MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, MaxElapsed: 5 * time.Second}
		s.net.Break("evalsha", 1<<30, faultnet.LoseRequest) // the fast script, then the general one
		asked := s.sendTimes(lua.Mutex.Fast.Acquire, lua.Mutex.Acquire)
		start := time.Now()
		_, err := s.lock("x").Acquire(context.Background(), Terms{})
		check.That(s, err != nil && !errors.Is(err, server.ErrNotAcquired), "all its requests were lost: %v", err)
		r := s.Config.Retry
		d := time.Since(start)
		check.That(s, d >= r.MaxElapsed && d <= r.MaxElapsed+2*r.MaxBackoff, "it returned after %v", d)
		list := asked()
		var pauses []time.Duration
		for i := range list[1:] {
			pauses = append(pauses, list[i+1].Sub(list[i]))
		}
		first := pauses[0]
		check.That(s, first >= r.MinBackoff/2 && first <= 2*r.MinBackoff, "the first pause is %v", first)
		slices.Sort(pauses)
		shortest, longest := pauses[0], pauses[len(pauses)-1]
		check.That(s, shortest >= r.MinBackoff/2 && longest >= r.MaxBackoff && longest <= 2*r.MaxBackoff,
			"pauses of %v to %v", shortest, longest)
		different := slices.Compact(pauses)
		check.That(s, len(different) >= len(list)/2, "%d of %d pauses are distinct", len(different), len(list)-1)
	})
}

// TestReleaseRetriesEndWithLease checks that a release is not retried after the lease has expired.
func TestReleaseRetriesEndWithLease(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.must(s.hold("y").Release(context.Background()))
		h := s.hold("x", withoutRenewal)
		s.net.Break(lua.Mutex.Fast.Release.SHA, 1<<30, faultnet.LoseRequest)
		sent := s.sendTimes(lua.Mutex.Fast.Release)
		ctx := must.Within(s, 2*ttl)
		err := h.Release(ctx)
		check.That(s, err != nil && !errors.Is(err, server.ErrLost) && ctx.Err() == nil, "no release arrived: %v", err)
		n := len(sent())
		check.That(s, n >= 2, "it was sent %d times", n)
		time.Sleep(time.Minute)
		more := len(sent()) - n
		check.That(s, more == 0, "it was sent %d times after the lease had expired", more)
	})
}

// TestLossErrorIncludesRenewalError checks that the cause of a loss includes why the renewal failed.
func TestLossErrorIncludesRenewalError(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		s.net.Down()
		<-h.Done()
		err := h.Err()
		check.That(s, errors.Is(err, server.ErrLost) && errors.Is(err, io.ErrClosedPipe), "%v", err)
	})
}

// TestDoSaysTheLossOnce checks the errors of Do after a loss, by what its function returns.
func TestDoSaysTheLossOnce(t *testing.T) {
	own := errors.New("own")
	for name, c := range map[string]struct {
		returns func(ctx context.Context) error
		is      error
	}{
		"the cause":           {context.Cause, server.ErrLost},
		"the cause, wrapped":  {func(ctx context.Context) error { return fmt.Errorf("work: %w", context.Cause(ctx)) }, server.ErrLost},
		"the context's error": {func(ctx context.Context) error { return ctx.Err() }, context.Canceled},
		"another error":       {func(context.Context) error { return own }, own},
		"nothing":             {func(context.Context) error { return nil }, server.ErrLost},
	} {
		subtest(t, name, func(s *fixture) {
			h := s.hold("x", withoutRenewal)
			err := lifecycle.Do(context.Background(), h, func(ctx context.Context, _ uint64) error {
				time.Sleep(2 * ttl)
				return c.returns(ctx)
			})
			if !errors.Is(err, c.is) || !errors.Is(err, server.ErrLost) || strings.Count(err.Error(), server.ErrLost.Error()) != 1 {
				s.Errorf("%v", err)
			}
			reason := server.LossReasonOf(h.Err())
			check.That(s, reason == server.LossNotRenewed, "the reason of the loss is %s", reason)
		})
	}
}

// TestExtendRepeatedWithinMaxLifetime: an Extend to less than what is left of MaxLifetime when it is called, but not when it is repeated.
func TestExtendRepeatedWithinMaxLifetime(t *testing.T) {
	inBubble(t, func(s *fixture) {
		const lifetime = 10 * time.Second
		h := s.hold("x", func(spec *Spec) { spec.MaxLifetime, spec.TTL = lifetime, 9*time.Second })
		s.net.Down()
		time.AfterFunc(4*time.Second, s.net.Restore)
		s.must(h.Extend(context.Background(), 9*time.Second))
		held := time.Since(h.Since())
		if held < 4*time.Second || held+time.Until(h.Deadline()) > lifetime || held+s.mini.TTL("lock:x") > lifetime {
			s.Errorf("extended after %v for %v, at the server for %v", held, time.Until(h.Deadline()), s.mini.TTL("lock:x"))
		}
		s.must(h.Release(context.Background()))
	})
}
