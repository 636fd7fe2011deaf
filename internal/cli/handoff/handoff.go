// Package handoff hands a lock over between two keepers, and measures how long that takes.
package handoff

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
)

// ttl is that of the lock.
const ttl = 10 * time.Second

// Pair is a lock that two keepers hand over to each other. It is used by one goroutine.
type Pair struct {
	locks  [2]*fair.Lock
	queued chan struct{}
	lease  *lockkeeper.Lease
	next   int // index of the lock that gets the next lease
}

// New returns a pair. Queued must be a hook of both keepers.
func New() *Pair { return &Pair{queued: make(chan struct{}, 100)} }

// Queued is the hook of that name.
func (p *Pair) Queued(lockkeeper.Event) {
	select {
	case p.queued <- struct{}{}:
	default:
	}
}

// Lock acquires the lock for the first time.
func (p *Pair) Lock(ctx context.Context, keepers [2]*lockkeeper.Keeper, name string) error {
	for i, k := range keepers {
		l, err := fair.New(k, name, &fair.Options{TTL: ttl})
		if err != nil {
			return err
		}
		p.locks[i] = l
	}
	lease, err := p.locks[0].Lock(ctx)
	p.lease, p.next = lease, 1
	return err
}

// HandOver releases the lock after the other keeper has begun to wait for it, and returns the time from the release to the grant.
func (p *Pair) HandOver(ctx context.Context) (time.Duration, error) {
	for len(p.queued) > 0 { // of the previous time: the hook also reports changes of the position
		<-p.queued
	}
	type result struct {
		lease *lockkeeper.Lease
		err   error
		at    time.Time
	}
	next := make(chan result, 1)
	go func() {
		l, err := p.locks[p.next].Lock(ctx)
		next <- result{l, err, time.Now()}
	}()
	select {
	case <-p.queued:
	case r := <-next:
		if r.err == nil {
			r.err = errors.New("two keepers hold the lock")
		}
		return 0, r.err
	}
	start := time.Now()
	if err := p.lease.Release(ctx); err != nil {
		return 0, err
	}
	r := <-next
	p.lease, p.next = r.lease, 1-p.next
	return r.at.Sub(start), r.err
}

// Release releases the lock.
func (p *Pair) Release(ctx context.Context) error { return p.lease.Release(ctx) }
