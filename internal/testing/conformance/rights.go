package conformance

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// documentedRule returns the ACL rule from docs/operations.md as the arguments of a command.
func documentedRule(t testing.TB) []any {
	t.Helper()
	args := []any{"acl", "setuser"}
	for _, f := range redistest.DocumentedUser(t, "../docs/operations.md") {
		args = append(args, f)
	}
	return args
}

// newUser returns a client of a new user, who may do everything with any key and channel unless the rules say otherwise.
func newUser(t testing.TB, s *redistest.Server, rules ...any) *redis.Client {
	t.Helper()
	name := fmt.Sprint("user", users.Add(1))
	args := append([]any{"acl", "setuser", name, "on", ">pw", "&*", "+@all"}, rules...)
	must.OK(t, s.Client().Do(context.Background(), args...).Err())
	return clientOf(t, s, name, "pw")
}

var users atomic.Int64

func clientOf(t testing.TB, s *redistest.Server, user, password string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: user, Password: password})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// lockOf returns the lock x of a keeper with this client.
func (w *World) lockOf(rdb *redis.Client) Locker {
	w.Helper()
	return must.Get(w.P.New(newKeeper(w, rdb, lockkeeper.Options{}), "x", Options{TTL: time.Minute}))(w)
}

// Rights runs a primitive as a user with the permissions in docs/operations.md and no more, on one server and on a
// cluster: waits are ended by messages, leases are renewed, and nothing is logged.
func Rights(t *testing.T, p Primitive) {
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t)
		runAsDocumentedUser(t, p, []*redistest.Server{s}, func(user, password string) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: s.Addr, Username: user, Password: password})
		})
	})
	if !p.everywhere() {
		return
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.StartCluster(t, 3, 0)
		runAsDocumentedUser(t, p, c.Primaries, func(user, password string) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs(), Username: user, Password: password})
		})
	})
}

func runAsDocumentedUser(t *testing.T, p Primitive, servers []*redistest.Server, dial func(user, password string) redis.UniversalClient) {
	ctx := must.Within(t, 30*time.Second)
	rule := documentedRule(t)
	user := rule[2].(string)
	for _, s := range servers {
		if err := s.Client().Do(ctx, rule...).Err(); err != nil {
			t.Fatalf("the documented rule: %v", err)
		}
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	received, renewed, queued := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{}, 100)
	var locks []Locker
	for range 2 {
		rdb := dial(user, "change-me")
		t.Cleanup(func() { _ = rdb.Close() })
		k := newKeeper(t, rdb, lockkeeper.Options{HeartbeatInterval: rareHeartbeat, Logger: logger, Hooks: lockkeeper.Hooks{
			Queued:         func(lockkeeper.Event) { queued <- struct{}{} },
			WakeupReceived: func(lockkeeper.Event) { received <- struct{}{} },
			Renewed:        func(lockkeeper.Event) { renewed <- struct{}{} },
		}})
		locks = append(locks, must.Get(p.New(k, "orders:42", Options{TTL: 3 * time.Second}))(t))
	}
	for _, cancelled := range []bool{false, true} {
		lease := must.Get(locks[0].Lock(ctx))(t)
		wait, stop := context.WithCancel(ctx)
		ended := inBackground(func() error { return lockOnce(wait, locks[1].Lock) })
		<-renewed
		<-queued
		if cancelled {
			stop()
		} else {
			must.Report(t, lease.Release(ctx))
		}
		err := <-ended
		check.That(t, (err != nil) == cancelled, "a wait, cancelled %t: %v", cancelled, err)
		must.Report(t, lease.Release(ctx))
		stop()
		for len(queued) > 0 {
			<-queued
		}
	}
	check.That(t, len(received) != 0, "the wait was not ended by a message")
	check.That(t, log.Len() == 0, "logged:\n%s", log.String())
}
