package proptest

import (
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
)

// mutexLock: one holder. A newcomer may overtake waiters when the mutex is free, but waiters are served by their
// tickets. Requests of one process wait there, and the first of them at the server.
type mutexLock struct{ single }

func (mutexLock) scripts() *lua.Set { return lua.Mutex }
func (mutexLock) bare() bool        { return true }
func (mutexLock) queuesAll() bool   { return false }

func (mutexLock) get(q *request) (*lockkeeper.Lease, error) {
	l, err := mutex.New(q.p.Keeper, name, &mutex.Options{TTL: q.ttl(), NoRenewal: q.fixed})
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

func (mutexLock) before(_ *world, s *step, y waiting, token string, at float64, stood bool) bool {
	asks := s.script == "acquire" && s.token == token // perhaps again after a lost reply
	return stood && y.at < at && !asks
}
