// Package after is the service of package before, with Lockkeeper instead of redsync.
package after

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

var (
	ErrBusy     = errors.New("stock: locked by another process")
	ErrLockLost = errors.New("stock: the lock was lost")
	ErrShort    = errors.New("stock: not enough left")
)

// Stock keeps the stock of a shop in Redis. One process at a time works on an item.
type Stock struct {
	rdb    *redis.Client
	k      *lockkeeper.Keeper
	holds  *lockkeeper.Keeper // of Hold; not closed, since that would release them
	expiry time.Duration
}

// New returns the stock. Close must be called when it is no longer used.
func New(host string, rdb *redis.Client, expiry time.Duration) (*Stock, error) {
	opts := &lockkeeper.Options{
		NoPrefix: true, // the keys of redsync
		Owner:    host,
		// As long as processes with redsync run: they do not notify waiters of a release.
		HeartbeatInterval: 100 * time.Millisecond,
		HeartbeatTimeout:  6 * time.Second,
	}
	k, err := lockkeeper.New(rdb, opts)
	if err != nil {
		return nil, err
	}
	holds, err := lockkeeper.New(rdb, opts)
	return &Stock{rdb, k, holds, expiry}, err
}

// Close ends the use of the stock. What Hold has locked remains locked.
func (s *Stock) Close() error { return s.k.Close() }

// lock waits for about a second.
func (s *Stock) lock(ctx context.Context, sku string) (*lockkeeper.Lease, error) {
	m, err := mutex.New(s.k, "lock:item:"+sku, &mutex.Options{TTL: s.expiry})
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, time.Second) // 20 tries, 50 ms apart
	defer cancel()
	lease, err := m.Lock(wait)
	return lease, busy(err)
}

// Reserve takes n pieces of an item.
func (s *Stock) Reserve(ctx context.Context, sku string, n int) error {
	lease, err := s.lock(ctx, sku)
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	ctx = lease.Context(ctx) // ends when the lock is lost
	left, err := s.Left(ctx, sku)
	if err != nil {
		return err
	}
	if left < n {
		return ErrShort
	}
	if lease.Err() != nil {
		return ErrLockLost
	}
	return s.rdb.Set(ctx, "stock:"+sku, left-n, 0).Err()
}

// Move moves n pieces from one item to another. It locks both, in the order of their names.
func (s *Stock) Move(ctx context.Context, from, to string, n int) error {
	for _, sku := range []string{min(from, to), max(from, to)} {
		lease, err := s.lock(ctx, sku)
		if err != nil {
			return err
		}
		defer lease.Release(ctx)
		ctx = lease.Context(ctx)
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
	m, err := mutex.New(s.k, "lock:stocktake", &mutex.Options{TTL: s.expiry})
	if err != nil {
		return err
	}
	lease, err := m.TryLock(ctx)
	if err != nil {
		return busy(err)
	}
	err = count(lease.Context(ctx))
	return busy(errors.Join(err, lease.Release(ctx)))
}

// Hold locks an item while a customer is at the checkout, for d at most. Any process can end it by the ticket.
func (s *Stock) Hold(ctx context.Context, sku string, d time.Duration) (ticket string, err error) {
	m, err := mutex.New(s.holds, "lock:item:"+sku, &mutex.Options{TTL: d, NoRenewal: true})
	if err != nil {
		return "", err
	}
	lease, err := m.TryLock(ctx)
	return lease.Token(), busy(err)
}

// Finish ends a Hold.
func (s *Stock) Finish(ctx context.Context, sku, ticket string) error {
	m, err := mutex.New(s.k, "lock:item:"+sku, nil)
	if err != nil {
		return err
	}
	lease, err := m.Adopt(ctx, ticket)
	if err != nil {
		return busy(err)
	}
	return busy(lease.Release(ctx))
}

// Holder returns which host has locked an item, or "".
func (s *Stock) Holder(ctx context.Context, sku string) (string, error) {
	m, err := mutex.New(s.k, "lock:item:"+sku, nil)
	if err != nil {
		return "", err
	}
	h, _, err := m.Holder(ctx)
	return h.Owner, err
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
	switch {
	case errors.Is(err, lockkeeper.ErrNotAcquired):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case errors.Is(err, lockkeeper.ErrLost):
		return fmt.Errorf("%w: %w", ErrLockLost, err)
	}
	return err
}
