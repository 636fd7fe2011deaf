package lockkeepertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Failover calls f and then lets a replica take over that has not received anything that was written during f, by f or by
// others: the database is what it was before, and all connections break. Keys expire at their times. A Failover without a loss
// has an f that does nothing.
//
// In production: Redis replicates asynchronously, so a failover of Sentinel or Cluster loses the last writes. A lease that was
// granted during f is unknown to the new primary: its holder sees the loss at its next renewal, as after LoseLease, and another
// holder can be granted the lock before. A lease that was released during f is there again until its ttl has passed.
//
// In a database that has streams, or a type of a module, it fails the test.
func (s *Server) Failover(t testing.TB, f func()) {
	t.Helper()
	s.check(t)
	ctx := background
	before, err := s.snapshot(ctx)
	must(t, err)
	f()
	_, err = s.admin.TxPipelined(ctx, func(p redis.Pipeliner) error {
		s.flush(ctx, p)
		for _, restore := range before {
			restore(p)
		}
		return nil
	})
	must(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processes {
		p.net.Cut()
	}
}

// snapshot returns functions that write what is in the database.
func (s *server) snapshot(ctx context.Context) ([]func(redis.Pipeliner), error) {
	keys, err := s.admin.Keys(ctx, "*").Result()
	if err != nil {
		return nil, err
	}
	var all []func(redis.Pipeliner)
	for _, key := range keys {
		restore, err := s.snapshotKey(ctx, key)
		if err != nil {
			return nil, err
		}
		all = append(all, restore)
	}
	return all, nil
}

// snapshotKey returns a function that writes what is in a key. A key that has expired meanwhile is written empty, which
// deletes nothing and creates nothing.
func (s *server) snapshotKey(ctx context.Context, key string) (func(redis.Pipeliner), error) {
	kind, err := s.admin.Type(ctx, key).Result()
	if err != nil {
		return nil, err
	}
	ttl, err := s.admin.PTTL(ctx, key).Result()
	if err != nil {
		return nil, err
	}
	now, err := s.admin.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	var write func(redis.Pipeliner)
	switch kind {
	case "none":
		return func(redis.Pipeliner) {}, nil
	case "string":
		var v string
		v, err = s.admin.Get(ctx, key).Result()
		write = func(p redis.Pipeliner) { p.Set(ctx, key, v, 0) }
	case "hash":
		var v map[string]string
		v, err = s.admin.HGetAll(ctx, key).Result()
		write = func(p redis.Pipeliner) { p.HSet(ctx, key, v) }
	case "zset":
		var v []redis.Z
		v, err = s.admin.ZRangeWithScores(ctx, key, 0, -1).Result()
		write = func(p redis.Pipeliner) { p.ZAdd(ctx, key, v...) }
	case "set":
		var v []string
		v, err = s.admin.SMembers(ctx, key).Result()
		write = func(p redis.Pipeliner) { p.SAdd(ctx, key, v) }
	case "list":
		var v []string
		v, err = s.admin.LRange(ctx, key, 0, -1).Result()
		write = func(p redis.Pipeliner) { p.RPush(ctx, key, v) }
	default:
		return nil, fmt.Errorf("failover: the key %q is a %s, which is not supported", key, kind)
	}
	if err != nil {
		return nil, fmt.Errorf("failover: the key %q: %w", key, err)
	}
	return func(p redis.Pipeliner) {
		write(p)
		if ttl >= 0 {
			p.PExpireAt(ctx, key, now.Add(ttl+time.Millisecond)) // PTTL and TIME were read one after the other
		}
	}, nil
}
