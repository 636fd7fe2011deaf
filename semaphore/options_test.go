package semaphore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// TestInvalidOptionsRejected: each names what is wrong. Nothing is sent, so no server is needed.
func TestInvalidOptionsRejected(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = rdb.Close() }()
	k := must.Get(lockkeeper.New(rdb, nil))(t)
	defer func() { _ = k.Close() }()
	slow := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}}))(t)
	defer func() { _ = slow.Close() }()
	type options = semaphore.Options
	for _, x := range []struct {
		keeper *lockkeeper.Keeper
		limit  int
		opts   *options
		names  string // what the error names, or nothing if there is to be none
	}{
		{k, 1, nil, ""},
		{k, 1_000_000_000, &options{}, ""},
		{k, 0, nil, "limit 0"},
		{k, -1, nil, "limit -1"},
		{k, 1_000_000_001, nil, "limit 1000000001"},
		{slow, 1, &options{TTL: 8 * time.Second}, "TTL 8s is not longer than the keeper's ReplicaAck.Timeout 8s"},
		{slow, 1, &options{TTL: 9 * time.Second}, ""},
		{k, 1, &options{TTL: time.Second, NoRenewal: true}, ""},
		{k, 1, &options{TTL: time.Millisecond}, "TTL 1ms"},
		{k, 1, &options{TTL: -1}, "TTL -1ns"},
		{k, 1, &options{TTL: time.Second, MaxLifetime: time.Millisecond}, "MaxLifetime 1ms"},
		{nil, 1, nil, "keeper is nil"},
	} {
		var before options
		if x.opts != nil {
			before = *x.opts
		}
		s, err := semaphore.New(x.keeper, "x", x.limit, x.opts)
		if x.opts != nil && *x.opts != before {
			t.Errorf("New(%d, %+v) has changed its options to %+v", x.limit, before, *x.opts)
		}
		switch {
		case x.names == "":
			if err != nil || s == nil {
				t.Errorf("New(%d, %+v): %v", x.limit, before, err)
			}
		case s != nil || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), x.names):
			t.Errorf("New(%d, %+v): %v, want an ErrInvalid that names %q", x.limit, before, err, x.names)
		}
	}
}
