package quorum

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestSettleFence checks that the fence is the largest of the majority whose fences are smallest, and never becomes smaller.
func TestSettleFence(t *testing.T) {
	for _, x := range []struct {
		fences []int64 // of the servers that have granted the lease, above base
		failed int     // servers that have not
		want   int64   // 0: not known yet
	}{
		{fences: []int64{7}, want: 7},
		{fences: []int64{7}, failed: 2, want: 0},
		{fences: []int64{7, 9}, failed: 1, want: 9},
		{fences: []int64{9, 5, 7}, want: 7},
		{fences: []int64{5, 5, 9}, want: 5},
		{fences: []int64{9, 5}, failed: 3, want: 0},
		{fences: []int64{9, 5, 1}, failed: 2, want: 9},
		{fences: []int64{9, 5, 1, 7, 3}, want: 5},
		{fences: []int64{9, 5}, failed: 2, want: 0}, // two of four
		{fences: []int64{9, 5, 7, 1}, want: 7},
	} {
		inBubble(t, 1, func(s *fixture) {
			base := time.Now().Add(time.Hour).UnixMicro()
			var members []member
			for _, f := range x.fences {
				members = append(members, member{state: memberGranted, part: s.part(time.Minute, base+f)})
			}
			for range x.failed {
				members = append(members, member{state: memberFailed, err: server.ErrNoAnswer})
			}
			u := s.leaseOf(members...)
			larger := u.settleFenceLocked(time.Now())
			got := max(u.fence-base, 0)
			if got != x.want || larger != (x.want > 0) {
				t.Errorf("%v and %d that failed: fence %d, larger %v, want %d", x.fences, x.failed, got, larger, x.want)
			}
			if u.settleFenceLocked(time.Now()) {
				t.Errorf("%v: it becomes larger although nothing has changed", x.fences)
			}
		})
	}
}

// TestSettleFenceAfterLossOfMember checks that the fence becomes larger if a server of the majority drops out before the lease
// is held, and not later.
func TestSettleFenceAfterLossOfMember(t *testing.T) {
	inBubble(t, 1, func(s *fixture) {
		base := time.Now().Add(time.Hour).UnixMicro()
		granted := func(fence int64) member { return member{state: memberGranted, part: s.part(time.Minute, base+fence)} }
		u := s.leaseOf(granted(1), granted(2), granted(3))
		settle := func(want int64, wantLarger bool) {
			t.Helper()
			if larger := u.settleFenceLocked(time.Now()); u.fence != base+want || larger != wantLarger {
				t.Errorf("fence %d, larger %v, want %d, %v", u.fence-base, larger, want, wantLarger)
			}
		}
		settle(2, true)
		u.members[0].part.Detach()
		settle(3, true)
		u.members[1].state = memberFailed // a minority is left
		settle(3, false)
		u.members[0] = granted(1)
		u.members[1].state = memberGranted // the smaller fences count again, but the lease's stays
		settle(3, false)
		for _, state := range []leaseState{leaseHeld, leaseOver} {
			u.state = state
			u.members[0].part.Detach()
			u.members[1] = granted(9)
			settle(3, false)
		}
	})
}

// TestLeastFence checks which readings of the servers' clocks a new token's least fence is computed from.
func TestLeastFence(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		l := s.lock(s.keepers)
		now := time.Now()
		ms := now.UnixMilli()
		want := func(want int64) {
			t.Helper()
			flag := ""
			if want > 0 {
				flag = fmt.Sprint(protocol.FlagLeastFence, want)
			}
			_, terms, _ := strings.Cut(l.newToken(""), ".600")
			if got := l.leastFence(); got != want || terms != flag {
				t.Errorf("%d, at the end of the token %q, want %d", got, terms, want)
			}
		}
		lead := (time.Millisecond + fenceLead).Microseconds() // a clock that reads ms may be almost a millisecond ahead
		want(0)
		s.keepers[0].Clock.Note(0, now.Add(time.Second)) // not in the reply
		want(0)
		s.keepers[0].Clock.Note(ms, now)
		want(ms*1000 + lead)
		s.keepers[1].Clock.Note(ms+5, now)
		want((ms+5)*1000 + lead)
		s.keepers[1].Clock.Note(ms+9, now.Add(-1)) // an answer that was overtaken by another
		want((ms+5)*1000 + lead)
		time.Sleep(time.Second)
		want((ms+1005)*1000 + lead)
		s.keepers[2].Clock.Note(ms, time.Now()) // a clock that is behind
		want((ms+1005)*1000 + lead)
		time.Sleep(clockReadingTTL - time.Second)
		want(ms*1000 + lead + (clockReadingTTL - time.Second).Microseconds()) // only the third reading is recent
		time.Sleep(time.Second)
		want(0)
		for _, ms := range []int64{maxExactInt/1000 - 1, maxExactInt / 1000, 1 << 61} { // a fence that Lua, or an int64, cannot represent
			time.Sleep(time.Nanosecond)
			s.keepers[0].Clock.Note(ms, time.Now())
			want(0)
		}

		one := s.lock(s.keepers[:1])
		s.keepers[0].Clock.Note(ms, time.Now())
		if got := one.leastFence(); got != 0 {
			t.Errorf("%d with a single server, which has to agree with no other", got)
		}
	})
}

// seq returns the last fence of a server.
func (s *fixture) seq(i int) int64 {
	n, _ := strconv.ParseInt(s.servers[i].HGet(metaKey, "seq"), 10, 64)
	return max(n, -n) // negative while there may be tombstones
}

// TestLeaseIsHeldWhenMajorityHasItsFence checks that a lease is handed out only when a majority gives no smaller fences any more.
func TestLeaseIsHeldWhenMajorityHasItsFence(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		s.offsets = []time.Duration{0, time.Hour, 2 * time.Hour}
		s.connect(s.lock(s.keepers))
		for _, m := range s.servers {
			m.FlushDB()
		}
		s.nets[2].Down()
		s.nets[0].Break(lua.Redlock.RaiseFence.SHA, 1, faultnet.SwallowReply)
		time.Sleep(clockReadingTTL) // no server's clock is known any more
		l := s.lock(s.keepers)
		ctx, cancel := context.WithTimeout(s.Context(), serverTimeout)
		defer cancel()
		u, err := l.Try(ctx)
		s.wantError(err, server.ErrUnavailable, context.DeadlineExceeded)
		if u != nil {
			t.Fatal("the first server's fence is smaller, and it did not confirm a larger one")
		}
		s.nets[0].Restore()
		s.nets[2].Restore()
		time.Sleep(time.Second)

		s.nets[2].Down()
		u = s.try(l)
		for i := range 2 {
			if n := s.seq(i); n < int64(u.Fence()) {
				t.Errorf("server %d gives fence %d next, the lease has %d", i, n+1, u.Fence())
			}
		}
		s.release(u)
		s.nets[2].Restore()
	})
}

// TestLeastFenceInTokenSavesRaisingIt checks that servers with different clocks grant the same fence at once if their clocks are
// known.
func TestLeastFenceInTokenSavesRaisingIt(t *testing.T) {
	inBubble(t, 3, func(s *fixture) {
		s.offsets = []time.Duration{0, time.Hour, -time.Hour}
		s.connect(s.lock(s.keepers))
		for _, n := range s.nets {
			n.ResetCount()
		}
		u := s.try(s.lock(s.keepers)) // another object, as of a program that makes one for each use
		for i := range u.members {
			if f := memberOf(u, i).part.Fence(); f != u.Fence() || s.nets[i].Scripts() != 1 {
				t.Errorf("server %d: fence %d and %d scripts, the lease has fence %d", i, f, s.nets[i].Scripts(), u.Fence())
			}
		}
		s.release(u)
	})
}
