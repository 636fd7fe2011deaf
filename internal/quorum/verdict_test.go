package quorum

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// lasting is what a server answers that will answer the same again.
const lasting = "NOPERM no permission"

// answering returns a lock on servers that answer so: "y" granted, "n" refused, "-" nothing, "!" an error that lasts. A refusal is because of a
// lease that expires after 20s, 40s and so on.
func answering(s *fixture, answers string) *Majority {
	s.Helper()
	l := s.lock(s.keepers, func(spec *Spec) { spec.MaxRetryDelay = time.Minute })
	s.connect(l)
	refused := time.Duration(0)
	for i, c := range answers {
		switch c {
		case 'n':
			refused += 20 * time.Second
			s.occupy(i)
			s.servers[i].SetTTL(key, refused)
		case '-':
			s.nets[i].Blackhole()
		case '!':
			s.servers[i].Server().SetPreHook(func(c *miniserver.Peer, _ string, args ...string) bool {
				asked := len(args) > 0 && args[0] == lua.Redlock.Acquire.SHA
				if asked {
					c.WriteError(lasting)
				}
				return asked
			})
		}
	}
	return l
}

// TestAttemptsThatFail checks what a try concludes from the servers' answers, and whether it waits for those that are missing.
func TestAttemptsThatFail(t *testing.T) {
	for _, x := range []struct {
		answers string
		want    error // nil: one that lasts
		waits   bool
	}{
		{"n", server.ErrNotAcquired, false},
		{"-", server.ErrUnavailable, true},
		{"!", nil, false},
		{"ynn", server.ErrNotAcquired, false},
		{"nn-", server.ErrNotAcquired, false}, // contention is certain, whatever the last one answers
		{"yn-", server.ErrNotAcquired, true},  // both may agree
		{"nn!", server.ErrNotAcquired, false},
		{"n--", server.ErrUnavailable, true},
		{"y--", server.ErrUnavailable, true},
		{"n!-", server.ErrUnavailable, true},
		{"n!!", nil, false},
		{"y!!", nil, false},
		{"y!-", server.ErrUnavailable, true},
		{"nnn--", server.ErrNotAcquired, false},
		{"ynn--", server.ErrNotAcquired, true},
		{"yn---", server.ErrUnavailable, true},
		{"!!---", server.ErrUnavailable, true},
		{"!!!--", nil, true},
	} {
		subtest(t, x.answers, len(x.answers), func(s *fixture) {
			l := answering(s, x.answers)
			began := time.Now()
			_, err := l.Try(s.Context())
			if x.want == nil {
				s.wantError(err)
			} else {
				s.wantError(err, x.want)
			}
			if strings.Contains(err.Error(), lasting) != (x.want != server.ErrNotAcquired && strings.Contains(x.answers, "!")) {
				s.Errorf("the error is %v", err)
			}
			if errors.Is(err, io.ErrClosedPipe) != (x.want == server.ErrUnavailable) {
				s.Errorf("the error does not say why servers have not answered: %v", err)
			}
			if waited := time.Since(began); (waited > 0) != x.waits {
				s.Errorf("it waited for %v", waited)
			}
		})
	}
}

// TestAcquiresWhenLeasesInTheWayExpire checks that the pause between attempts ends when so many of them may have expired that a majority is free.
func TestAcquiresWhenLeasesInTheWayExpire(t *testing.T) {
	for answers, want := range map[string]time.Duration{"n": 20 * time.Second, "ynn": 20 * time.Second, "nn-": 40 * time.Second} {
		subtest(t, answers, len(answers), func(s *fixture) {
			l := answering(s, answers)
			for _, n := range s.nets[1:] { // what is granted is known first
				n.DelayReplies(serverTimeout / 2)
			}
			began := time.Now()
			s.release(must.Get(l.Acquire(s.Context()))(s))
			if d := time.Since(began); d < want || d > want+time.Second {
				s.Errorf("acquired after %v, want %v", d, want)
			}
		})
	}
}

// TestVerdictOfUnknownExpiry checks that a refusal which does not say when the lease in the way expires does not hasten the next
// attempt.
func TestVerdictOfUnknownExpiry(t *testing.T) {
	inBubble(t, 1, func(s *fixture) {
		u := s.leaseOf(member{state: memberFailed, err: server.ErrNotAcquired})
		if v := u.verdict(nil); v.retryAfter <= server.LongestTTL {
			t.Errorf("retry after %v", v.retryAfter)
		}
	})
}

// TestAnswerOfServerRaisingItsFence checks that a server which does not confirm the fence in time has not agreed.
func TestAnswerOfServerRaisingItsFence(t *testing.T) {
	inBubble(t, 1, func(s *fixture) {
		u := s.leaseOf(member{state: memberRaising, askedAt: time.Now(), part: s.part(time.Minute, time.Now().Add(time.Hour).UnixMicro())})
		time.Sleep(serverTimeout - 1)
		if err := u.answersLocked()[0]; err != nil {
			t.Errorf("before ServerTimeout: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err := u.answersLocked()[0]; !errors.Is(err, server.ErrNoAnswer) {
			t.Errorf("after ServerTimeout: %v", err)
		}
	})
}

// TestTurnsOfLocksThatPollDifferently checks that a caller whose turn follows that of a lock with shorter pauses knows that the lock is held.
func TestTurnsOfLocksThatPollDifferently(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers, func(spec *Spec) { spec.MaxRetryDelay = 10 * time.Second })
		s.connect(l)
		s.occupy(0, 1, 2)
		first, cancel := context.WithTimeout(s.Context(), ttl)
		defer cancel()
		go func() { _, _ = s.lock(s.keepers).Acquire(first) }()
		synctest.Wait()
		second, end := context.WithCancel(s.Context())
		time.AfterFunc(30*time.Second, end)
		_, err := l.Acquire(second)
		s.wantError(err, server.ErrNotAcquired)
	})
}

// TestPollDelay checks what bounds the pause while others hold the lock.
func TestPollDelay(t *testing.T) {
	inBubble(t, 1, func(s *fixture) {
		l := s.lock(s.keepers, func(spec *Spec) { spec.MaxRetryDelay = 100 * time.Millisecond })
		longest := func(ctx context.Context, retryAfter time.Duration) time.Duration {
			a := acquisition{lock: l, caller: ctx}
			var pauses []time.Duration
			for range 50 {
				pauses = append(pauses, a.pollDelay(verdict{retryAfter: retryAfter}))
			}
			if first := pauses[0]; first > 2*firstRetryDelay {
				t.Errorf("the first pause is %v", first)
			}
			return slices.Max(pauses)
		}
		if d := longest(s.Context(), time.Minute); d < 100*time.Millisecond || d > 150*time.Millisecond {
			t.Errorf("the longest pause is %v", d) // random, within a half of MaxRetryDelay
		}
		if d := longest(s.Context(), 30*time.Millisecond); d != 30*time.Millisecond {
			t.Errorf("the longest pause is %v where the leases expire after 30ms", d)
		}
		left := l.spec.Keepers[0].Freshness() + 10*time.Millisecond
		ctx, cancel := context.WithTimeout(s.Context(), left+server.DeadlineLead)
		defer cancel()
		if d := longest(ctx, time.Minute); d != left {
			t.Errorf("the longest pause is %v, which leaves less than DeadlineLead", d)
		}
	})
}
