package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

const (
	lockName    = "example:cache"
	titleKey    = "example:cache:title"
	textKey     = "example:cache:text"
	documentKey = "example:cache:document" // both parts in one value
	keep        = time.Minute              // the cache goes away by itself
)

// way is a way to read and to write the cache.
type way struct {
	name string
	// open prepares the way: it sets newProcess, and returns what the writer does.
	open func(ctx context.Context, s *setup) (write, error)
}

// read returns the document, as a reader of one process sees it.
type read func(ctx context.Context) (document, error)

// write fetches a new version from the source and stores it, if it is time.
type write func(ctx context.Context) error

var ways = []way{
	{"no lock", withoutLock},
	{"Linger 0", withLock(0)},
	{"Linger 1ms", withLock(time.Millisecond)},
	{"Linger 5ms", withLock(5 * time.Millisecond)},
	{"Linger 50ms", withLock(50 * time.Millisecond)},
	{"pointer", withPointer},
}

// setup is one way at work.
type setup struct {
	workload
	*result
	source     *source
	history    *history
	client     func() *redis.Client // a new one
	newProcess func(ctx context.Context) (read, error)
	background []func(ctx context.Context) error // what processes do ten times in the time between two writes
	closers    []func() error
}

func (s *setup) closing(f func() error) { s.closers = append(s.closers, f) }

func (s *setup) close() {
	for _, f := range slices.Backward(s.closers) {
		_ = f()
	}
}

// keeper returns a keeper with the client of a process.
func (s *setup) keeper(rdb *redis.Client) (*lockkeeper.Keeper, error) {
	k, err := lockkeeper.New(rdb, nil)
	if err == nil {
		s.closing(k.Close)
	}
	return k, err
}

// withoutLock reads and writes both parts without a lock.
func withoutLock(_ context.Context, s *setup) (write, error) {
	s.newProcess = func(context.Context) (read, error) {
		rdb := s.client()
		return func(ctx context.Context) (document, error) { return get(ctx, rdb) }, nil
	}
	rdb := s.client()
	return func(ctx context.Context) error {
		d := s.source.fetch()
		err := set(ctx, rdb, d)
		s.history.add(d.title)
		return err
	}, nil
}

// withLock reads under a read lock with this Linger and writes under a write lock.
func withLock(linger time.Duration) func(context.Context, *setup) (write, error) {
	return func(_ context.Context, s *setup) (write, error) {
		open := func() (*redis.Client, *rwlock.Lock, error) {
			rdb := s.client()
			k, err := s.keeper(rdb)
			if err != nil {
				return nil, nil, err
			}
			l, err := rwlock.New(k, lockName, &rwlock.Options{Linger: linger})
			return rdb, l, err
		}
		s.newProcess = func(context.Context) (read, error) {
			rdb, l, err := open()
			if err != nil {
				return nil, err
			}
			p := &process{rdb: rdb, lock: l}
			return p.read, nil
		}
		rdb, l, err := open()
		return func(ctx context.Context) error {
			// It asks the source before it locks, so that readers go on while the source takes its time. With more than one writer
			// the question belongs under the lock, or the older of two answers may be written last.
			d := s.source.fetch()
			came := time.Now()
			err := l.DoWrite(ctx, func(ctx context.Context, _ uint64) error {
				s.waits = append(s.waits, time.Since(came))
				return set(ctx, rdb, d)
			})
			s.history.add(d.title)
			return err
		}, err
	}
}

// process is a process that reads under the read lock. It is safe for concurrent use.
type process struct {
	rdb  *redis.Client
	lock *rwlock.Lock
	copy atomic.Pointer[copied]
}

// copied is a document that was read under the lease with a fence.
type copied struct {
	document
	fence uint64
}

// read returns the copy if it was read under the same lease, because then nobody can have written since.
func (p *process) read(ctx context.Context) (d document, err error) {
	err = p.lock.DoRead(ctx, func(ctx context.Context, fence uint64) error {
		if c := p.copy.Load(); c != nil && c.fence == fence {
			d = c.document
			return nil
		}
		if d, err = get(ctx, p.rdb); err == nil {
			p.copy.Store(&copied{d, fence})
		}
		return err
	})
	return d, err
}

// get reads both parts. Without a lock a write may come between the two.
func get(ctx context.Context, rdb *redis.Client) (d document, err error) {
	if d.title, err = rdb.Get(ctx, titleKey).Int(); err != nil {
		return d, err
	}
	d.text, err = rdb.Get(ctx, textKey).Int()
	return d, err
}

// set writes both parts.
func set(ctx context.Context, rdb *redis.Client, d document) error {
	if err := rdb.Set(ctx, titleKey, d.title, keep).Err(); err != nil {
		return err
	}
	time.Sleep(5 * time.Millisecond) // texts can be long
	return rdb.Set(ctx, textKey, d.text, keep).Err()
}

// withPointer reads from a pointer. Each process reloads it ten times in the time between two writes, and rebuilds the cache under a
// mutex if it finds it too old: so only one process asks the source.
func withPointer(ctx context.Context, s *setup) (write, error) {
	open := func() (*pointer, error) {
		p := &pointer{setup: s, rdb: s.client()}
		k, err := s.keeper(p.rdb)
		if err != nil {
			return nil, err
		}
		p.rebuild, err = mutex.New(k, lockName, nil)
		return p, err
	}
	s.newProcess = func(ctx context.Context) (read, error) {
		p, err := open()
		if err != nil {
			return nil, err
		}
		s.background = append(s.background, p.refresh)
		return func(context.Context) (document, error) { return p.value.Load().document, nil }, p.reload(ctx)
	}
	p, err := open()
	if err != nil {
		return nil, err
	}
	first := true
	return func(ctx context.Context) error { // the processes write
		if !first {
			return nil
		}
		first = false
		return p.store(ctx)
	}, nil
}

// pointer is a process that reads from its pointer.
type pointer struct {
	*setup
	rdb     *redis.Client
	rebuild *mutex.Mutex
	value   atomic.Pointer[built]
}

// built is a document with the time at which it was fetched.
type built struct {
	document
	at time.Time
}

func (p *pointer) tooOld() bool { return time.Since(p.value.Load().at) >= p.rewrite }

// refresh reloads the pointer, and rebuilds the cache if it is too old and no other process is at it.
func (p *pointer) refresh(ctx context.Context) error {
	if err := p.reload(ctx); err != nil || !p.tooOld() {
		return err
	}
	lease, err := p.rebuild.TryLock(ctx)
	if errors.Is(err, lockkeeper.ErrNotAcquired) {
		return nil // it will be there at the next reload
	}
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	if err := p.reload(ctx); err != nil || !p.tooOld() { // another may have rebuilt it since
		return err
	}
	return p.store(ctx)
}

// reload sets the pointer to what is in Redis.
func (p *pointer) reload(ctx context.Context) error {
	text, err := p.rdb.Get(ctx, documentKey).Result()
	if err != nil {
		return err
	}
	var b built
	var ms int64
	if _, err := fmt.Sscan(text, &b.title, &b.text, &ms); err != nil {
		return err
	}
	b.at = time.UnixMilli(ms)
	p.value.Store(&b)
	return nil
}

// store fetches a new version and stores it.
func (p *pointer) store(ctx context.Context) error {
	d := p.source.fetch()
	err := p.rdb.Set(ctx, documentKey, fmt.Sprint(d.title, d.text, time.Now().UnixMilli()), keep).Err()
	p.history.add(d.title)
	return err
}
