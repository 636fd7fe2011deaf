package proptest

import (
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/lua"
)

// fairLock: one holder, and strict order. Waiters are served by their tickets; a request that was granted the lock
// at once comes after all that were connected then.
type fairLock struct{ single }

func (fairLock) scripts() *lua.Set { return lua.Fair }
func (fairLock) bare() bool        { return false }
func (fairLock) queuesAll() bool   { return true }

func (fairLock) get(q *request) (*lockkeeper.Lease, error) {
	l, err := fair.New(q.p.Keeper, name, &fair.Options{TTL: q.ttl(), NoRenewal: q.fixed, MaxLifetime: q.lifetime()})
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

func (fairLock) before(_ *world, _ *step, y waiting, _ string, at float64, stood bool) bool {
	return !stood || y.at < at
}
