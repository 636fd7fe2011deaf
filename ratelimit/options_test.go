package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// TestInvalidOptionsRejected: each error names what is wrong. Options that all locks have are tested in internal/testing/conformance.
func TestInvalidOptionsRejected(t *testing.T) {
	const year = 365 * 24 * time.Hour
	s := lockkeepertest.New(t)
	k := s.Keeper(t, nil)
	slow := s.Keeper(t, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}})
	retain := ratelimit.Options{Retain: true}
	for _, x := range []struct {
		keeper *lockkeeper.Keeper
		limit  int
		window time.Duration
		opts   ratelimit.Options
		names  string // what the error names, or nothing if there is to be none
	}{
		{k, 1_000_000_000, time.Second, ratelimit.Options{}, ""},
		{k, 0, time.Second, ratelimit.Options{}, "limit 0"},
		{k, -1, time.Second, ratelimit.Options{}, "limit -1"},
		{k, 1_000_000_001, time.Second, ratelimit.Options{}, "limit 1000000001"},
		{k, 1, 0, ratelimit.Options{}, "window 0s"},
		{k, 1, -time.Second, ratelimit.Options{}, "window -1s"},
		{k, 1, ratelimit.MinWindow - 1, ratelimit.Options{}, "window 9.999999ms"},
		{k, 1, ratelimit.MinWindow, ratelimit.Options{}, ""},
		{k, 1, year, retain, ""},
		{k, 1, year + 24*time.Hour, ratelimit.Options{}, "window 8784h"},
		{k, 1, ratelimit.MinRetainWindow - 1, retain, ""},
		{k, 1, ratelimit.MinRetainWindow - time.Millisecond, retain, "window 199ms is shorter than 200ms"},
		{slow, 1, 8 * time.Second, ratelimit.Options{}, "window 8s is not longer than the keeper's ReplicaAck.Timeout 8s"},
		{slow, 1, 9 * time.Second, ratelimit.Options{}, ""},
		{nil, 1, time.Second, retain, "keeper is nil"},
	} {
		before := x.opts
		l, err := ratelimit.New(x.keeper, "x", x.limit, x.window, &x.opts)
		if x.names == "" && (l == nil || err != nil) || x.names != "" && l != nil || x.opts != before {
			t.Errorf("%+v: %v, %v", x, l, err)
		}
		requireNames(t, err, x.names)
	}
}

// requireNames checks that an error is ErrInvalid and names something, unless that is empty.
func requireNames(t *testing.T, err error, names string) {
	t.Helper()
	if names != "" && (!errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), names)) {
		t.Errorf("%v, want an ErrInvalid that names %q", err, names)
	}
}

func TestInvalidConcurrentOptionsRejected(t *testing.T) {
	s := lockkeepertest.New(t)
	k := s.Keeper(t, nil)
	slow := s.Keeper(t, &lockkeeper.Options{ReplicaAck: lockkeeper.ReplicaAck{Replicas: 1, Timeout: 8 * time.Second}})
	for _, c := range []int{1, 1_000_000_000} { // the window may be shorter than the timeout, since there are leases
		must.Get(ratelimit.NewConcurrent(slow, "x", 1, time.Second, c, nil))(t)
	}
	for _, x := range []struct {
		keeper        *lockkeeper.Keeper
		limit         int
		window        time.Duration
		maxConcurrent int
		ttl           time.Duration
		names         string
	}{
		{k, 0, time.Second, 1, 0, "limit 0"},
		{k, 1, time.Millisecond, 1, 0, "window 1ms"},
		{k, 1, time.Second, 0, 0, "maxConcurrent 0"},
		{k, 1, time.Second, -1, 0, "maxConcurrent -1"},
		{k, 1, time.Second, 1_000_000_001, 0, "maxConcurrent 1000000001"},
		{k, 1, time.Second, 1, time.Millisecond, "TTL 1ms"},
		{slow, 1, time.Second, 1, 8 * time.Second, "TTL 8s is not longer"},
	} {
		_, err := ratelimit.NewConcurrent(x.keeper, "x", x.limit, x.window, x.maxConcurrent, &ratelimit.ConcurrentOptions{TTL: x.ttl})
		requireNames(t, err, x.names)
	}
}
