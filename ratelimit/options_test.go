package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/redis/go-redis/v9"
)

// TestInvalidOptionsRejected: each error names what is wrong. Nothing is sent, so no server is needed.
func TestInvalidOptionsRejected(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = rdb.Close() }()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	slow, err := lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
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
		var before options
		if x.opts != nil {
			before = *x.opts
		}
		l, err := ratelimit.New(x.keeper, "x", x.limit, x.window, x.opts)
		if x.opts != nil && *x.opts != before {
			t.Errorf("New(%d, %v, %+v) has changed its options to %+v", x.limit, x.window, before, *x.opts)
		}
		switch {
		case x.names == "":
			if err != nil || l == nil {
				t.Errorf("New(%d, %v, %+v): %v", x.limit, x.window, before, err)
			}
		case l != nil || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), x.names):
			t.Errorf("New(%d, %v, %+v): %v, want an ErrInvalid that names %q", x.limit, x.window, before, err, x.names)
		}
	}
}

// TestInvalidConcurrentOptionsRejected is the same for NewConcurrent.
func TestInvalidConcurrentOptionsRejected(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = rdb.Close() }()
	k, err := lockkeeper.New(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.Close() }()
	slow, err := lockkeeper.New(rdb, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
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
		var before options
		if x.opts != nil {
			before = *x.opts
		}
		l, err := ratelimit.NewConcurrent(x.keeper, "x", x.limit, x.window, x.maxConcurrent, x.opts)
		if x.opts != nil && *x.opts != before {
			t.Errorf("NewConcurrent(%d, %v, %d, %+v) has changed its options to %+v", x.limit, x.window, x.maxConcurrent, before, *x.opts)
		}
		switch {
		case x.names == "":
			if err != nil || l == nil {
				t.Errorf("NewConcurrent(%d, %v, %d, %+v): %v", x.limit, x.window, x.maxConcurrent, before, err)
			}
		case l != nil || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), x.names):
			t.Errorf("NewConcurrent(%d, %v, %d, %+v): %v, want an ErrInvalid that names %q", x.limit, x.window, x.maxConcurrent, before, err, x.names)
		}
	}
}
