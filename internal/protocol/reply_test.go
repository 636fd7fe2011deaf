package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/lua"
)

// checkReplyError checks whether err is ErrReply.
func checkReplyError(t *testing.T, err error, invalid bool) {
	t.Helper()
	if errors.Is(err, ErrReply) != invalid || (err != nil) != invalid {
		t.Errorf("the error is %v; invalid: %v", err, invalid)
	}
}

func TestParseAcquireReply(t *testing.T) {
	for _, c := range []struct {
		reply []int64
		want  AcquireReply
		bad   bool
	}{
		{[]int64{lua.Granted, 7, 100, 130, 0}, AcquireReply{Code: lua.Granted, Fence: 7, Now: 100}, false},
		{[]int64{lua.Granted, 7, 100, 130, 1}, AcquireReply{Code: lua.Granted, Fence: 7, Now: 100, More: true}, false},
		{[]int64{lua.Refused, 100, 25, 0}, AcquireReply{Code: lua.Refused, Now: 100, RetryAfter: 25}, false},
		{[]int64{lua.Refused, 100, 25, 3}, AcquireReply{Code: lua.Refused, Now: 100, RetryAfter: 25, More: true, LimitsChanged: true}, false},
		{[]int64{lua.Granted, 7, 100, 130, 2}, AcquireReply{Code: lua.Granted, Fence: 7, Now: 100, LimitsChanged: true}, false},
		{[]int64{1792319239123456}, AcquireReply{}, true}, // of a fast script
		{[]int64{0}, AcquireReply{}, true},
		{[]int64{-25}, AcquireReply{}, true},
		{[]int64{lua.AboveLimit}, AcquireReply{Code: lua.AboveLimit}, false},
		{
			[]int64{lua.Waiting, 100, 9, 8, 2, 50, 1},
			AcquireReply{Code: lua.Waiting, Now: 100, Seq: 9, Place: 8, Rank: 2, RetryIn: 50, More: true}, false,
		},
		{[]int64{lua.Tombstoned}, AcquireReply{Code: lua.Tombstoned}, false},
		{nil, AcquireReply{}, true},
		{[]int64{}, AcquireReply{}, true},
		{[]int64{lua.Granted}, AcquireReply{}, true},
		{[]int64{lua.Granted, 7, 100}, AcquireReply{}, true},
		{[]int64{lua.Granted, 7, 100, 130}, AcquireReply{}, true},
		{[]int64{lua.Granted, 7, 100, 130, 0, 0}, AcquireReply{}, true},
		{[]int64{lua.Granted, 0, 100, 130, 0}, AcquireReply{}, true},
		{[]int64{lua.Granted, -7, 100, 130, 0}, AcquireReply{}, true},
		{[]int64{lua.Granted, 7, 100, 100, 0}, AcquireReply{}, true},
		{[]int64{lua.Granted, 7, 130, 100, 0}, AcquireReply{}, true},
		{[]int64{lua.Refused, 100, 25}, AcquireReply{}, true},
		{[]int64{lua.Refused, 100, 25, 0, 0}, AcquireReply{}, true},
		{[]int64{lua.Waiting, 100, 9, 8, 2, 50}, AcquireReply{}, true},
		{[]int64{lua.Waiting}, AcquireReply{}, true},
		{[]int64{lua.Unknown, 1, 2, 3}, AcquireReply{}, true},
		{[]int64{lua.Left, 0}, AcquireReply{}, true},
		{[]int64{lua.Held, 7, 100, 130}, AcquireReply{}, true},
		{[]int64{-1, 7, 100, 130}, AcquireReply{}, true},
		{[]int64{math.MaxInt64}, AcquireReply{}, true},
	} {
		t.Run(fmt.Sprint(c.reply), func(t *testing.T) {
			got, err := ParseAcquireReply(c.reply)
			checkReplyError(t, err, c.bad)
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func TestParseHeartbeatReply(t *testing.T) {
	for _, c := range []struct {
		reply   []int64
		waiters int
		changes int
		bad     bool
	}{
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0}, 0, 0, false},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0}, 3, 0, false},
		{[]int64{lua.Waiting, 100, 9, 50, 1, 0, 0, 3, lua.Granted, 7, 130}, 3, 1, false},
		{[]int64{lua.Waiting, 100, 9, 50, 1, 0, 0, 1, lua.Held, 7, 130, 2, lua.Unknown, 0, 0}, 2, 2, false},
		{nil, 1, 0, true},
		{[]int64{lua.Waiting}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 2, 8}, 2, 0, false},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 3, 8}, 2, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, -1, 8}, 2, 0, true},
		{[]int64{lua.Granted, 100, 9, 50, 0}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 1}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 1, lua.Granted, 7}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 0, lua.Granted, 7, 130}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 2, lua.Granted, 7, 130}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, -1, lua.Granted, 7, 130}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, math.MaxInt64, lua.Granted, 7, 130}, 1, 0, true},
		{[]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 1, lua.Granted, 7, 130}, 0, 0, true},
	} {
		t.Run(fmt.Sprint(c.reply), func(t *testing.T) {
			got, err := ParseHeartbeatReply(c.reply, c.waiters)
			checkReplyError(t, err, c.bad)
			if err == nil && (got.Now != 100 || got.Seq != 9 || got.RetryIn != 50 || got.More != (c.reply[4] == 1) || len(got.Changes) != c.changes || got.First != int(c.reply[5])-1 || got.Rank != int(c.reply[6])) {
				t.Errorf("%+v", got)
			}
			if c.changes > 0 && got.Changes[0].Index != int(c.reply[7])-1 {
				t.Errorf("%+v", got.Changes)
			}
		})
	}
}

func TestParseRenewReply(t *testing.T) {
	for _, c := range []struct {
		reply []int64
		bad   bool
	}{
		{[]int64{lua.Granted, 0}, true},
		{[]int64{lua.Granted, 7}, false},
		{[]int64{lua.Refused}, false},
		{nil, true},
		{[]int64{lua.Granted}, true},
		{[]int64{lua.Granted, 7, 1}, true},
		{[]int64{lua.Refused, 0}, true},
		{[]int64{lua.Waiting}, true},
		{[]int64{lua.Held, 7}, true},
		{[]int64{-1}, true},
	} {
		t.Run(fmt.Sprint(c.reply), func(t *testing.T) {
			_, err := ParseRenewReply(c.reply)
			checkReplyError(t, err, c.bad)
		})
	}
}

func TestParseRetainedRenewReply(t *testing.T) {
	for _, c := range []struct {
		reply    []int64
		recalled bool
		bad      bool
	}{
		{[]int64{lua.Granted, 7, 0}, false, false},
		{[]int64{lua.Granted, 0, 0}, false, true},
		{[]int64{lua.Granted, 7, 1}, true, false},
		{[]int64{lua.Refused}, false, false},
		{nil, false, true},
		{[]int64{lua.Granted}, false, true},
		{[]int64{lua.Granted, 0}, false, true},
		{[]int64{lua.Granted, 7, 2}, false, true},
		{[]int64{lua.Granted, -1, 0}, false, true},
		{[]int64{lua.Granted, 7, 0, 0}, false, true},
		{[]int64{lua.Refused, 0}, false, true},
		{[]int64{lua.Refused, 0, 0}, false, true},
	} {
		t.Run(fmt.Sprint(c.reply), func(t *testing.T) {
			got, err := ParseRetainedRenewReply(c.reply)
			checkReplyError(t, err, c.bad)
			if got.Recalled != c.recalled {
				t.Errorf("%+v", got)
			}
		})
	}
}

// pack and unpack encode numbers for the fuzzer.
func pack(n ...int64) []byte {
	var b []byte
	for _, v := range n {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func unpack(b []byte) []int64 {
	var n []int64
	for ; len(b) >= 8; b = b[8:] {
		n = append(n, int64(binary.LittleEndian.Uint64(b)))
	}
	return n
}

// FuzzParseReply checks that no list of numbers makes a parser panic or return impossible values.
func FuzzParseReply(f *testing.F) {
	for _, n := range [][]int64{
		nil,
		{lua.Granted, 7, 100, 130, 0},
		{lua.Granted, 7},
		{lua.Granted, -1, 0, 0},
		{lua.Refused, 100, 25},
		{lua.Refused},
		{lua.Waiting, 100, 9, 8, 2, 50, 1},
		{lua.Waiting, 100, 9, 50, 0, 0, 0},
		{lua.Waiting, 100, 9, 50, 1, 0, 0, 1, lua.Granted, 7, 130, 2, lua.Held, 8, 140},
		{lua.Waiting, 100, 9, 50, 1, 0, 0, math.MinInt64, lua.Granted, 7, 130},
		{lua.Tombstoned},
		{lua.Conflict},
		{lua.AboveLimit},
		{lua.Granted, 7, 100, 130, 0, 9, 8, 50},
		{lua.Refused, 100, 25, 0, 9, 0, 50},
		{lua.Granted, 1, 2, 3, 4, 3},
		{math.MaxInt64, math.MinInt64},
	} {
		f.Add(pack(n...), 2)
	}
	f.Fuzz(func(t *testing.T, b []byte, waiters int) {
		n := unpack(b)
		check := func(script string, err error, none bool) {
			if err != nil && (!none || !errors.Is(err, ErrReply)) {
				t.Errorf("%s: %v from %v", script, err, n)
			}
		}
		a, err := ParseAcquireReply(n)
		check("acquire", err, a == AcquireReply{})
		checkGrant(t, a, err)
		a, err = ParseAllowReply(n)
		check("allow", err, a == AcquireReply{})
		checkGrant(t, a, err)
		fast, err := ParseFastAcquireReply(n)
		check("a fast acquire", err, fast == AcquireReply{})
		checkGrant(t, fast, err)
		if q := a.Quota; q.Remaining < 0 || q.Remaining > q.Limit || q.ResetAfter < 0 {
			t.Errorf("allow: %+v from %v", q, n)
		}
		a, err = ParseFastAllowReply(n, 9, 60)
		check("a fast acquire", err, a == AcquireReply{})
		checkGrant(t, a, err)
		if q := a.Quota; q.Remaining < 0 || q.Remaining > q.Limit || q.ResetAfter < 0 {
			t.Errorf("allow: %+v from %v", q, n)
		}
		h, err := ParseHeartbeatReply(n, waiters)
		check("heartbeat", err, h.Changes == nil)
		if err == nil && len(h.Changes) != (len(n)-7)/4 {
			t.Errorf("%d changes from %v", len(h.Changes), n)
		}
		for _, x := range h.Changes {
			granted := x.Code == lua.Granted || x.Code == lua.Held
			if x.Index < 0 || x.Index >= waiters || granted != (x.Fence > 0) || !granted && x.ExpiresIn != 0 {
				t.Errorf("%+v of %d waiters from %v", x, waiters, n)
			}
		}
		released, err := ParseReleaseReply(n)
		check("release", err, released == ReleaseReply{})
		released, err = ParseFastReleaseReply(n)
		check("a fast release", err, released == ReleaseReply{})
		r, err := ParseFastRenewReply(n)
		check("a fast renewal", err, r == RenewReply{})
		r, err = ParseRetainedRenewReply(n)
		check("renew", err, r == RenewReply{})
		r, err = ParseRenewReply(n)
		check("renew", err, r == RenewReply{})
		if r.Held != (r.Fence > 0) || r.Held != (err == nil && n[0] == lua.Granted) {
			t.Errorf("renew: %+v from %v", r, n)
		}
		l, err := ParseLimitReply(n)
		check("limit", err, l == LimitReply{})
		if min(l.Held, l.AtOnce, l.Spent, l.Window) < 0 {
			t.Errorf("limit: %+v from %v", l, n)
		}
		raised, err := ParseRaiseFenceReply(n, 7)
		check("raise_fence", err, raised == RaiseFenceReply{})
		if err == nil && raised.Code == lua.Granted && raised.Fence < 7 {
			t.Errorf("raise_fence: %+v from %v", raised, n)
		}
		id, err := ParseIdentityReply(n)
		check("identity", err, id == [4]int64{})
		v := make([]any, len(n))
		for i := range n {
			v[i] = n[i]
			if i%5 == 1 {
				v[i] = "token"
			}
		}
		holders, _, err := ParseHolders(v)
		check("inspect", err, holders == nil)
		queue, err := ParseWaiters(v, 0)
		check("inspect", err, queue == nil)
		for i, w := range queue {
			if w.Place <= 0 || i > 0 && w.Place <= queue[i-1].Place {
				t.Errorf("inspect: %+v", queue)
			}
		}
	})
}

// checkGrant checks that an AcquireReply has a fence if it grants a lease, and else none.
func checkGrant(t *testing.T, a AcquireReply, err error) {
	t.Helper()
	granted := err == nil && a.Code == lua.Granted
	if granted != (a.Fence > 0) {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestInvalidReplyGrantsNothing(t *testing.T) {
	for _, n := range [][]int64{
		{lua.Granted, 7, math.MinInt64, math.MaxInt64, 0},
		{lua.Granted, 7, -1, math.MaxInt64, 0},
	} {
		_, err := ParseAcquireReply(n)
		checkReplyError(t, err, true)
	}
	for _, change := range [][]int64{
		{1, lua.Granted, 0, 130},
		{1, lua.Granted, -7, 130},
		{1, lua.Held, 0, 130},
		{1, lua.Left, 0, 0},
		{1, 77, 0, 0},
	} {
		t.Run(fmt.Sprint("heartbeat ", change), func(t *testing.T) {
			_, err := ParseHeartbeatReply(append([]int64{lua.Waiting, 100, 9, 50, 0, 0, 0}, change...), 1)
			checkReplyError(t, err, true)
		})
	}
	// A lease that ended before the server's clock is over, however long ago that was.
	for _, until := range []int64{99, 0, -1, math.MinInt64} {
		h, err := ParseHeartbeatReply([]int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 1, lua.Held, 7, until}, 1)
		if err != nil || h.Changes[0].ExpiresIn >= 0 {
			t.Errorf("a lease until %d at 100: %+v, %v", until, h, err)
		}
	}
	_, err := ParseRenewReply([]int64{lua.Granted, -7})
	checkReplyError(t, err, true)
	_, err = ParseRenewReply([]int64{lua.Granted, 0})
	checkReplyError(t, err, true)
}

func TestParseOtherReplies(t *testing.T) {
	for _, c := range []struct {
		what  string
		parse func([]int64) (any, error)
		reply []int64
		want  any
		bad   bool
	}{
		{"release", parser(ParseReleaseReply), []int64{lua.Granted}, ReleaseReply{Code: lua.Granted}, false},
		{"release", parser(ParseReleaseReply), []int64{lua.Left + 16}, ReleaseReply{Code: lua.Left, More: true}, false},
		{"release", parser(ParseReleaseReply), []int64{lua.Refused + 32}, ReleaseReply{Code: lua.Refused, QueueEmpty: true}, false},
		{"release", parser(ParseReleaseReply), []int64{lua.Held}, ReleaseReply{Code: lua.Held}, false},
		{"release", parser(ParseReleaseReply), nil, ReleaseReply{}, true},
		{"release", parser(ParseReleaseReply), []int64{lua.Granted + 64}, ReleaseReply{}, true},
		{"release", parser(ParseReleaseReply), []int64{lua.Granted, 0}, ReleaseReply{}, true},
		{"release", parser(ParseReleaseReply), []int64{lua.Waiting}, ReleaseReply{}, true},
		{"fast release", parser(ParseFastReleaseReply), []int64{lua.Granted}, ReleaseReply{Code: lua.Granted}, false},
		{"fast release", parser(ParseFastReleaseReply), []int64{lua.Granted + 32}, ReleaseReply{Code: lua.Granted, QueueEmpty: true}, false},
		{"fast release", parser(ParseFastReleaseReply), []int64{lua.Refused + 32}, ReleaseReply{Code: lua.Refused, QueueEmpty: true}, false},
		{"fast release", parser(ParseFastReleaseReply), []int64{0}, ReleaseReply{Undecided: true}, false},
		{"fast release", parser(ParseFastReleaseReply), []int64{lua.Granted + 16}, ReleaseReply{}, true},
		{"fast release", parser(ParseFastReleaseReply), []int64{lua.Left + 32}, ReleaseReply{}, true},
		{"fast renew", parser(ParseFastRenewReply), []int64{lua.Granted}, RenewReply{Held: true}, false},
		{"fast renew", parser(ParseFastRenewReply), []int64{lua.Recalled}, RenewReply{Held: true, Recalled: true}, false},
		{"fast renew", parser(ParseFastRenewReply), []int64{lua.Refused}, RenewReply{}, false},
		{"fast renew", parser(ParseFastRenewReply), []int64{lua.Granted, 7}, RenewReply{}, true},
		{"fast renew", parser(ParseFastRenewReply), []int64{lua.Held}, RenewReply{}, true},
		{"limit", parser(ParseLimitReply), []int64{lua.Granted, 1, 2, 3, 4, 3, 0}, LimitReply{1, 2, 3, 4, true, true, false}, false},
		{"limit", parser(ParseLimitReply), []int64{lua.Granted, 1, 2, 3, 4, 0, 500}, LimitReply{1, 2, 3, 4, false, false, true}, false},
		{"limit", parser(ParseLimitReply), []int64{lua.Granted, 1, 2, 3, -4, 0, 0}, LimitReply{}, true},
		{"limit", parser(ParseLimitReply), []int64{lua.Granted, 1, 2, 3, 4, 0}, LimitReply{}, true},
		{"limit", parser(ParseLimitReply), []int64{lua.Tombstoned}, LimitReply{}, true},
		{"limit", parser(ParseLimitReply), nil, LimitReply{}, true},
		{"allow", parser(ParseAllowReply), []int64{lua.Granted, 7, 100, 130, 0, 9, 8, 50}, AcquireReply{Code: lua.Granted, Now: 100, Fence: 7, Quota: Quota{9, 8, 50}}, false},
		{"allow", parser(ParseAllowReply), []int64{lua.Refused, 100, 25, 0, 9, 0, 50}, AcquireReply{Code: lua.Refused, Now: 100, RetryAfter: 25, Quota: Quota{9, 0, 50}}, false},
		{"fast allow", parser(parseFastAllow), []int64{1e15, 8}, AcquireReply{Code: lua.Granted, Fence: 1e15, Quota: Quota{9, 8, 61}}, false},
		{"fast allow", parser(parseFastAllow), []int64{1e15, 10}, AcquireReply{}, true},
		{"fast allow", parser(parseFastAllow), []int64{1e15, -1}, AcquireReply{}, true},
		{"fast allow", parser(parseFastAllow), []int64{1000, 8}, AcquireReply{}, true},
		{"fast allow", parser(parseFastAllow), []int64{-25, 50}, AcquireReply{Code: lua.Refused, RetryAfter: 25, Quota: Quota{9, 0, 50}}, false},
		{"fast allow", parser(parseFastAllow), []int64{-25, -1}, AcquireReply{}, true},
		{"fast allow", parser(parseFastAllow), []int64{-25, 50, 0}, AcquireReply{}, true},
		{"fast allow", parser(parseFastAllow), []int64{-25}, AcquireReply{}, true},
		{"fast allow", parser(parseFastAllow), []int64{0}, AcquireReply{Undecided: true}, false},
		{"fast acquire", parser(ParseFastAcquireReply), []int64{1792319239123456}, AcquireReply{Code: lua.Granted, Fence: 1792319239123456}, false},
		{"fast acquire", parser(ParseFastAcquireReply), []int64{1792319239123456, 8}, AcquireReply{Code: lua.Granted, Fence: 1792319239123456}, false},
		{"fast acquire", parser(ParseFastAcquireReply), []int64{100}, AcquireReply{}, true}, // too small for a fence
		{"fast acquire", parser(ParseFastAcquireReply), []int64{1 << 54}, AcquireReply{}, true},
		{"fast acquire", parser(ParseFastAcquireReply), []int64{0}, AcquireReply{Undecided: true}, false},
		{"fast acquire", parser(ParseFastAcquireReply), []int64{0, 0}, AcquireReply{}, true},
		{"fast acquire", parser(ParseFastAcquireReply), []int64{-25}, AcquireReply{Code: lua.Refused, RetryAfter: 25}, false},
		{"fast acquire", parser(ParseFastAcquireReply), []int64{lua.Granted, 7, 100, 130, 0}, AcquireReply{}, true},
		{"fast acquire", parser(ParseFastAcquireReply), nil, AcquireReply{}, true},
		{"allow", parser(ParseAllowReply), []int64{lua.AboveLimit}, AcquireReply{Code: lua.AboveLimit}, false},
		{"allow", parser(ParseAllowReply), []int64{lua.Granted, 7, 100, 130, 0}, AcquireReply{}, true},
		{"allow", parser(ParseAllowReply), []int64{lua.Refused, 100, 25, 0, 9, 10, 50}, AcquireReply{}, true},
		{"allow", parser(ParseAllowReply), []int64{lua.Refused, 100, 25, 0, 0, 0, 50}, AcquireReply{}, true},
		{"allow", parser(ParseAllowReply), []int64{lua.Refused, 100, 25, 0, 9, 0, -1}, AcquireReply{}, true},
		{"raise_fence", raise(7), []int64{lua.Granted, 7}, RaiseFenceReply{Code: lua.Granted, Fence: 7}, false},
		{"raise_fence", raise(7), []int64{lua.Granted, 6}, RaiseFenceReply{}, true},
		{"raise_fence", raise(7), []int64{lua.Refused}, RaiseFenceReply{Code: lua.Refused}, false},
		{"raise_fence", raise(7), []int64{lua.Unknown, 3}, RaiseFenceReply{Code: lua.Unknown, Uptime: 3}, false},
		{"raise_fence", raise(7), []int64{lua.Unknown}, RaiseFenceReply{}, true},
		{"raise_fence", raise(7), []int64{lua.Waiting, 7}, RaiseFenceReply{}, true},
		{"identity", parser(ParseIdentityReply), []int64{lua.Granted, 1, 2, 3, 4}, [4]int64{1, 2, 3, 4}, false},
		{"identity", parser(ParseIdentityReply), []int64{lua.Unknown}, [4]int64{}, false},
		{"identity", parser(ParseIdentityReply), []int64{lua.Granted, 1, 2, 3}, [4]int64{}, true},
		{"identity", parser(ParseIdentityReply), []int64{lua.Held}, [4]int64{}, true},
	} {
		t.Run(fmt.Sprint(c.what, c.reply), func(t *testing.T) {
			got, err := c.parse(c.reply)
			checkReplyError(t, err, c.bad)
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

func parser[T any](parse func([]int64) (T, error)) func([]int64) (any, error) {
	return func(n []int64) (any, error) { return parse(n) }
}

func parseFastAllow(n []int64) (AcquireReply, error) { return ParseFastAllowReply(n, 9, 60) }

func raise(fence int64) func([]int64) (any, error) {
	return func(n []int64) (any, error) { return ParseRaiseFenceReply(n, fence) }
}

func TestParseInspectReply(t *testing.T) {
	holders, total, err := ParseHolders([]any{int64(2), int64(9), "a", int64(7), int64(50), int64(60), "b", int64(8), int64(-1), int64(70)})
	if want := []Holder{{"a", 7, 50, 60}, {"b", 8, -1, 70}}; err != nil || total != 9 || !slices.Equal(holders, want) {
		t.Errorf("%v, %d, %v", holders, total, err)
	}
	waiters, err := ParseWaiters([]any{int64(2), "a", int64(7), int64(50), int64(60), "b", int64(9), int64(1), int64(-1)}, 6)
	if want := []Waiter{{"a", 7, 50, 60}, {"b", 9, 1, -1}}; err != nil || !slices.Equal(waiters, want) {
		t.Errorf("%v, %v", waiters, err)
	}
	for _, v := range [][]any{
		nil,
		{int64(1), "a"},
		{int64(1), "a", int64(7), "50"},
		{int64(1), int64(1), int64(7), int64(50)},
		{int64(1), "a", int64(6), int64(50), int64(60)}, // a place that is not after the last one
		{int64(1), "a", int64(7), int64(50), nil},
	} {
		_, err := ParseWaiters(v, 6)
		checkReplyError(t, err, true)
	}
	for _, v := range [][]any{
		nil,
		{int64(0)},
		{int64(0), int64(-1)},
		{int64(0), "1"},
		{int64(1), int64(1), "a", int64(7), int64(50)},
		{int64(1), int64(1), "a", int64(7), int64(50), "60"},
		{int64(1), int64(1), int64(7), int64(7), int64(50), int64(60)},
	} {
		_, _, err := ParseHolders(v)
		checkReplyError(t, err, true)
	}
}
