package lua_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestConstantsMatchGo: the codes of replies, and what package protocol knows of the constants.
func TestConstantsMatchGo(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"LONGEST_EPOCH": fmt.Sprint(protocol.EpochOf(1 << 40)), "ENDLESS": "'" + protocol.EndlessLease + "'",
		"HEARTBEATS": fmt.Sprintf("%.0f", float64(protocol.Heartbeats)), "RETAIN": "'" + protocol.PolicyArgRetain + "'",
		"HEARTBEAT_REJOIN": fmt.Sprint(protocol.HeartbeatRejoin), "HEARTBEAT_UNSUBSCRIBED": fmt.Sprint(protocol.HeartbeatUnsubscribed), "QUEUE_GRACE": fmt.Sprint(protocol.QueueTTL(0)),
	}
	for name, code := range map[string]int{
		"REFUSED": lua.Refused, "GRANTED": lua.Granted, "WAITING": lua.Waiting, "TOMBSTONED": lua.Tombstoned, "UNKNOWN": lua.Unknown, "LEFT": lua.Left, "HELD": lua.Held,
		"CONFLICT": lua.Conflict, "ABOVE_LIMIT": lua.AboveLimit, "RECALLED": lua.Recalled,
	} {
		want[name] = fmt.Sprint(code)
	}
	got := map[string]string{}
	text := must.Get(os.ReadFile("lib/constants.lua"))(t)
	for line := range strings.Lines(string(text)) {
		names, values, found := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "local ")), " = ")
		if !found || !strings.HasPrefix(line, "local ") {
			continue
		}
		list := strings.Split(values, ", ")
		for i, name := range strings.Split(names, ", ") {
			got[name] = list[i]
		}
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %s in Lua and %s in Go", name, got[name], value)
		}
	}
	for _, c := range []struct {
		name  string
		reply int64
		parse func(protocol.ReleaseReply) bool
	}{
		{"RELEASE_MORE", lua.Left, func(r protocol.ReleaseReply) bool { return r.More && !r.QueueEmpty }},
		{"RELEASE_QUEUE_EMPTY", lua.Left, func(r protocol.ReleaseReply) bool { return r.QueueEmpty && !r.More }},
	} {
		added, _ := strconv.ParseInt(got[c.name], 10, 64)
		if r, err := protocol.ParseReleaseReply([]int64{c.reply + added}); err != nil || r.Code != c.reply || !c.parse(r) {
			t.Errorf("%s is %s: %+v, %v", c.name, got[c.name], r, err)
		}
	}
	for name, parse := range map[string]func(protocol.AcquireReply) bool{
		"NOTE_MORE": func(a protocol.AcquireReply) bool { return a.More }, "NOTE_LIMITS": func(a protocol.AcquireReply) bool { return a.LimitsChanged },
	} {
		note, _ := strconv.ParseInt(got[name], 10, 64)
		if a, err := protocol.ParseAcquireReply([]int64{lua.Refused, 1, 1, note}); err != nil || !parse(a) {
			t.Errorf("%s is %s: %+v, %v", name, got[name], a, err)
		}
	}
	if a, err := protocol.ParseFastAcquireReply([]int64{0}); got["UNDECIDED"] != "0" || err != nil || !a.Undecided {
		t.Errorf("UNDECIDED is %s: %+v, %v", got["UNDECIDED"], a, err)
	}
}
