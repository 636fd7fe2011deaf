package quorum

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// TestTallyFailed checks when an attempt is known to have failed, for odd and even numbers of servers.
func TestTallyFailed(t *testing.T) {
	for _, x := range []struct {
		servers, agreed, granted, refused, pending int // the rest has failed in another way
		want                                       bool
	}{
		{servers: 1, pending: 1, want: false},
		{servers: 1, refused: 1, want: true},
		{servers: 3, pending: 3, want: false},
		{servers: 3, agreed: 1, pending: 1, want: false},              // one failed, and both others may agree
		{servers: 3, granted: 2, want: false},                         // its fence is still to be raised
		{servers: 3, refused: 2, pending: 1, want: true},              // contention is certain, whatever the last one answers
		{servers: 3, agreed: 1, refused: 1, want: true},               // nothing is pending
		{servers: 3, pending: 1, want: false},                         // two failed: the last answer tells contention from an outage
		{servers: 3, refused: 1, pending: 1, want: false},             // as above
		{servers: 3, granted: 1, want: true},                          // as above, and it has come
		{servers: 5, agreed: 1, granted: 1, refused: 3, want: true},   // contention
		{servers: 5, agreed: 1, refused: 2, pending: 2, want: false},  // both may agree
		{servers: 5, refused: 3, pending: 2, want: true},              // contention is certain
		{servers: 5, agreed: 2, refused: 1, pending: 1, want: false},  // one failed
		{servers: 4, agreed: 2, pending: 1, want: false},              // two of four are not a majority, three may be
		{servers: 4, agreed: 2, want: true},                           // they are not
		{servers: 4, agreed: 1, granted: 2, want: false},              // three of four are
		{servers: 4, granted: 1, refused: 2, pending: 1, want: true},  // contention is certain: three have answered
		{servers: 4, granted: 0, refused: 2, pending: 1, want: false}, // two have
	} {
		tally := tally{agreed: x.agreed, granted: x.granted, refused: x.refused, pending: x.pending}
		if got := tally.failed(x.servers/2 + 1); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

// TestTallyCountsMembersByState checks that only a live part whose server gives no smaller fence agrees.
func TestTallyCountsMembersByState(t *testing.T) {
	inBubble(t, 1, func(s *fixture) {
		fence := time.Now().Add(time.Hour).UnixMicro()
		part := func() *keeper.Lease { return s.part(time.Minute, fence) }
		over := s.part(time.Second, fence)
		lost := part()
		time.Sleep(time.Second)
		lost.Detach()
		u := s.leaseOf(
			member{state: memberAsking},
			member{state: memberFailed, err: server.ErrNotAcquired},
			member{state: memberFailed, err: server.Chain(server.ErrNotAcquired, errors.New("by x"))},
			member{state: memberFailed, err: server.ErrNoAnswer},
			member{state: memberGranted, part: over, fenceFloor: fence},
			member{state: memberGranted, part: lost, fenceFloor: fence},
			member{state: memberGranted, part: part(), fenceFloor: fence},
			member{state: memberRaising, part: part(), fenceFloor: fence},
			member{state: memberGranted, part: part(), fenceFloor: fence - 1},
			member{state: memberRaising, part: part()},
			member{state: memberFailed, part: part(), fenceFloor: fence, err: errRecentRestart},
		)
		u.fence = fence
		if got, want := u.tallyLocked(time.Now()), (tally{agreed: 2, granted: 2, refused: 2, pending: 1}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		u.fence = 0
		if got, want := u.tallyLocked(time.Now()), (tally{granted: 4, refused: 2, pending: 1}); got != want {
			t.Errorf("without a fence %+v, want %+v", got, want)
		}
		if got := u.tallyLocked(time.Now().Add(time.Minute)); got.agreed+got.granted != 0 {
			t.Errorf("parts count after their deadlines: %+v", got)
		}
	})
}

// replyError is an error that a server has answered.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// TestVerdict checks what an attempt concludes from the servers' answers: "y" granted, "n" refused, "-" no answer, "!" an error
// that lasts, "l" granted and lost.
func TestVerdict(t *testing.T) {
	lasting := replyError("NOPERM no permission")
	if transport.Retryable(lasting) {
		t.Fatal("the error does not last")
	}
	inBubble(t, 1, func(s *fixture) {
		fence := time.Now().Add(time.Hour).UnixMicro()
		for _, x := range []struct {
			answers    string
			contended  bool
			hopeless   bool
			retryAfter time.Duration // if contended; refusals expire after 1s, 2s and so on
		}{
			{answers: "n", contended: true, retryAfter: time.Second},
			{answers: "-"},
			{answers: "!", hopeless: true},
			{answers: "ynn", contended: true, retryAfter: time.Second}, // one more is enough
			{answers: "nnn", contended: true, retryAfter: 2 * time.Second},
			{answers: "nn-", contended: true, retryAfter: 2 * time.Second},
			{answers: "yn-", contended: true, retryAfter: time.Second},
			{answers: "yyn", contended: true, retryAfter: time.Second}, // the two were a majority, but too late
			{answers: "n--"},
			{answers: "y--"},
			{answers: "yy-"}, // they have not agreed on a fence
			{answers: "n!-"},
			{answers: "n!!", hopeless: true},
			{answers: "y!!", hopeless: true},
			{answers: "nn!", contended: true, retryAfter: 2 * time.Second},
			{answers: "nl-"},
			{answers: "ynl", contended: true, retryAfter: time.Second},
			{answers: "nnn--", contended: true, retryAfter: 3 * time.Second},
			{answers: "ynn--", contended: true, retryAfter: 2 * time.Second},
			{answers: "yn---"},
			{answers: "!!---"},
			{answers: "!!!--", hopeless: true},
			{answers: "nn--"}, // two of four are not a majority
			{answers: "ynn-", contended: true, retryAfter: 2 * time.Second},
			{answers: "!!--", hopeless: true}, // and neither are the other two
		} {
			var members []member
			refused := 0
			for _, c := range x.answers {
				switch c {
				case 'y':
					members = append(members, member{state: memberGranted, part: s.part(time.Minute, fence)})
				case 'l':
					part := s.part(10*time.Millisecond, fence)
					time.Sleep(10 * time.Millisecond)
					members = append(members, member{state: memberGranted, part: part})
				case 'n':
					refused++
					members = append(members, member{state: memberFailed, err: server.ErrNotAcquired, retryAfter: time.Duration(refused) * time.Second})
				case '-':
					members = append(members, member{state: memberAsking})
				case '!':
					members = append(members, member{state: memberFailed, err: lasting})
				}
			}
			v := s.leaseOf(members...).verdict(nil)
			if v.contended != x.contended || v.hopeless != x.hopeless {
				t.Errorf("%s: contended %v, hopeless %v", x.answers, v.contended, v.hopeless)
			}
			if want := x.retryAfter + time.Millisecond; x.contended && v.retryAfter != want {
				t.Errorf("%s: retry after %v, want %v", x.answers, v.retryAfter, want)
			}
			err := server.Chain(v.causes...)
			if !errors.Is(err, errMinority) || errors.Is(err, server.ErrUnavailable) == x.hopeless {
				t.Errorf("%s: causes %v", x.answers, err)
			}
			if errors.Is(err, lasting) != strings.Contains(x.answers, "!") {
				t.Errorf("%s: causes %v", x.answers, err)
			}
			if errors.Is(err, keeper.ErrTooLate) != strings.Contains(x.answers, "l") || errors.Is(err, server.ErrLost) {
				t.Errorf("%s: causes %v", x.answers, err)
			}
		}
	})
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

// TestVerdictOfOwnLeftovers checks that a refusal is no contention where an earlier attempt is still being cleaned up.
func TestVerdictOfOwnLeftovers(t *testing.T) {
	inBubble(t, 1, func(s *fixture) {
		refused := member{state: memberFailed, err: server.ErrNotAcquired, retryAfter: time.Second}
		u := s.leaseOf(refused, refused, member{state: memberFailed, err: server.ErrNoAnswer})
		if v := u.verdict([][]*keeper.Cleanup{nil, nil, {nil}}); !v.contended {
			t.Errorf("two refusals of three are no contention: %v", v.answers)
		}
		v := u.verdict([][]*keeper.Cleanup{nil, {nil}, nil})
		if v.contended || v.hopeless || !errors.Is(server.Chain(v.causes...), server.ErrUnavailable) {
			t.Errorf("contended %v, hopeless %v, causes %v", v.contended, v.hopeless, v.causes)
		}
		if !errors.Is(v.answers[0], server.ErrNotAcquired) || !errors.Is(v.answers[1], errCleanupPending) {
			t.Errorf("answers %v", v.answers)
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
