package recipes

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
)

func service(ctx context.Context, rdb *redis.Client) error { // ctx ends by SIGTERM: signal.NotifyContext
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		return err
	}
	run(ctx, k)                       // 1. returns when all work has stopped
	if err := k.Close(); err != nil { // 2. releases what is still held
		return err
	}
	return rdb.Close() // 3. the client last: Close of the keeper needs it
}

func begin(ctx context.Context, k *lockkeeper.Keeper) (token string, err error) {
	m, err := mutex.New(k, "upload:7", &mutex.Options{TTL: 5 * time.Minute, NoRenewal: true})
	if err != nil {
		return "", err
	}
	lease, err := m.Lock(ctx)
	return lease.Token(), err // for example in a queue's message
}

func finish(ctx context.Context, k *lockkeeper.Keeper, token string) error { // in another process
	m, err := mutex.New(k, "upload:7", nil)
	if err != nil {
		return err
	}
	lease, err := m.Adopt(ctx, token) // ErrLost if it took longer than the TTL
	if err != nil {
		return err
	}
	defer lease.Release(ctx)
	return work(lease.Context(ctx), lease.Fence())
}

func connect(addr string) (*lockkeeper.Keeper, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	return lockkeeper.New(rdb, nil) // one per process
}
