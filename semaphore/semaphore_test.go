package semaphore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/conformance"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

//go:noinline
func TestMain(m *testing.M) { conformance.Main(m, primitive) }

// primitive is a semaphore of which everybody wants all permits: so it must be as good a lock as the others. What it does
// besides is in conformance.Permits.
var primitive = conformance.Primitive{
	Kind: "semaphore",
	Key:  func(name string) string { return "{lock:" + name + "}:semaphore:holders" },
	New: func(k *lockkeeper.Keeper, name string, o conformance.Options) (conformance.Locker, error) {
		s, err := semaphore.New(k, name, 3, &semaphore.Options{TTL: o.TTL, NoRenewal: o.NoRenewal, MaxLifetime: o.MaxLifetime})
		if err != nil {
			return nil, err
		}
		all, err := s.LockerN(3)
		return whole{all, s}, err
	},
	Fair:  true,
	Cases: conformance.Permits,
}

// whole is all of a semaphore.
type whole struct {
	lockkeeper.Locker
	*semaphore.Semaphore
}

func (w whole) Name() string { return w.Locker.Name() }
func (w whole) Key() string  { return w.Locker.Key() }

func (w whole) Do(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error {
	return w.Semaphore.DoN(ctx, 3, fn)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.All(t, primitive)
}

// TestInvalidOptionsRejected: each error names what is wrong. Options that all locks have are tested in internal/testing/conformance.
func TestInvalidOptionsRejected(t *testing.T) {
	rdb := redistest.At(t, "127.0.0.1:1")
	k := keepers.New(t, rdb, nil)
	slow := keepers.New(t, rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}})
	long := &semaphore.Options{TTL: 9 * time.Second}
	must.Get(semaphore.New(k, "x", 1_000_000_000, nil))(t)
	must.Get(semaphore.New(slow, "x", 1, long))(t)
	check.That(t, *long == (semaphore.Options{TTL: 9 * time.Second}), "New has changed its options to %+v", long)
	for _, x := range []struct {
		keeper *lockkeeper.Keeper
		limit  int
		ttl    time.Duration
		names  string
	}{
		{k, 0, 0, "limit 0"},
		{k, -1, 0, "limit -1"},
		{k, 1_000_000_001, 0, "limit 1000000001"},
		{slow, 1, 8 * time.Second, "TTL 8s is not longer than the keeper's ReplicaAck.Timeout 8s"},
		{k, 1, time.Millisecond, "TTL 1ms"},
		{nil, 1, 0, "keeper is nil"},
	} {
		s, err := semaphore.New(x.keeper, "x", x.limit, &semaphore.Options{TTL: x.ttl})
		check.That(t, s == nil && errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), x.names),
			"New(%d) with TTL %v: %v, want an ErrInvalid that names %q", x.limit, x.ttl, err, x.names)
	}
}

// TestLeaseOutlastsOneThatEndsBefore: all leases are in one key, which must not end with the first of them, however a later one was granted.
func TestLeaseOutlastsOneThatEndsBefore(t *testing.T) {
	for how, grant := range map[string]func(ctx context.Context, s *semaphore.Semaphore, held *lockkeeper.Lease) (*lockkeeper.Lease, error){
		"at once": func(ctx context.Context, s *semaphore.Semaphore, held *lockkeeper.Lease) (*lockkeeper.Lease, error) {
			if err := held.Release(ctx); err != nil {
				return nil, err
			}
			return s.TryAcquire(ctx)
		},
		"by a release": func(ctx context.Context, s *semaphore.Semaphore, held *lockkeeper.Lease) (*lockkeeper.Lease, error) {
			released := make(chan error, 1)
			go func() {
				synctest.Wait() // until it is queued
				released <- held.Release(ctx)
			}()
			lease, err := s.Acquire(ctx)
			return lease, errors.Join(err, <-released)
		},
	} {
		t.Run(how, func(t *testing.T) {
			embedded.Run(t, func(t *embedded.Server) {
				open := func(o *semaphore.Options) *semaphore.Semaphore {
					k := keepers.New(t, redistest.On(t, t.Network(), time.Second), nil)
					return must.Get(semaphore.New(k, "x", 2, o))(t)
				}
				brief, s := open(&semaphore.Options{TTL: 10 * time.Second, NoRenewal: true}), open(nil)
				first, held := must.Get(brief.TryAcquire(t.Context()))(t), must.Get(brief.TryAcquire(t.Context()))(t)
				time.Sleep(9 * time.Second)
				second := must.Get(grant(t.Context(), s, held))(t)
				<-first.Done()
				time.Sleep(time.Second) // it is over for the server as well, and the second was not renewed yet
				third := must.Get(s.TryAcquire(t.Context()))(t)
				check.Is(t, check.ErrorOf(s.TryAcquire(t.Context())), lockkeeper.ErrNotAcquired, "a third lease of two permits")
				must.OK(t, errors.Join(second.Release(t.Context()), third.Release(t.Context())))
			})
		})
	}
}
