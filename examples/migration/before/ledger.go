// Package before is a small service that uses redsync. Package after is the same service with Lockkeeper.
package before

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// ErrBusy means that another process works on the account.
var ErrBusy = errors.New("ledger: the account is busy")

// Ledger keeps balances of accounts in Redis. One process at a time works on an account.
type Ledger struct {
	rdb *redis.Client
	rs  *redsync.Redsync
}

// New returns a ledger.
func New(rdb *redis.Client) (*Ledger, error) {
	return &Ledger{rdb, redsync.New(goredis.NewPool(rdb))}, nil
}

// Shutdown ends the use of the ledger.
func (l *Ledger) Shutdown() error { return nil }

// Book adds an amount to an account. It waits while another process works on the account.
func (l *Ledger) Book(ctx context.Context, account string, amount int) error {
	lock := l.rs.NewMutex("account:"+account, redsync.WithTries(1000), redsync.WithRetryDelay(10*time.Millisecond))
	if err := lock.LockContext(ctx); err != nil {
		return busy(err)
	}
	if err := l.add(ctx, account, amount); err != nil {
		_, _ = lock.UnlockContext(context.WithoutCancel(ctx))
		return err
	}
	if ok, err := lock.UnlockContext(context.WithoutCancel(ctx)); !ok {
		return fmt.Errorf("ledger: %s was booked, but the lock had expired: %w", account, err)
	}
	return nil
}

// Settle does the steps of a month's end on an account, each of which may take some seconds. It does not wait.
func (l *Ledger) Settle(ctx context.Context, account string, steps ...func(context.Context) error) error {
	lock := l.rs.NewMutex("account:" + account)
	if err := lock.TryLockContext(ctx); err != nil {
		return busy(err)
	}
	defer func() { _, _ = lock.UnlockContext(context.WithoutCancel(ctx)) }()
	for _, step := range steps {
		if ok, err := lock.ExtendContext(ctx); !ok {
			return fmt.Errorf("ledger: the lock is lost: %w", err)
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
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}
