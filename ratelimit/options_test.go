package ratelimit_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// unconnected returns keepers without a server, of which one waits for a replica.
func unconnected(t *testing.T) (k, slow *lockkeeper.Keeper) {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	k = must.Get(lockkeeper.New(rdb, nil))(t)
	slow = must.Get(lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}}))(t)
	t.Cleanup(func() { _ = errors.Join(k.Close(), slow.Close(), rdb.Close()) })
	return k, slow
}

// requireNew calls a constructor. It must succeed if names is empty; otherwise its error has that. It must not change the options.
func requireNew[O comparable](t *testing.T, call string, opts *O, names string, open func() (limiter any, err error)) {
	t.Helper()
	var before O
	if opts != nil {
		before = *opts
	}
	l, err := open()
	if opts != nil && *opts != before {
		t.Errorf("%s has changed its options from %+v", call, before)
	}
	made := !reflect.ValueOf(l).IsNil()
	switch {
	case names == "":
		if err != nil || !made {
			t.Errorf("%s: %v", call, err)
		}
	case made || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), names):
		t.Errorf("%s: %v, want an ErrInvalid that names %q", call, err, names)
	}
}

// TestInvalidOptionsRejected: each error names what is wrong. Nothing is sent, so no server is needed.
func TestInvalidOptionsRejected(t *testing.T) {
	k, slow := unconnected(t)
	const year = 365 * 24 * time.Hour
	type options = ratelimit.Options
	for _, x := range []struct {
		keeper *lockkeeper.Keeper
		limit  int
		window time.Duration
		opts   *options
		names  string // what the error names, or nothing if there is to be none
	}{
		{k, 1, time.Second, nil, ""},
		{k, 1_000_000_000, time.Second, &options{}, ""},
		{k, 0, time.Second, nil, "limit 0"},
		{k, -1, time.Second, nil, "limit -1"},
		{k, 1_000_000_001, time.Second, nil, "limit 1000000001"},
		{k, 1, 0, nil, "window 0s"},
		{k, 1, -time.Second, nil, "window -1s"},
		{k, 1, 1, nil, "window 1ns"},
		{k, 1, time.Millisecond, nil, "window 1ms"},
		{k, 1, ratelimit.MinWindow - 1, nil, "window 9.999999ms"},
		{k, 1, ratelimit.MinWindow, nil, ""},
		{k, 1, year, nil, ""},
		{k, 1, year + 24*time.Hour, nil, "window 8784h"},
		{k, 1, ratelimit.MinRetainWindow, &options{Retain: true}, ""},
		{k, 1, year, &options{Retain: true}, ""},
		{k, 1, ratelimit.MinRetainWindow - 1, &options{Retain: true}, ""},
		{k, 1, ratelimit.MinRetainWindow - time.Millisecond, &options{Retain: true}, "window 199ms is shorter than 200ms"},
		{nil, 1, time.Second, &options{Retain: true}, "keeper is nil"},
		{slow, 1, 8 * time.Second, nil, "window 8s is not longer than the keeper's ReplicaAck.Timeout 8s"},
		{slow, 1, 9 * time.Second, nil, ""},
		{nil, 1, time.Second, nil, "keeper is nil"},
	} {
		requireNew(t, fmt.Sprintf("New(%d, %v, %+v)", x.limit, x.window, x.opts), x.opts, x.names, func() (any, error) {
			l, err := ratelimit.New(x.keeper, "x", x.limit, x.window, x.opts)
			return l, err
		})
	}
}

// TestInvalidConcurrentOptionsRejected is the same for NewConcurrent.
func TestInvalidConcurrentOptionsRejected(t *testing.T) {
	k, slow := unconnected(t)
	type options = ratelimit.ConcurrentOptions
	for _, x := range []struct {
		keeper        *lockkeeper.Keeper
		limit         int
		window        time.Duration
		maxConcurrent int
		opts          *options
		names         string // what the error names, or nothing if there is to be none
	}{
		{k, 1, time.Second, 1, nil, ""},
		{k, 1, time.Second, 1_000_000_000, &options{}, ""},
		{k, 0, time.Second, 1, nil, "limit 0"},
		{k, 1, time.Millisecond, 1, nil, "window 1ms"},
		{k, 1, time.Second, 0, nil, "maxConcurrent 0"},
		{k, 1, time.Second, -1, nil, "maxConcurrent -1"},
		{k, 1, time.Second, 1_000_000_001, nil, "maxConcurrent 1000000001"},
		{k, 1, time.Second, 1, &options{TTL: time.Second, NoRenewal: true}, ""},
		{k, 1, time.Second, 1, &options{TTL: time.Millisecond}, "TTL 1ms"},
		{k, 1, time.Second, 1, &options{TTL: -1}, "TTL -1ns"},
		{k, 1, time.Second, 1, &options{TTL: time.Second, MaxLifetime: time.Millisecond}, "MaxLifetime 1ms"},
		{slow, 1, time.Second, 1, &options{TTL: 8 * time.Second}, "TTL 8s is not longer"},
		{slow, 1, time.Second, 1, nil, ""},
		{nil, 1, time.Second, 1, nil, "keeper is nil"},
	} {
		requireNew(t, fmt.Sprintf("NewConcurrent(%d, %v, %d, %+v)", x.limit, x.window, x.maxConcurrent, x.opts), x.opts, x.names, func() (any, error) {
			l, err := ratelimit.NewConcurrent(x.keeper, "x", x.limit, x.window, x.maxConcurrent, x.opts)
			return l, err
		})
	}
}
