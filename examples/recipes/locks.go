package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func pay(ctx context.Context, k *lockkeeper.Keeper, order string) error {
	m, err := mutex.New(k, "order:"+order, nil)
	if err != nil {
		return err
	}
	return m.Do(ctx, func(ctx context.Context, fence uint64) error {
		return charge(ctx, order, fence) // ctx ends if the lock is lost
	})
}

func payWithin(ctx context.Context, m *mutex.Mutex, order string) error {
	wait, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	lease, err := m.Lock(wait)
	switch {
	case errors.Is(err, lockkeeper.ErrNotAcquired):
		return errBusy // held elsewhere for 2 s
	case err != nil:
		return err // ErrUnavailable: Redis did not answer
	}
	defer lease.Release(ctx)
	return charge(lease.Context(ctx), order, lease.Fence()) // ctx and not wait: the work may take longer
}

func transfer(ctx context.Context, from, to *mutex.Mutex) error {
	leases, err := lockkeeper.LockAll(ctx, from, to) // in an order that cannot deadlock
	if err != nil {
		return err
	}
	defer leases.Release(ctx)
	return move(leases.Context(ctx), leases.Of(from).Fence(), leases.Of(to).Fence())
}
