package proptest

import (
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"pgregory.net/rapid"
)

// mutexLock: one holder. A newcomer may overtake waiters when the mutex is free, but waiters are served by their
// tickets. Requests of one process wait there, and the first of them at the server. Some releases leave the key free for a while.
type mutexLock struct {
	single
	yield   time.Duration // of the requests that set it; 0: none does
	yielded bool          // the key was left free since it was last granted
	over    int64         // the freeUntil that was last seen to have passed; a clock that is set back after that does not restore it
}

func (*mutexLock) scripts() *lua.Set { return lua.Mutex }
func (*mutexLock) bare() bool        { return true }
func (*mutexLock) queuesAll() bool   { return false }

// lingers returns for how long the mark stays that the key is left free.
func (m *mutexLock) lingers() time.Duration { return m.yield }

func (m *mutexLock) settings(r *rapid.T) {
	m.yield = rapid.SampledFrom([]time.Duration{0, 0, 10 * time.Second, 700 * time.Millisecond, 50 * time.Millisecond, time.Millisecond}).Draw(r, "yield")
}

func (m *mutexLock) wants(r *rapid.T, q *request) {
	if m.yield > 0 && rapid.Bool().Draw(r, "yields") {
		q.yield = m.yield
	}
}

func (*mutexLock) get(q *request) (*lockkeeper.Lease, error) {
	l, err := mutex.New(q.p.Keeper, name, &mutex.Options{TTL: q.ttl(), NoRenewal: q.fixed, MaxLifetime: q.lifetime(), Yield: q.yield})
	if err != nil {
		panic(err)
	}
	if q.adopts != nil {
		return l.Adopt(q.ctx, q.adopts.lease.Token())
	}
	if q.try {
		return l.TryLock(q.ctx)
	}
	return l.Lock(q.ctx)
}

// stepped checks what a key that is left free promises.
func (m *mutexLock) stepped(w *world, s *step) {
	for token := range s.after.leases {
		if _, had := s.before.leases[token]; had {
			continue
		}
		if (s.before.leftFree() || s.after.leftFree()) && s.after.freeUntil != m.over {
			w.breaksLocked(leftFree, "%s is granted it by %s", w.tokenName(token), s.script)
		}
		if _, stood := s.before.position(token); stood && m.yielded {
			w.tally["a key that was left free is granted to a waiter"]++
		}
		m.yielded = false
	}
	if s.after.now/1000 >= s.after.freeUntil {
		m.over = s.after.freeUntil
	}
	if s.after.freeUntil == s.before.freeUntil {
		return
	}
	if s.after.freeUntil == 0 && s.before.freeUntil < s.before.now/1000 {
		return // it was forgotten with the other metadata
	}
	if s.after.leftFree() {
		m.yielded = true
		w.tally["the key is left free"]++
	}
	begins := s.after.freeUntil - s.after.freeFor
	if begins != s.after.now/1000 || w.setBack == 0 && s.before.freeUntil > 0 && begins < s.before.freeUntil+9*s.after.freeFor {
		w.breaksLocked(leftFree, "from %d to %d by %s at %d, after %d", begins, s.after.freeUntil, s.script, s.after.now/1000, s.before.freeUntil)
	}
}

func (*mutexLock) before(_ *world, s *step, y waiting, token string, at float64, stood bool) bool {
	asks := s.script == "acquire" && s.token == token // perhaps again after a lost reply
	return stood && y.at < at && !asks
}
