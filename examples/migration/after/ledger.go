// Package after is the service of package before, with Lockkeeper instead of redsync.
package after

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

// ErrBusy means that another process works on the account.
var ErrBusy = errors.New("ledger: the account is busy")

// Ledger keeps balances of accounts in Redis. One process at a time works on an account.
type Ledger struct {
	rdb *redis.Client
	k   *lockkeeper.Keeper
}

// New returns a ledger. Shutdown must be called when it is no longer used.
func New(rdb *redis.Client) (*Ledger, error) {
	k, err := lockkeeper.New(rdb, &lockkeeper.Options{NoPrefix: true}) // the keys of redsync
	if err != nil {
		return nil, err
	}
	return &Ledger{rdb, k}, nil
}

// Shutdown ends the use of the ledger and releases what it holds.
func (l *Ledger) Shutdown() error { return l.k.Close() }

// Book adds an amount to an account. It waits while another process works on the account.
func (l *Ledger) Book(ctx context.Context, account string, amount int) error {
	lock, err := mutex.New(l.k, "account:"+account, nil)
	if err != nil {
		return err
	}
	return busy(lock.Do(ctx, func(ctx context.Context, _ uint64) error {
		return l.add(ctx, account, amount)
	}))
}

// Settle does the steps of a month's end on an account, each of which may take some seconds. It does not wait.
func (l *Ledger) Settle(ctx context.Context, account string, steps ...func(context.Context) error) error {
	lock, err := mutex.New(l.k, "account:"+account, nil)
	if err != nil {
		return err
	}
	lease, err := lock.TryLock(ctx)
	if err != nil {
		return busy(err)
	}
	defer func() { _ = lease.Release(ctx) }()
	ctx = lease.Context(ctx) // ends if the lock is lost
	for _, step := range steps {
		if ctx.Err() != nil {
			return fmt.Errorf("ledger: %w", context.Cause(ctx))
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Balance returns the balance of an account.
func (l *Ledger) Balance(ctx context.Context, account string) (int, error) {
	n, err := l.rdb.Get(ctx, "balance:"+account).Int()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}

func (l *Ledger) add(ctx context.Context, account string, amount int) error {
	n, err := l.Balance(ctx, account)
	if err != nil {
		return err
	}
	return l.rdb.Set(ctx, "balance:"+account, n+amount, 0).Err()
}

func busy(err error) error {
	if errors.Is(err, lockkeeper.ErrNotAcquired) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}
