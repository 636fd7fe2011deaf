package conformance

import (
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// keyWithoutExpiry takes the expiry of the lock's key away, as PERSIST does, or a tool that copies keys without their ttl. The holder's next
// renewal sets it again. If the holder is dead, whoever asks next does, and is granted the lock a ttl later.
func keyWithoutExpiry(w *World) {
	key := w.P.Key("x")
	persist := func() {
		w.Helper()
		must.That(w, must.Get(w.admin.Persist(w.ctx(), key).Result())(w), "the key had no expiry before")
	}
	p := w.Process()
	first := w.hold(p.Lock("x"))
	persist()
	w.eventually("an expiry", func() bool { return w.admin.PTTL(w.ctx(), key).Val() > 0 })
	p.Crash()
	persist()
	asked := time.Now()
	q := w.Process()
	r := w.awaitGrant(w.lockAsync(w.ctx(), q.Lock("x")), ttl+50*time.Millisecond)
	w.inTime(r.at.Sub(asked), 0, ttl+50*time.Millisecond, "granted after somebody asked")
	w.checkFenceRises(first, r.lease)
	check.Is(w, r.lease.Err(), nil, "the lease of the next holder")

	// The waiter was there before.
	ch := w.acquireAsync(w.ctx(), 1, w.Process().Lock("x").Lock)
	q.Crash()
	persist()
	r = w.awaitGrant(ch, 2*ttl+heartbeatInterval)
	w.release(r.lease)
	w.checkClean()
}

// serverClocks are times at which the clock of a server may be, in ms: of a machine that does not know the time, and where a number of s, ms
// or µs gets another digit, or one more bit. At those of lateClocks, locks refuse to work.
var (
	serverClocks = []int64{
		0, 86_400_000, 1e10 - 1, 1e10 + 1, // to 26 April 1970
		9e11 - 3_600_000, 900_000_001_000, 915_148_800_000, // July 1998, 1999
		1e12 - 1, 1e12 + 1, // September 2001
		(1<<31 - 1) * 1000, 3_590_000_000_000 - 3_600_000, // 2038, October 2083
	}
	lateClocks = []int64{3_590_000_000_000, (1<<32 - 1) * 1000, 92e11} // October 2083, 2106, 2261; the embedded server knows no later time
)

// anyServerClock runs cases with the server's clock at each of these times.
func anyServerClock(tests ...func(*World)) func(*World) {
	return func(w *World) {
		at := func(clock int64, test func(*World)) {
			w.must(w.admin.FlushAll(w.ctx()).Err())
			defer w.mini.SetTime(time.Time{})
			defer w.shiftClock(time.Until(time.UnixMilli(clock)))()
			before := w.Failed()
			test(w)
			if w.Failed() && !before {
				w.Logf("the server's clock was at %v", time.UnixMilli(clock).UTC())
			}
		}
		for _, clock := range serverClocks {
			for _, test := range tests {
				at(clock, test)
			}
		}
		for _, clock := range lateClocks {
			at(clock, func(w *World) {
				_, err := w.Process().Lock("x").TryLock(w.ctx())
				must.That(w, err != nil && strings.Contains(err.Error(), "October 2083"), "at %d ms: %v", clock, err)
				check.That(w, len(w.keys()) == 0, "it leaves %v", w.keys())
			})
		}
	}
}
