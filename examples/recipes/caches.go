package recipes

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// price returns a cached price, which one caller in all processes computes; others wait for it.
func price(ctx context.Context, rdb *redis.Client, m *mutex.Mutex) (p string, err error) {
	if p, err = rdb.Get(ctx, "price").Result(); !errors.Is(err, redis.Nil) {
		return p, err
	}
	err = m.Do(ctx, func(ctx context.Context, _ uint64) (err error) {
		if p, err = rdb.Get(ctx, "price").Result(); !errors.Is(err, redis.Nil) {
			return err // another caller has computed it meanwhile
		}
		p = compute()
		return rdb.Set(ctx, "price", p, time.Minute).Err()
	})
	return p, err
}

type catalog struct {
	lock *rwlock.Lock // rwlock.New(k, "catalog", &rwlock.Options{Linger: 20 * time.Millisecond})
	copy atomic.Pointer[entry]
}

type entry struct {
	text  string
	fence uint64
}

func (c *catalog) read(ctx context.Context) (text string, err error) {
	err = c.lock.DoRead(ctx, func(ctx context.Context, fence uint64) error {
		e := c.copy.Load()
		if e == nil || e.fence != fence { // the same fence means the same lease: nobody has written since
			e = &entry{load(ctx), fence}
			c.copy.Store(e)
		}
		text = e.text
		return nil
	})
	return text, err
}

func (c *catalog) write(ctx context.Context, text string) error {
	return c.lock.DoWrite(ctx, func(ctx context.Context, fence uint64) error {
		return store(ctx, text, fence)
	})
}
