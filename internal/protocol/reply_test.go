package protocol

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/lua"
)

// checkReplyError checks whether err is ErrReply.
func checkReplyError(t *testing.T, err error, invalid bool) {
	t.Helper()
	check.That(t, errors.Is(err, ErrReply) == invalid && (err != nil) == invalid, "the error is %v; invalid: %v", err, invalid)
}

// parsers are those of replies that are lists of numbers.
var parsers = map[string]func([]int64) (any, error){
	"acquire":            parser(ParseAcquireReply),
	"fast acquire":       parser(ParseFastAcquireReply),
	"allow":              parser(ParseAllowReply),
	"fast allow":         func(n []int64) (any, error) { return ParseFastAllowReply(n, 9, 60) },
	"heartbeat of one":   func(n []int64) (any, error) { return ParseHeartbeatReply(n, 1) },
	"heartbeat of three": func(n []int64) (any, error) { return ParseHeartbeatReply(n, 3) },
	"renew":              parser(ParseRenewReply),
	"fast renew":         parser(ParseFastRenewReply),
	"release":            parser(ParseReleaseReply),
	"downgrade":          parser(ParseDowngradeReply),
	"fast release":       parser(ParseFastReleaseReply),
	"break":              parser(ParseBreakReply),
	"limit":              parser(ParseLimitReply),
	"raise_fence to 7":   func(n []int64) (any, error) { return ParseRaiseFenceReply(n, 7) },
	"identity":           parser(ParseIdentityReply),
}

func parser[T any](parse func([]int64) (T, error)) func([]int64) (any, error) {
	return func(n []int64) (any, error) { return parse(n) }
}

func TestParseReply(t *testing.T) {
	for _, c := range []struct {
		what  string
		reply []int64
		want  any
	}{
		{"acquire", []int64{lua.Granted, 7, 100, 130, 0}, AcquireReply{Code: lua.Granted, Fence: 7, Now: 100}},
		{"acquire", []int64{lua.Granted, 7, 100, 130, 1}, AcquireReply{Code: lua.Granted, Fence: 7, Now: 100, More: true}},
		{"acquire", []int64{lua.Granted, 7, 100, 130, 2}, AcquireReply{Code: lua.Granted, Fence: 7, Now: 100, LimitsChanged: true}},
		{"acquire", []int64{lua.Refused, 100, 25, 0}, AcquireReply{Code: lua.Refused, Now: 100, RetryAfter: 25}},
		{"acquire", []int64{lua.Refused, 100, 25, 3}, AcquireReply{Code: lua.Refused, Now: 100, RetryAfter: 25, More: true, LimitsChanged: true}},
		{"acquire", []int64{lua.Waiting, 100, 9, 8, 2, 50, 1}, AcquireReply{Code: lua.Waiting, Now: 100, Seq: 9, Place: 8, Rank: 2, RetryIn: 50, More: true}},
		{"acquire", []int64{lua.AboveLimit}, AcquireReply{Code: lua.AboveLimit}},
		{"acquire", []int64{lua.Tombstoned}, AcquireReply{Code: lua.Tombstoned}},
		{"fast acquire", []int64{1792319239123456}, AcquireReply{Code: lua.Granted, Fence: 1792319239123456}},
		{"fast acquire", []int64{1792319239123456, 8}, AcquireReply{Code: lua.Granted, Fence: 1792319239123456}},
		{"fast acquire", []int64{0}, AcquireReply{Undecided: true}},
		{"fast acquire", []int64{-25}, AcquireReply{Code: lua.Refused, RetryAfter: 25}},
		{"allow", []int64{lua.Granted, 7, 100, 130, 0, 9, 8, 50}, AcquireReply{Code: lua.Granted, Now: 100, Fence: 7, Quota: Quota{9, 8, 50}}},
		{"allow", []int64{lua.Refused, 100, 25, 0, 9, 0, 50}, AcquireReply{Code: lua.Refused, Now: 100, RetryAfter: 25, Quota: Quota{9, 0, 50}}},
		{"allow", []int64{lua.AboveLimit}, AcquireReply{Code: lua.AboveLimit}},
		{"fast allow", []int64{1e15, 8}, AcquireReply{Code: lua.Granted, Fence: 1e15, Quota: Quota{9, 8, 61}}},
		{"fast allow", []int64{-25, 50}, AcquireReply{Code: lua.Refused, RetryAfter: 25, Quota: Quota{9, 0, 50}}},
		{"fast allow", []int64{0}, AcquireReply{Undecided: true}},
		{"heartbeat of three", []int64{lua.Waiting, 100, 9, 50, 0, 0, 0}, HeartbeatReply{Now: 100, Seq: 9, RetryIn: 50, First: -1}},
		{"heartbeat of three", []int64{lua.Waiting, 100, 9, 50, 0, 3, 8}, HeartbeatReply{Now: 100, Seq: 9, RetryIn: 50, First: 2, Rank: 8}},
		{
			"heartbeat of three", []int64{lua.Waiting, 100, 9, 50, 1, 0, 0, 3, lua.Granted, 7, 130},
			HeartbeatReply{Now: 100, Seq: 9, RetryIn: 50, More: true, First: -1, Changes: []WaiterChange{{Index: 2, Code: lua.Granted, Fence: 7, ExpiresIn: 30}}},
		},
		{
			"heartbeat of three", []int64{lua.Waiting, 100, 9, 50, 1, 0, 0, 1, lua.Held, 7, 130, 2, lua.Unknown, 0, 0},
			HeartbeatReply{Now: 100, Seq: 9, RetryIn: 50, More: true, First: -1, Changes: []WaiterChange{
				{Index: 0, Code: lua.Held, Fence: 7, ExpiresIn: 30}, {Index: 1, Code: lua.Unknown},
			}},
		},
		{ // however long before the server's clock a lease has ended
			"heartbeat of three", []int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 1, lua.Held, 7, 99, 2, lua.Held, 7, math.MinInt64},
			HeartbeatReply{Now: 100, Seq: 9, RetryIn: 50, First: -1, Changes: []WaiterChange{
				{Index: 0, Code: lua.Held, Fence: 7, ExpiresIn: -1}, {Index: 1, Code: lua.Held, Fence: 7, ExpiresIn: -100},
			}},
		},
		{
			"heartbeat of three", []int64{lua.Waiting, 100, 9, 50, 0, 0, 0, 3, lua.Waiting, 8, 0},
			HeartbeatReply{Now: 100, Seq: 9, RetryIn: 50, First: -1, Changes: []WaiterChange{{Index: 2, Code: lua.Waiting, Place: 8}}},
		},
		{"renew", []int64{lua.Granted, 7}, RenewReply{Held: true, Fence: 7}},
		{"renew", []int64{lua.Granted, 7, 1}, RenewReply{Held: true, Fence: 7, Converted: true}},
		{"renew", []int64{lua.Refused}, RenewReply{}},
		{"downgrade", []int64{lua.Granted, 7, 1}, DowngradeReply{Held: true, Fence: 7, More: true}},
		{"downgrade", []int64{lua.Granted, 7, 0}, DowngradeReply{Held: true, Fence: 7}},
		{"downgrade", []int64{lua.Refused}, DowngradeReply{}},
		{"fast renew", []int64{lua.Granted}, RenewReply{Held: true}},
		{"fast renew", []int64{lua.Granted + 16}, RenewReply{Held: true, Converted: true}},
		{"fast renew", []int64{lua.Refused}, RenewReply{}},
		{"release", []int64{lua.Granted}, ReleaseReply{Code: lua.Granted}},
		{"release", []int64{lua.Left + 16}, ReleaseReply{Code: lua.Left, More: true}},
		{"release", []int64{lua.Refused + 32}, ReleaseReply{Code: lua.Refused, QueueEmpty: true}},
		{"fast release", []int64{lua.Granted}, ReleaseReply{Code: lua.Granted}},
		{"fast release", []int64{lua.Granted + 32}, ReleaseReply{Code: lua.Granted, QueueEmpty: true}},
		{"fast release", []int64{lua.Refused + 32}, ReleaseReply{Code: lua.Refused, QueueEmpty: true}},
		{"fast release", []int64{0}, ReleaseReply{Undecided: true}},
		{"break", []int64{lua.Granted, 1, 0}, BreakReply{Code: lua.Granted, Notified: true}},
		{"break", []int64{lua.Left, 0, 1}, BreakReply{Code: lua.Left, More: true}},
		{"limit", []int64{lua.Granted, 1, 2, 3, 4, 3, 0}, LimitReply{1, 2, 3, 4, true, true, false}},
		{"limit", []int64{lua.Granted, 1, 2, 3, 4, 0, 500}, LimitReply{1, 2, 3, 4, false, false, true}},
		{"raise_fence to 7", []int64{lua.Granted, 7}, RaiseFenceReply{Code: lua.Granted, Fence: 7}},
		{"raise_fence to 7", []int64{lua.Refused}, RaiseFenceReply{Code: lua.Refused}},
		{"raise_fence to 7", []int64{lua.Unknown, 3}, RaiseFenceReply{Code: lua.Unknown, Uptime: 3}},
		{"identity", []int64{lua.Granted, 1, 2, 3, 4}, [4]int64{1, 2, 3, 4}},
		{"identity", []int64{lua.Unknown}, [4]int64{}},
	} {
		got, err := parsers[c.what](c.reply)
		check.That(t, err == nil && reflect.DeepEqual(got, c.want), "%s %v: %+v, %v; want %+v", c.what, c.reply, got, err, c.want)
	}
}

// TestInvalidReplies checks that of a reply which no script gives, nothing is returned but the error.
func TestInvalidReplies(t *testing.T) {
	head := []int64{lua.Waiting, 100, 9, 50, 0, 0, 0} // of a heartbeat
	change := func(n ...int64) []int64 { return append(slices.Clone(head), n...) }
	for what, replies := range map[string][][]int64{
		"acquire": {
			{1792319239123456}, {0}, {-25}, // of a fast script
			{lua.Granted}, {lua.Granted, 7, 100}, {lua.Granted, 7, 100, 130}, {lua.Granted, 7, 100, 130, 0, 0},
			{lua.Granted, 0, 100, 130, 0}, {lua.Granted, -7, 100, 130, 0}, // the fence
			{lua.Granted, 7, 100, 100, 0}, {lua.Granted, 7, 130, 100, 0}, // it has ended
			{lua.Granted, 7, math.MinInt64, math.MaxInt64, 0}, {lua.Granted, 7, -1, math.MaxInt64, 0},
			{lua.Refused, 100, 25}, {lua.Refused, 100, 25, 0, 0},
			{lua.Waiting}, {lua.Waiting, 100, 9, 8, 2, 50},
			{lua.Unknown, 1, 2, 3}, {lua.Left, 0}, {lua.Held, 7, 100, 130}, {-1, 7, 100, 130}, {math.MaxInt64},
		},
		"fast acquire": {{100}, {1 << 54}, {0, 0}, {lua.Granted, 7, 100, 130, 0}}, // the first is too small for a fence
		"allow": {
			{lua.Granted, 7, 100, 130, 0}, {lua.Refused, 100, 25, 0, 9, 10, 50}, {lua.Refused, 100, 25, 0, 0, 0, 50}, {lua.Refused, 100, 25, 0, 9, 0, -1},
		},
		"fast allow": {{1e15, 10}, {1e15, -1}, {1000, 8}, {-25}, {-25, -1}, {-25, 50, 0}},
		"heartbeat of one": {
			{lua.Waiting}, {lua.Waiting, 100, 9, 50}, {lua.Waiting, 100, 9, 50, 0, 0}, {lua.Granted, 100, 9, 50, 0},
			{lua.Waiting, 100, 9, 50, 0, 2, 8}, {lua.Waiting, 100, 9, 50, 0, -1, 8}, // the first waiter
			change(1), change(1, lua.Granted, 7),
			change(0, lua.Granted, 7, 130), change(2, lua.Granted, 7, 130), change(-1, lua.Granted, 7, 130), change(math.MaxInt64, lua.Granted, 7, 130),
			change(1, lua.Granted, 0, 130), change(1, lua.Granted, -7, 130), change(1, lua.Held, 0, 130), change(1, lua.Left, 0, 0), change(1, 77, 0, 0),
		},
		"renew": {
			{lua.Granted}, {lua.Granted, 0}, {lua.Granted, -7}, {lua.Granted, 7, 0}, {lua.Granted, 7, 1, 1}, {lua.Refused, 0}, {lua.Waiting}, {lua.Held, 7}, {-1},
		},
		"fast renew":       {{lua.Granted, 7}, {lua.Granted + 32}, {lua.Refused + 16}, {lua.Held}},
		"release":          {{lua.Granted + 64}, {lua.Granted, 0}, {lua.Waiting}, {lua.Held}},
		"downgrade":        {{lua.Granted}, {lua.Granted, 7}, {lua.Granted, 0, 0}, {lua.Granted, 7, 2}, {lua.Refused, 0}, {lua.Waiting}},
		"fast release":     {{lua.Granted + 16}, {lua.Left + 32}},
		"break":            {{lua.Granted, 2, 0}, {lua.Granted, 0, 2}, {lua.Granted, 1}, {lua.Held, 0, 0}},
		"limit":            {{lua.Granted, 1, 2, 3, -4, 0, 0}, {lua.Granted, 1, 2, 3, 4, 0}, {lua.Tombstoned}},
		"raise_fence to 7": {{lua.Granted, 6}, {lua.Unknown}, {lua.Waiting, 7}},
		"identity":         {{lua.Granted, 1, 2, 3}, {lua.Held}},
	} {
		for _, n := range append(replies, nil, []int64{}) {
			got, err := parsers[what](n)
			checkReplyError(t, err, true)
			check.That(t, reflect.ValueOf(got).IsZero(), "%s %v: %+v", what, n, got)
		}
	}
	check.Is(t, check.ErrorOf(ParseHeartbeatReply(change(1, lua.Granted, 7, 130), 0)), ErrReply, "a change of no waiter")
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
		for what, parse := range parsers {
			got, err := parse(n)
			if err != nil && (!errors.Is(err, ErrReply) || !reflect.ValueOf(got).IsZero()) || err == nil && !possible(what, got) {
				t.Errorf("%s: %+v, %v from %v", what, got, err, n)
			}
		}
		h, err := ParseHeartbeatReply(n, waiters)
		check.That(t, err != nil || len(h.Changes) == (len(n)-7)/4, "%d changes from %v", len(h.Changes), n)
		for _, x := range h.Changes {
			granted := x.Code == lua.Granted || x.Code == lua.Held
			if x.Index < 0 || x.Index >= waiters || granted != (x.Fence > 0) || !granted && x.ExpiresIn != 0 {
				t.Errorf("%+v of %d waiters from %v", x, waiters, n)
			}
		}
		v := make([]any, len(n))
		for i := range n {
			v[i] = n[i]
			if i%5 == 1 {
				v[i] = "token"
			}
		}
		if holders, _, err := ParseHolders(v); err != nil && (!errors.Is(err, ErrReply) || holders != nil) {
			t.Errorf("holders %v, %v", holders, err)
		}
		queue, err := ParseWaiters(v, 0)
		check.That(t, err == nil || errors.Is(err, ErrReply) && queue == nil, "waiters %v, %v", queue, err)
		for i, w := range queue {
			check.That(t, w.Place > 0 && (i == 0 || w.Place > queue[i-1].Place), "inspect: %+v", queue)
		}
	})
}

// possible reports whether a reply can be true: what is granted has a fence, and nothing else has, and no number of permits is negative.
func possible(what string, reply any) bool {
	switch x := reply.(type) {
	case AcquireReply:
		q := x.Quota
		return (x.Code == lua.Granted) == (x.Fence > 0) && q.Remaining >= 0 && q.Remaining <= q.Limit && q.ResetAfter >= 0
	case RenewReply:
		return x.Held == (x.Fence > 0) || what == "fast renew" && x.Fence == 0
	case DowngradeReply:
		return x.Held == (x.Fence > 0)
	case LimitReply:
		return min(x.Held, x.AtOnce, x.Spent, x.Window) >= 0
	case RaiseFenceReply:
		return x.Code != lua.Granted || x.Fence >= 7
	}
	return true
}

func TestParseInspectReply(t *testing.T) {
	holders, total, err := ParseHolders([]any{int64(2), int64(9), "a", int64(7), int64(50), int64(60), int64(0), "b", int64(8), int64(-1), int64(70), int64(1)})
	if want := []Holder{{"a", 7, 50, 60, false}, {"b", 8, -1, 70, true}}; err != nil || total != 9 || !slices.Equal(holders, want) {
		t.Errorf("%v, %d, %v", holders, total, err)
	}
	waiters, err := ParseWaiters([]any{int64(2), "a", int64(7), int64(50), int64(60), "b", int64(9), int64(1), int64(-1)}, 6)
	if want := []Waiter{{"a", 7, 50, 60}, {"b", 9, 1, -1}}; err != nil || !slices.Equal(waiters, want) {
		t.Errorf("%v, %v", waiters, err)
	}
	for _, v := range [][]any{
		nil,
		{int64(1), "a"},
		{int64(1), "a", int64(7), int64(50)},
		{int64(1), int64(1), int64(7), int64(50), int64(60)},
		{int64(1), "a", "7", int64(50), int64(60)},
		{int64(1), "a", int64(7), "50", int64(60)},
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
		{int64(1), int64(1), "a", int64(7), int64(50), int64(60)},
		{int64(1), int64(1), "a", "7", int64(50), int64(60), int64(0)},
		{int64(1), int64(1), "a", int64(7), "50", int64(60), int64(0)},
		{int64(1), int64(1), "a", int64(7), int64(50), "60", int64(0)},
		{int64(1), int64(1), "a", int64(7), int64(50), int64(60), "0"},
		{int64(1), int64(1), "a", int64(7), int64(50), int64(60), int64(2)},
		{int64(1), int64(1), int64(7), int64(7), int64(50), int64(60), int64(0)},
	} {
		_, _, err := ParseHolders(v)
		checkReplyError(t, err, true)
	}
}

func TestParseMessage(t *testing.T) {
	for payload, want := range map[string][]Wakeup{
		"a 7":                {{"a", 7, 0, nil}},
		"a 7 1z 8":           {{"a", 7, 0, nil}, {"1z", 8, 0, nil}},
		"a -250 b 7":         {{"a", 0, 250, nil}, {"b", 7, 0, nil}},
		"a 9007199254740992": {{"a", maxFence, 0, nil}},
		"0123456789abc 7":    {{"0123456789abc", 7, 0, nil}},
	} {
		got, err := ParseMessage(payload)
		check.That(t, err == nil && slices.Equal(got, want), "%q: %v, %v; want %v", payload, got, err, want)
	}
}

func TestInvalidMessages(t *testing.T) {
	for _, payload := range []string{
		"", " \t\n", "a", "recall", "a 7 b", "a  7", "a 7 ", "\x00\xff 7 \xff",
		"0123456789abcd 7", "a:b 7", // the serial
		"a x", "a 7.0", "a 1e3", "a 0x7", "a 0", "a -0", "a recall", // neither a fence nor a time
		"a 9007199254740993", "a -9007199254740993", "a 9223372036854775808", "a -9223372036854775808",
		"a broken:", "a broken:b3BzIDE", "a broken:b3BzIDE:!", "a broken:b3BzIDE=:",
		"a broken:b3BzIDE:G1syShs", // an escape sequence
		"a broken:b3BzIDE:YQpi",    // a line break
		"a broken:4oCuYQ:",         // from right to left
		"a broken:b3BzIDE:" + base64.RawURLEncoding.EncodeToString(make([]byte, 257)),
		strings.Repeat("a 7 ", maxMessage/4) + "a 7",
	} {
		got, err := ParseMessage(payload)
		check.That(t, err != nil && got == nil, "%.100q: %v, %v", payload, got, err)
	}
}

// FuzzParseMessage: no message makes the parser panic or return an impossible value.
func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{
		"", "a 7", "a 7 1z 8", "a -250", "a 7 b", "a 0", "a x", "a 9223372036854775808", "a -9223372036854775808", "\xff\x00 1", "a broken:b3BzIDE: b 7",
		"a\u00a07\u20031", strings.Repeat("a 1 1 ", 1000),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		list, err := ParseMessage(payload)
		if err != nil {
			check.That(t, list == nil && len(err.Error()) <= 512 && isPrintable(err.Error()), "%v, %v", list, err)
			return
		}
		check.That(t, len(list) != 0 && 2*len(list) == len(strings.Fields(payload)), "%d wakeups", len(list))
		for _, g := range list {
			if !isSerial(g.Serial) || g.Fence < 0 || g.Fence > maxFence || g.RetryIn < 0 || bit(g.Fence > 0)+bit(g.RetryIn > 0)+bit(g.Broken != nil) != 1 {
				t.Errorf("%+v", g)
			}
		}
	})
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// FuzzBreakNotice: what a notice says is what was put in, if it may be, and the message has one pair.
func FuzzBreakNotice(f *testing.F) {
	for _, s := range [][2]string{{"", ""}, {"ops 1", "stuck since 12:00\n"}, {"\xff", ":recall 7 "}, {strings.Repeat("é", 128), "x"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, by, reason string) {
		list, err := ParseMessage("1z " + BreakNotice(Breaker{by, reason}))
		if CheckText("", by) != nil || CheckText("", reason) != nil {
			check.That(t, err != nil, "%q, %q: %+v", by, reason, list)
			return
		}
		if err != nil || len(list) != 1 || list[0].Broken == nil || *list[0].Broken != (Breaker{by, reason}) || list[0].Serial != "1z" {
			t.Errorf("%q, %q: %+v, %v", by, reason, list, err)
		}
	})
}
