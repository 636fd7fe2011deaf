package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// A call has a valid reply, an invalid one (ErrReply), or none.

func replyOf(n ...int64) *transport.Call { return &transport.Call{Reply: n} }

// checkReplyError checks whether err is ErrReply.
func checkReplyError(t *testing.T, err error, invalid bool) {
	t.Helper()
	if errors.Is(err, transport.ErrReply) != invalid || (err != nil) != invalid {
		t.Errorf("the error is %v; invalid: %v", err, invalid)
	}
}

func TestParsersReturnCallError(t *testing.T) {
	call := &transport.Call{Err: io.EOF, Reply: []int64{lua.Granted, 1, 2, 3}}
	_, a := parseAcquire(call)
	_, p := parseHeartbeat(call, 1)
	_, r := parseRenewal(call)
	_, n := parseReply(call)
	for i, err := range []error{a, p, r, n} {
		if !errors.Is(err, io.EOF) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("parser %d: %v", i, err)
		}
	}
}

func TestParseAcquireReply(t *testing.T) {
	for _, c := range []struct {
		reply []int64
		want  acquireReply
		bad   bool
	}{
		{[]int64{lua.Granted, 7, 100, 130, 0}, acquireReply{code: lua.Granted, fence: 7, now: 100, until: 130}, false},
		{[]int64{lua.Granted, 7, 100, 130, 1}, acquireReply{code: lua.Granted, fence: 7, now: 100, until: 130, more: true}, false},
		{[]int64{lua.Refused, 100, 25, 0}, acquireReply{code: lua.Refused, now: 100, retryAfter: 25}, false},
		{[]int64{lua.Refused, 100, 25, 3}, acquireReply{code: lua.Refused, now: 100, retryAfter: 25, more: true, limitsChanged: true}, false},
		{[]int64{lua.Granted, 7, 100, 130, 2}, acquireReply{code: lua.Granted, fence: 7, now: 100, until: 130, limitsChanged: true}, false},
		{[]int64{lua.AboveLimit}, acquireReply{code: lua.AboveLimit}, false},
		{
			[]int64{lua.Waiting, 100, 9, 8, 2, 50, 1},
			acquireReply{code: lua.Waiting, now: 100, seq: 9, place: 8, rank: 2, retryIn: 50, more: true}, false,
		},
		{[]int64{lua.Tombstoned}, acquireReply{code: lua.Tombstoned}, false},
		{nil, acquireReply{}, true},
		{[]int64{}, acquireReply{}, true},
		{[]int64{lua.Granted}, acquireReply{}, true},
		{[]int64{lua.Granted, 7, 100}, acquireReply{}, true},
		{[]int64{lua.Granted, 7, 100, 130}, acquireReply{}, true},
		{[]int64{lua.Granted, 7, 100, 130, 0, 0}, acquireReply{}, true},
		{[]int64{lua.Granted, 0, 100, 130, 0}, acquireReply{}, true},
		{[]int64{lua.Granted, -7, 100, 130, 0}, acquireReply{}, true},
		{[]int64{lua.Granted, 7, 100, 100, 0}, acquireReply{}, true},
		{[]int64{lua.Granted, 7, 130, 100, 0}, acquireReply{}, true},
		{[]int64{lua.Refused}, acquireReply{}, true},
		{[]int64{lua.Refused, 100, 25}, acquireReply{}, true},
		{[]int64{lua.Refused, 100, 25, 0, 0}, acquireReply{}, true},
		{[]int64{lua.Waiting, 100, 9, 8, 2, 50}, acquireReply{}, true},
		{[]int64{lua.Waiting}, acquireReply{}, true},
		{[]int64{lua.Unknown, 1, 2, 3}, acquireReply{}, true},
		{[]int64{lua.Left, 0}, acquireReply{}, true},
		{[]int64{lua.Held, 7, 100, 130}, acquireReply{}, true},
		{[]int64{-1, 7, 100, 130}, acquireReply{}, true},
		{[]int64{math.MaxInt64}, acquireReply{}, true},
	} {
		t.Run(fmt.Sprint(c.reply), func(t *testing.T) {
			got, err := parseAcquire(replyOf(c.reply...))
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
		tokens  int
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
			got, err := parseHeartbeat(replyOf(c.reply...), c.tokens)
			checkReplyError(t, err, c.bad)
			if err == nil && (got.now != 100 || got.seq != 9 || got.retryIn != 50 || got.more != (c.reply[4] == 1) || len(got.changes) != c.changes || got.first != int(c.reply[5])-1 || got.rank != int(c.reply[6])) {
				t.Errorf("%+v", got)
			}
			if c.changes > 0 && got.changes[0].index != int(c.reply[7])-1 {
				t.Errorf("%+v", got.changes)
			}
		})
	}
}

func TestParseRenewReply(t *testing.T) {
	for _, c := range []struct {
		reply []int64
		bad   bool
	}{
		{[]int64{lua.Granted, 0}, false},
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
			_, err := parseRenewal(replyOf(c.reply...))
			checkReplyError(t, err, c.bad)
		})
	}
}

// TestDurationDoesNotOverflow checks that no number of milliseconds becomes a negative duration.
func TestDurationDoesNotOverflow(t *testing.T) {
	for ms, want := range map[int64]int64{0: 0, 1: 1e6, 30000: 30000e6, math.MaxInt64: math.MaxInt64, math.MaxInt64 / 1000: math.MaxInt64} {
		if got := duration(ms); int64(got) != want {
			t.Errorf("%d ms is %d ns, want %d", ms, got, want)
		}
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
		{math.MaxInt64, math.MinInt64},
	} {
		f.Add(pack(n...), 2)
	}
	f.Fuzz(func(t *testing.T, b []byte, tokens int) {
		n := unpack(b)
		if a, err := parseAcquire(replyOf(n...)); err == nil {
			switch a.code {
			case lua.Granted:
				if a.fence <= 0 || a.until <= a.now {
					t.Errorf("a grant from %v: %+v", n, a)
				}
			case lua.Refused, lua.Waiting, lua.Tombstoned, lua.Conflict, lua.AboveLimit:
				if a.fence != 0 || a.until != 0 {
					t.Errorf("a grant from %v: %+v", n, a)
				}
			default:
				t.Errorf("code %d from %v", a.code, n)
			}
		} else if a != (acquireReply{}) || !errors.Is(err, transport.ErrReply) {
			t.Errorf("%+v, %v", a, err)
		}
		if p, err := parseHeartbeat(replyOf(n...), tokens); err == nil {
			if len(p.changes) != (len(n)-7)/4 {
				t.Errorf("%d changes from %v", len(p.changes), n)
			}
			for _, x := range p.changes {
				if x.index < 0 || x.index >= tokens {
					t.Errorf("index %d of %d tokens", x.index, tokens)
				}
			}
		} else if !errors.Is(err, transport.ErrReply) {
			t.Error(err)
		}
		if r, err := parseRenewal(replyOf(n...)); err == nil {
			if granted := r[0] == lua.Granted && len(r) == 2; !granted && (r[0] != lua.Refused || len(r) != 1) {
				t.Errorf("a renewal from %v", n)
			}
		} else if !errors.Is(err, transport.ErrReply) {
			t.Error(err)
		}
	})
}

func TestInvalidReplyGrantsNothing(t *testing.T) {
	t.Run("answer", func(t *testing.T) {
		a, err := parseAcquire(replyOf(lua.Granted, 7, math.MinInt64, math.MaxInt64, 0))
		if err == nil && a.until-a.now <= 0 {
			t.Errorf("a lease of %d ms", a.until-a.now)
		}
	})
	for _, changes := range [][]int64{
		{1, lua.Granted, 0, 130},
		{1, lua.Granted, -7, 130},
		{1, lua.Held, 0, 130},
		{1, lua.Left, 0, 0},
		{1, 77, 0, 0},
	} {
		t.Run(fmt.Sprint("heartbeat ", changes), func(t *testing.T) {
			_, err := parseHeartbeat(replyOf(append([]int64{lua.Waiting, 100, 9, 50, 0, 0, 0}, changes...)...), 1)
			checkReplyError(t, err, true)
		})
	}
	t.Run("renewal", func(t *testing.T) {
		_, err := parseRenewal(replyOf(lua.Granted, -7))
		checkReplyError(t, err, true)
	})
}
