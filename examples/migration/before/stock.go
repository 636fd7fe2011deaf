// Package before is a small service that uses redsync. Package after is the same service with Lockkeeper.
package before

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var (
	ErrBusy     = errors.New("stock: locked by another process")
	ErrLockLost = errors.New("stock: the lock was lost")
	ErrShort    = errors.New("stock: not enough left")
)

// Stock keeps the stock of a shop in Redis. One process at a time works on an item.
type Stock struct {
	host   string
	rdb    *redis.Client
	rs     *redsync.Redsync
	expiry time.Duration
}

// New returns the stock. Close must be called when it is no longer used.
func New(host string, rdb *redis.Client, expiry time.Duration) (*Stock, error) {
	return &Stock{host, rdb, redsync.New(goredis.NewPool(rdb)), expiry}, nil
}

// Close ends the use of the stock.
func (s *Stock) Close() error { return nil }

// value makes the value of a lock, which says who holds it.
func (s *Stock) value() (string, error) { return s.host + "/" + rand.Text(), nil }

// lock waits for about a second.
func (s *Stock) lock(ctx context.Context, sku string) (*redsync.Mutex, error) {
	m := s.rs.NewMutex("lock:item:"+sku, redsync.WithExpiry(s.expiry), redsync.WithGenValueFunc(s.value),
		redsync.WithTries(20), redsync.WithRetryDelay(50*time.Millisecond))
	return m, busy(m.LockContext(ctx))
}

// Reserve takes n pieces of an item.
func (s *Stock) Reserve(ctx context.Context, sku string, n int) error {
	m, err := s.lock(ctx, sku)
	if err != nil {
		return err
	}
	defer m.Unlock()
	left, err := s.Left(ctx, sku)
	if err != nil {
		return err
	}
	if left < n {
		return ErrShort
	}
	if time.Now().After(m.Until()) {
		return ErrLockLost
	}
	return s.rdb.Set(ctx, "stock:"+sku, left-n, 0).Err()
}

// Move moves n pieces from one item to another. It locks both, in the order of their names.
func (s *Stock) Move(ctx context.Context, from, to string, n int) error {
	for _, sku := range []string{min(from, to), max(from, to)} {
		m, err := s.lock(ctx, sku)
		if err != nil {
			return err
		}
		defer m.Unlock()
	}
	left, err := s.Left(ctx, from)
	if err != nil {
		return err
	}
	if left < n {
		return ErrShort
	}
	if err := s.rdb.DecrBy(ctx, "stock:"+from, int64(n)).Err(); err != nil {
		return err
	}
	return s.rdb.IncrBy(ctx, "stock:"+to, int64(n)).Err()
}

// Left returns how many pieces of an item are left.
func (s *Stock) Left(ctx context.Context, sku string) (int, error) {
	n, err := s.rdb.Get(ctx, "stock:"+sku).Int()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, err
}

// Stocktake runs count, which takes longer than the expiry, in one process at a time. It does not wait. The context of count ends when the
// lock is lost.
func (s *Stock) Stocktake(ctx context.Context, count func(context.Context) error) error {
	m := s.rs.NewMutex("lock:stocktake", redsync.WithExpiry(s.expiry), redsync.WithGenValueFunc(s.value), redsync.WithSetNXOnExtend())
	if err := m.TryLockContext(ctx); err != nil {
		return busy(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(s.expiry / 3):
				if ok, err := m.ExtendContext(ctx); !ok && ctx.Err() == nil {
					cancel(errors.Join(ErrLockLost, err))
				}
			}
		}
	}()
	err := count(ctx)
	lost := context.Cause(ctx)
	cancel(nil)
	<-extended
	ok, unlockErr := m.Unlock()
	switch {
	case errors.Is(lost, ErrLockLost):
		return lost
	case !ok:
		return errors.Join(err, ErrLockLost, unlockErr)
	}
	return err
}

// Hold locks an item while a customer is at the checkout, for d at most. Any process can end it by the ticket.
func (s *Stock) Hold(ctx context.Context, sku string, d time.Duration) (ticket string, err error) {
	m := s.rs.NewMutex("lock:item:"+sku, redsync.WithExpiry(d), redsync.WithGenValueFunc(s.value))
	err = busy(m.TryLockContext(ctx))
	return m.Value(), err
}

// Finish ends a Hold.
func (s *Stock) Finish(ctx context.Context, sku, ticket string) error {
	if ok, err := s.rs.NewMutex("lock:item:"+sku, redsync.WithValue(ticket)).UnlockContext(ctx); !ok {
		return errors.Join(ErrLockLost, err)
	}
	return nil
}

// Holder returns which host has locked an item, or "".
func (s *Stock) Holder(ctx context.Context, sku string) (string, error) {
	value, err := s.rdb.Get(ctx, "lock:item:"+sku).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	host, _, _ := strings.Cut(value, "/")
	return host, err
}

// ServeHTTP is POST /?sku=…&n=…, which reserves.
func (s *Stock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.FormValue("n"))
	switch err := s.Reserve(r.Context(), r.FormValue("sku"), n); {
	case err == nil:
		fmt.Fprintln(w, "reserved")
	case errors.Is(err, ErrBusy):
		w.Header().Set("Retry-After", "1")
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, ErrShort):
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

func busy(err error) error {
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return err
}
