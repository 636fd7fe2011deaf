package quorum

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestMembersLostOneByOne checks that the lease is held until a majority has lost it, and then releases what is left.
func TestMembersLostOneByOne(t *testing.T) {
	inBubble(t, 5, func(s *fixture) {
		u := s.try(s.lock(s.keepers))
		ctx := u.Context(s.Context())
		s.wantOwned(u.token, 0, 1, 2, 3, 4)
		for i := range 2 {
			s.occupy(i)
			time.Sleep(ttl) // for the renewal that is refused, and one after it, by which the server is asked again
			s.must(u.Err())
			if m := memberOf(u, i); m.state != memberFailed || !errors.Is(m.err, server.ErrNotAcquired) {
				t.Errorf("the server with another holder: %+v", m)
			}
		}
		s.wantOwned(u.token, 2, 3, 4)
		s.forgetEvents()
		s.occupy(2)
		occupied := time.Now()
		s.ends(ctx.Done())
		if d := time.Since(occupied); d > ttl/2 {
			t.Errorf("lost after %v, and not by the next renewal", d)
		}
		s.wantOwned(u.token)
		if cause := context.Cause(ctx); cause != u.Err() {
			t.Errorf("the context's cause is %v", cause)
		}
		s.wantError(u.Err(), server.ErrLost)
		answers := s.answers(u.Err())
		asked := errors.Is(answers[2], server.ErrNotAcquired)                                           // again, just before the lease ended
		if !asked && !errors.Is(answers[2], server.ErrLost) || answers[3] != nil || answers[4] != nil { // the others may be asked just now
			t.Errorf("answers %v", answers)
		}
		s.wantEvents(keeper.Lost)
		s.wantError(u.Release(s.Context()), server.ErrLost)
		s.wantError(u.Extend(s.Context(), ttl), server.ErrLost)
		s.wantEvents()
		s.wantOwned("another", 0, 1, 2)
	})
}

// TestPartsAreLostAtTheirDeadlines checks that a call notices that the majority's deadline has passed before any timer fires.
func TestPartsAreLostAtTheirDeadlines(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		u := s.try(s.lock(s.keepers, withoutRenewal))
		for _, e := range s.keepers {
			e.Timers.Stop() // as in a process that was frozen
		}
		done := u.Done()
		time.Sleep(time.Until(u.Deadline()) - 1)
		s.must(u.Err())
		time.Sleep(time.Nanosecond)
		s.wantError(u.Err(), server.ErrLost)
		s.ends(done)
		s.wantError(u.Release(s.Context()), server.ErrLost)
	})
}

// TestMemberRejoins checks that a server that has lost its part is asked again at the next renewal, with the same token, and that
// it then counts as the others.
func TestMemberRejoins(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		s.offsets = []time.Duration{0, 0, -time.Hour} // the clock of the third gives smaller fences
		l := s.lock(s.keepers)
		u := s.try(l)
		fence, first := u.Fence(), memberOf(u, 2).part
		s.servers[2].FlushAll()
		time.Sleep(2*ttl/3 + 20*time.Millisecond) // by the first renewal it is known to have lost the part, by the second it is asked again
		s.wantOwned(u.token, 0, 1, 2)
		m := memberOf(u, 2)
		if m.state != memberGranted || m.part == first || m.fenceFloor < int64(fence) || u.Fence() != fence {
			t.Errorf("%+v, fence %d after %d", m, u.Fence(), fence)
		}
		if n := s.seq(2); n < int64(fence) {
			t.Errorf("its last fence is %d, the lease has %d", n, fence)
		}
		s.nets[0].Down() // now it is needed
		time.Sleep(3 * ttl)
		s.must(u.Err())
		s.release(u)
		s.wantOwned("", 0, 1, 2)
	})
}

// TestMemberIsNotAskedAgainNearMaxLifetime checks that no server grants a lease that would outlast MaxLifetime.
func TestMemberIsNotAskedAgainNearMaxLifetime(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers, func(spec *Spec) { spec.MaxLifetime = 2 * ttl })
		u := s.try(l)
		time.Sleep(ttl + 20*time.Millisecond)
		s.servers[2].FlushAll()
		var asked atomic.Int32
		s.nets[2].Watch(func(sent []byte) {
			if bytes.Contains(sent, []byte(lua.Redlock.Acquire.SHA)) {
				asked.Add(1)
			}
		})
		s.ends(u.Done())
		s.wantError(u.Err(), server.ErrLost)
		if d := time.Since(u.since); d > 2*ttl || d < ttl {
			t.Errorf("lost after %v", d)
		}
		s.wantOwned(u.token)
		if n := asked.Load(); n > 0 {
			t.Errorf("the server that had lost its part was asked for another %d times", n)
		}
	})
}

// TestAnswerLostWhileHeld checks that a server whose answer was lost keeps its lease, is asked again, and is not cleaned up before
// the lease ends.
func TestAnswerLostWhileHeld(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers)
		s.connect(l)
		s.nets[2].Break(lua.Redlock.Acquire.SHA, 2, faultnet.CutReply|faultnet.Copy) // the request is sent twice
		u := s.try(l)
		if m := memberOf(u, 2); m.state != memberFailed || !m.inDoubt || m.cleanup != nil {
			t.Errorf("%+v", m)
		}
		for range 5 {
			s.wantOwned(u.token, 0, 1, 2)
			time.Sleep(ttl / 3)
		}
		if m := memberOf(u, 2); m.state != memberGranted || m.part == nil {
			t.Errorf("%+v", m)
		}
		s.release(u)
		s.wantOwned("", 0, 1, 2)
		s.must(s.nets[2].Replay())
		s.wantOwned("", 0, 1, 2) // the release has kept the copies from being granted
	})
}

// TestCopyOfRequestForLostPart lets a copy of a request arrive after the lease has ended, at a server that has lost the part which the request
// led to, and has granted another one since.
func TestCopyOfRequestForLostPart(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers)
		s.connect(l)
		s.nets[2].Break(lua.Redlock.Acquire.SHA, 1, faultnet.CutReply|faultnet.Copy)
		u := s.try(l)
		s.servers[2].FlushAll()
		time.Sleep(2 * ttl)
		s.wantOwned(u.token, 0, 1, 2)
		s.release(u)
		s.must(s.nets[2].Replay())
		s.wantOwned("", 0, 1, 2)
	})
}

// TestCloseWithMemberInDoubt checks that closing any of the keepers releases the lease at all servers, also at one whose answer
// was lost, and keeps later copies of the request from being granted there.
func TestCloseWithMemberInDoubt(t *testing.T) {
	for closed := range 3 {
		inBubble(t, 3, func(s *fixture) {
			l := s.lock(s.keepers)
			s.connect(l)
			s.nets[1].Break(lua.Redlock.Acquire.SHA, 2, faultnet.CutReply|faultnet.Copy)
			u := s.try(l)
			ctx := u.Context(s.Context())
			s.wantOwned(u.token, 0, 1, 2)
			s.forgetEvents()
			s.must(s.keepers[closed].Close())
			s.wantError(u.Err(), server.ErrReleased)
			if !errors.Is(context.Cause(ctx), server.ErrReleased) {
				t.Errorf("the context's cause is %v", context.Cause(ctx))
			}
			s.wantEvents(keeper.Released)
			if closed == 1 {
				time.Sleep(ttl) // the keeper that was closed first sends nothing any more; the lease there ends by itself
			}
			s.wantOwned("", 0, 1, 2)
			s.must(s.nets[1].Replay())
			if closed != 1 {
				s.wantOwned("", 0, 1, 2)
			}
			s.release(u)
		})
	}
}

// TestCloseDuringAttempt closes a keeper whose server has granted its part, while the answer is under way.
func TestCloseDuringAttempt(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers)
		s.connect(l)
		for _, net := range s.nets {
			net.DelayReplies(serverTimeout / 2)
		}
		tried := make(chan error, 1)
		go func() {
			_, err := l.Try(s.Context())
			tried <- err
		}()
		synctest.Wait()
		s.must(s.keepers[0].Close())
		s.wantOwned("", 0, 1, 2)
		s.wantError(<-tried, server.ErrClosed)
	})
}

// TestCloseEndsRelease closes a keeper while Release waits for servers that do not answer, of a lease of an hour.
func TestCloseEndsRelease(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		u := s.try(s.lock(s.keepers, func(spec *Spec) { spec.TTL, spec.NoRenewal = time.Hour, true }))
		for _, net := range s.nets {
			net.Blackhole()
		}
		released := make(chan error, 1)
		go func() { released <- u.Release(context.Background()) }()
		synctest.Wait()
		began := time.Now()
		go func() { _ = s.keepers[1].Close() }()
		s.wantError(<-released, server.ErrUnavailable)
		if took := time.Since(began); took > server.CloseTimeout {
			t.Errorf("Release returned %v after Close", took)
		}
	})
}

// TestRepeatedAttemptsAwaitCleanups checks that an attempt which follows one without a majority begins when that is released, or
// after ServerTimeout.
func TestRepeatedAttemptsAwaitCleanups(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers)
		s.connect(l)
		s.nets[0].Break(lua.Redlock.Release.SHA, 2, faultnet.SwallowReply)
		u := l.propose("", nil)
		synctest.Wait()
		s.nets[2].Down()
		u.giveUp(server.ErrReleased)
		earlier := [][]*keeper.Cleanup{nil, nil, nil}
		start := time.Now()
		unfinished := u.awaitCleanups(s.Context(), earlier)
		if d := time.Since(start); d != serverTimeout {
			t.Errorf("waited for %v", d)
		}
		if len(unfinished[0]) != 1 || len(unfinished[1]) != 0 || len(unfinished[2]) != 1 {
			t.Errorf("unfinished: %v", unfinished)
		}
		for _, n := range s.nets {
			n.Restore()
		}
		for _, list := range [][]*keeper.Cleanup{unfinished[0], unfinished[2]} {
			<-list[0].Done()
		}
		v := l.propose("", nil)
		synctest.Wait()
		v.giveUp(server.ErrReleased)
		start = time.Now()
		unfinished = v.awaitCleanups(s.Context(), unfinished) // with those before it
		if d := time.Since(start); d > serverTimeout/2 || slices.ContainsFunc(unfinished, func(list []*keeper.Cleanup) bool { return len(list) > 0 }) {
			t.Errorf("unfinished after %v: %v", d, unfinished)
		}
		s.wantOwned("", 0, 1, 2)
	})
}

// TestOwnLeftoversAreNoContention checks that a repeated attempt which is refused because of what the one before has left does not
// conclude that another holder has the lock.
func TestOwnLeftoversAreNoContention(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers)
		s.connect(l)
		for _, n := range s.nets[1:] {
			n.Break(lua.Redlock.Acquire.SHA, 1, faultnet.SwallowReply)
			n.Break(lua.Redlock.Release.SHA, 1000, faultnet.LoseRequest)
			n.Break(lua.Redlock.Fast.Release.SHA, 1000, faultnet.LoseRequest)
		}
		_, err := l.Try(s.Context())
		s.wantError(err, server.ErrUnavailable)
		if answers := s.answers(err); !errors.Is(answers[1], errCleanupPending) || !errors.Is(answers[2], errCleanupPending) {
			t.Errorf("answers %v", answers)
		}
		for _, n := range s.nets {
			n.Restore()
		}
		u := must.Get(l.Acquire(s.Context()))(s)
		s.release(u)
	})
}

// TestUnansweredRequestIsAwaitedWhileHeld checks that a request is given up ServerTimeout after it was sent, but only if the lease
// has ended.
func TestUnansweredRequestIsAwaitedWhileHeld(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers)
		s.connect(l)
		s.nets[2].Delay(2 * serverTimeout)
		u := s.try(l)
		time.Sleep(2*serverTimeout - 1)
		if m := memberOf(u, 2); m.state != memberAsking {
			t.Errorf("%+v", m)
		}
		time.Sleep(time.Nanosecond)
		s.wantOwned(u.token, 0, 1, 2)
		s.release(u)
		time.Sleep(2 * serverTimeout)
		s.wantOwned("", 0, 1, 2)

		s.nets[2].Restore()
		s.nets[2].Break(lua.Redlock.Acquire.SHA, 1, faultnet.SwallowReply)
		u = s.try(l)
		s.nets[1].Down()
		start := time.Now()
		s.release(u)
		if d := time.Since(start); d != serverTimeout { // then the request is given up and its cleanup sent
			t.Errorf("released after %v", d)
		}
		s.wantOwned("", 0, 2)
	})
}

// TestReleaseNeedsMajorityWithoutLease checks which servers count.
func TestReleaseNeedsMajorityWithoutLease(t *testing.T) {
	for _, x := range []struct {
		what string
		do   func(s *fixture)
		want []error
	}{
		{"one down", func(s *fixture) { s.nets[0].Down() }, nil},
		{"two down", func(s *fixture) { s.nets[0].Down(); s.nets[1].Down() }, []error{server.ErrUnavailable}},
		{"one lost", func(s *fixture) { s.servers[0].Del(key) }, nil},
		{"two lost", func(s *fixture) { s.servers[0].Del(key); s.servers[1].Del(key) }, []error{server.ErrLost}},
		{"one lost, one down", func(s *fixture) { s.servers[0].Del(key); s.nets[1].Down() }, []error{server.ErrLost}},
	} {
		subtest(t, x.what, 3, func(s *fixture) {
			u := s.try(s.lock(s.keepers, withoutRenewal))
			x.do(s)
			ctx, cancel := context.WithTimeout(s.Context(), ttl)
			defer cancel()
			err := u.Release(ctx)
			if x.what == "two down" {
				x.want = append(x.want, ctx.Err())
			}
			s.wantError(err, x.want...)
			s.wantError(u.Err(), server.ErrReleased)
			s.must(u.Release(s.Context())) // it was released for its holder
		})
	}
	subtest(t, "another holder at one, one down", 3, func(s *fixture) {
		s.occupy(0)
		u := s.try(s.lock(s.keepers, withoutRenewal))
		s.nets[1].Down()
		s.release(u)
		s.wantOwned("", 2)
	})
}

// TestExtendNeedsMajority checks that the deadline is extended when a majority has confirmed it, and that a lease of which a
// minority was extended keeps its deadline.
func TestExtendNeedsMajority(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		u := s.try(s.lock(s.keepers, withoutRenewal))
		s.must(u.Extend(s.Context(), ttl)) // loads the script
		synctest.Wait()
		s.nets[2].Delay(serverTimeout / 2)
		start := time.Now()
		s.must(u.Extend(s.Context(), 2*ttl))
		want := start.Add(2*ttl - claim.Margin(2*ttl))
		if now, got := time.Now(), u.Deadline(); now != start || got != want {
			t.Errorf("Extend took %v, the deadline is %v after it, want %v", now.Sub(start), got.Sub(start), want.Sub(start))
		}
		time.Sleep(serverTimeout)
		if got, err := memberOf(u, 2).part.State(); err != nil || got != want {
			t.Errorf("at the server that was slow the deadline is %v after Extend: %v", got.Sub(start), err)
		}
		s.nets[2].Down()
		before := u.Deadline()
		s.nets[1].Blackhole()
		start = time.Now()
		err := u.Extend(s.Context(), 4*ttl)
		s.wantError(err, server.ErrUnavailable)
		if d := time.Since(start); d != serverTimeout {
			t.Errorf("Extend took %v", d)
		}
		if got := u.Deadline(); !got.Equal(before) {
			t.Errorf("the deadline moved by %v", got.Sub(before))
		}
		s.must(u.Err())
		s.ends(u.Done())
		if now := time.Now(); !now.Equal(before) {
			t.Errorf("lost %v after the deadline", now.Sub(before))
		}
	})
}

// TestLateMemberLastsAsLongAsTheLease lets a server lose its part of a lease that lasts for longer than its token says, and join again. A
// request of another caller then cuts what the server has to what the token says, unless the metadata says that it lasts for longer.
func TestLateMemberLastsAsLongAsTheLease(t *testing.T) {
	for what, get := range map[string]func(s *fixture) *Lease{
		"extended": func(s *fixture) *Lease {
			u := s.try(s.lock(s.keepers))
			s.must(u.Extend(s.Context(), 20*ttl))
			return u
		},
		"adopted": func(s *fixture) *Lease {
			nets, keepers := s.process(nil)
			first := s.try(s.lock(keepers))
			for _, n := range nets {
				n.Down() // its process has crashed
			}
			return must.Get(s.lock(s.keepers, func(spec *Spec) { spec.TTL = 20 * ttl }).Adopt(s.Context(), first.token))(s)
		},
	} {
		subtest(t, what, 3, func(s *fixture) {
			u := get(s)
			synctest.Wait()
			s.servers[2].FlushAll()
			time.Sleep(15 * ttl) // by the second renewal it is asked again
			s.wantOwned(u.token, 0, 1, 2)
			_, keepers := s.process(nil)
			_, err := s.lock(keepers).Try(s.Context())
			s.wantError(err, server.ErrNotAcquired)
			time.Sleep(2 * ttl)
			s.wantOwned(u.token, 0, 1, 2)
			s.release(u)
		})
	}
}

// TestAdopt checks a majority, whose lease is extended and renewed, and that errors of a minority say what is known.
func TestAdopt(t *testing.T) {
	const long = time.Hour
	longTTL := func(spec *Spec) { spec.TTL, spec.NoRenewal = long, true }
	for _, x := range []struct {
		what string
		do   func(s *fixture)
		want []error
		left []int // servers that have the token afterwards
	}{
		{"all have it", func(*fixture) {}, nil, []int{0, 1, 2}},
		{"one lost it", func(s *fixture) { s.servers[0].Del(key) }, nil, []int{1, 2}},
		{"one down", func(s *fixture) { s.nets[0].Down() }, nil, []int{0, 1, 2}},
		{"two lost it", func(s *fixture) { s.servers[0].Del(key); s.servers[1].Del(key) }, []error{server.ErrLost}, []int{2}},
		{"two with another holder", func(s *fixture) { s.occupy(0, 1) }, []error{server.ErrLost}, []int{2}},
		{"two lost it, one down", func(s *fixture) { s.servers[0].Del(key); s.servers[1].Del(key); s.nets[2].Down() }, []error{server.ErrLost}, []int{2}},
		{"one lost it, one down", func(s *fixture) { s.servers[0].Del(key); s.nets[1].Down() }, []error{server.ErrUnavailable}, []int{1, 2}},
		{"two down", func(s *fixture) { s.nets[0].Down(); s.nets[1].Blackhole() }, []error{server.ErrUnavailable}, []int{0, 1, 2}},
		{"one restarted lately", func(s *fixture) { s.uptimes[0].Store(60) }, nil, []int{0, 1, 2}},
		{"two restarted lately", func(s *fixture) { s.uptimes[0].Store(60); s.uptimes[1].Store(60) }, []error{server.ErrUnavailable, errRecentRestart}, []int{0, 1, 2}},
	} {
		subtest(t, x.what, 3, func(s *fixture) {
			_, keepers := s.process(nil)
			first := s.try(s.lock(keepers, longTTL))
			time.Sleep(long / 2)
			x.do(s)
			second, err := s.lock(s.keepers, longTTL, func(spec *Spec) { spec.MinUptime = long }).Adopt(s.Context(), first.token)
			s.wantError(err, x.want...)
			if (second == nil) != (x.want != nil) {
				s.Fatalf("lease %v, error %v", second, err)
			}
			time.Sleep(time.Minute) // a cleanup would have been sent
			s.wantOwned(first.token, x.left...)
			if second == nil {
				return
			}
			if second.Fence() != first.Fence() {
				s.Errorf("fence %d, it was %d", second.Fence(), first.Fence())
			}
			if d := time.Until(second.Deadline()); d < long-claim.Margin(long)-2*time.Minute {
				s.Errorf("the deadline is in %v", d)
			}
			s.must(second.Release(s.Context()))
		})
	}
}

// TestCloseDuringAdopt closes a keeper whose server has answered the adoption, while the others have not.
func TestCloseDuringAdopt(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		_, keepers := s.process(nil)
		first := s.try(s.lock(keepers))
		l := s.lock(s.keepers)
		s.connect(s.lock(s.keepers, func(spec *Spec) { spec.Name = "another" }))
		s.nets[1].Delay(serverTimeout / 2)
		s.nets[2].Delay(serverTimeout / 2)
		time.AfterFunc(serverTimeout/4, func() { _ = s.keepers[0].Close() })
		_, err := l.Adopt(s.Context(), first.token)
		s.wantError(err, server.ErrClosed)
		s.wantOwned(first.token, 0, 1, 2)
		s.release(first)
	})
}

// TestReleaseOfAdoptedLeaseWithPartThatDoesNotCount releases an adopted lease of which one server was not counted, though it has the token.
func TestReleaseOfAdoptedLeaseWithPartThatDoesNotCount(t *testing.T) {
	const long = time.Hour
	longTTL := func(spec *Spec) { spec.TTL, spec.NoRenewal = long, true }
	for what, do := range map[string]func(s *fixture){
		"restarted lately": func(s *fixture) { s.uptimes[0].Store(60) },
		"late":             func(s *fixture) { s.nets[0].DelayReplies(2 * serverTimeout) },
	} {
		subtest(t, what, 3, func(s *fixture) {
			_, keepers := s.process(nil)
			first := s.try(s.lock(keepers, longTTL))
			time.Sleep(time.Minute)
			do(s)
			l := s.lock(s.keepers, longTTL, func(spec *Spec) { spec.MinUptime = long })
			second, err := l.Adopt(s.Context(), first.token)
			s.must(err)
			time.Sleep(time.Minute)
			s.must(second.Release(s.Context()))
			time.Sleep(10 * time.Minute)
			s.wantOwned(first.token)
		})
	}
}

// TestAdoptedLeaseOutlastsTheFormerHolders lets the time of a lease pass that is not renewed and that another process has adopted.
func TestAdoptedLeaseOutlastsTheFormerHolders(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		_, keepers := s.process(nil)
		first := s.try(s.lock(keepers, withoutRenewal))
		time.Sleep(ttl / 2)
		second := must.Get(s.lock(s.keepers).Adopt(s.Context(), first.token))(s)
		s.ends(first.Done())
		time.Sleep(ttl)
		s.wantOwned(first.token, 0, 1, 2)
		s.must(second.Release(s.Context()))
	})
}

// TestPartGrantedDuringExtend lets a server grant its part while the lease is being extended at the others.
func TestPartGrantedDuringExtend(t *testing.T) {
	for what, change := range map[string]func(*Spec){"renewed": func(*Spec) {}, "not renewed": withoutRenewal} {
		subtest(t, what, 3, func(s *fixture) {
			l := s.lock(s.keepers, change)
			u := s.try(l)
			s.must(u.Extend(s.Context(), ttl)) // loads the script
			s.release(u)
			s.nets[2].Delay(serverTimeout / 2)
			u = must.Get(l.Try(s.Context()))(s)
			s.nets[1].Delay(serverTimeout * 3 / 4)
			s.must(u.Extend(s.Context(), 20*ttl))
			time.Sleep(serverTimeout)
			deadline, err := memberOf(u, 2).part.State()
			s.must(err)
			if left := time.Until(deadline); left < 15*ttl {
				s.Errorf("the part ends after %v, the lease after %v", left, time.Until(u.Deadline()))
			}
			s.release(u)
		})
	}
}

// TestNoRequestAfterRelease asks a server, as partRenewed does, just after the lease was released.
func TestNoRequestAfterRelease(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		u := s.try(s.lock(s.keepers))
		s.release(u)
		s.nets[2].Watch(func([]byte) { s.Error("a request was sent") })
		u.ask(2)
		s.wantOwned("", 0, 1, 2)
	})
}
