package claim

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

// rules are those of the claims in the tables: leases of 10 s that are renewed, and claims of 6 s.
var rules = Rules{TTL: 10_000, ClaimTTL: 6_000, HeartbeatTimeout: 6 * time.Second, MetadataTTL: time.Hour}

// at returns the instant that many ms after the beginning of a table.
func at(ms int64) Instant { return Instant(time.Hour + Duration(ms)) }

// step is a row of a table: an event, and what is to be done after it.
type step struct {
	at    int64 // ms
	e     Event
	state State
	out   string // the effects as text prints them
}

// text prints what is set in the effects: times in ms since the beginning of a table.
func text(out Effects) string {
	var list []string
	v := reflect.ValueOf(out)
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch x := v.Field(i).Interface().(type) {
		case bool:
			if x {
				list = append(list, name)
			}
		case Instant:
			if x != 0 {
				list = append(list, fmt.Sprintf("%s=%d", name, time.Duration(x-at(0)).Milliseconds()))
			}
		case Reason:
			if x != NoReason {
				list = append(list, name+"="+reasonNames[x])
			}
		default:
			if !v.Field(i).IsZero() {
				list = append(list, fmt.Sprintf("%s=%v", name, x))
			}
		}
	}
	return strings.Join(list, " ")
}

var reasonNames = [reasons]string{
	"-", "ByCaller", "ByClose", "ByBreak", "ByDenial", "ByTombstone", "ByConflict", "ByLimit", "ByLateness", "ByError", "ByRelease",
	"ByForgetting", "ByDeadline", "ByFixedTTL", "ByLifetime", "ByServer", "ByDriver",
}

// check takes a claim through the rows, and then checks it.
func check(t *testing.T, what string, c Claim, rows []step, then ...func(*testing.T, *Claim)) {
	t.Helper()
	checkBy(t, func(*Rules) {}, what, c, rows, then...)
}

// checkBy does so by other rules than those of most.
func checkBy(t *testing.T, change func(*Rules), what string, c Claim, rows []step, then ...func(*testing.T, *Claim)) {
	t.Helper()
	t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
		r := rules
		change(&r)
		for i, s := range rows {
			var out Effects
			c.Step(&r, at(s.at), &s.e, &out)
			if got := text(out); got != s.out || c.State() != s.state {
				t.Errorf("%d. %s at %d ms:\n\tstate %s, %q\nwant\tstate %s, %q",
					i+1, s.e.Kind, s.at, c.State(), got, s.state, s.out)
			}
		}
		for _, f := range then {
			f(t, &c)
		}
	})
}

// after returns the claim that the rows lead to.
func after(c Claim, rows ...step) Claim { return afterBy(&rules, c, rows...) }

func afterBy(r *Rules, c Claim, rows ...step) Claim {
	for i := range rows {
		var out Effects
		c.Step(r, at(rows[i].at), &rows[i].e, &out)
	}
	return c
}

// waiting returns a claim that is queued, after these rows as well.
func waiting(rows ...step) Claim {
	return after(New(Wait, false, false), append([]step{called, queued}, rows...)...)
}

// held returns a claim that was granted a lease by the reply to a call sent at 0 ms.
func held() Claim { return after(New(Wait, false, false), called, granted) }

var (
	called  = step{0, Event{Kind: Called}, Asking, "Ask"}
	granted = step{1, Event{Kind: Replied, Code: Granted, Sent: at(0), Fence: 7}, Held, "Deliver Timer=3126"}
)

// Of a request that is queued at 50 ms, and woken by a message at 200 ms.
var (
	queued = step{60, Event{Kind: Replied, Code: Queued, Sent: at(50), Fence: 3, Clock: 1_000, Place: 1}, Waiting, "Queue"}
	woken  = step{200, Event{Kind: Woken, Fence: 4}, Unconfirmed, "WakeupHeard Deliver Timer=2000"}
)

// TestDurationDoesNotOverflow checks that no number of milliseconds becomes a negative duration.
func TestDurationDoesNotOverflow(t *testing.T) {
	for ms, want := range map[int64]int64{0: 0, 1: 1e6, 30000: 30000e6, math.MaxInt64: math.MaxInt64, math.MaxInt64 / 1000: math.MaxInt64} {
		if got := Duration(ms); int64(got) != want {
			t.Errorf("%d ms is %d ns, want %d", ms, got, want)
		}
	}
}
