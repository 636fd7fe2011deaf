package conformance

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
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
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatInterval: rareHeartbeat, Logger: logger, Hooks: lockkeeper.Hooks{
			Queued:         func(lockkeeper.Event) { queued <- struct{}{} },
			WakeupReceived: func(lockkeeper.Event) { received <- struct{}{} },
			Renewed:        func(lockkeeper.Event) { renewed <- struct{}{} },
		}}))(t)
		t.Cleanup(func() { _ = k.Close() })
		locks = append(locks, must.Get(p.New(k, "orders:42", Options{TTL: 3 * time.Second}))(t))
	}
	for _, cancelled := range []bool{false, true} {
		lease := must.Get(locks[0].Lock(ctx))(t)
		wait, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			second, err := locks[1].Lock(wait)
			if err == nil {
				err = second.Release(ctx)
			}
			ended <- err
		}()
		<-renewed
		<-queued
		if cancelled {
			stop()
		} else {
			must.Report(t, lease.Release(ctx))
		}
		if err := <-ended; (err != nil) != cancelled {
			t.Errorf("a wait, cancelled %t: %v", cancelled, err)
		}
		must.Report(t, lease.Release(ctx))
		stop()
		for len(queued) > 0 {
			<-queued
		}
	}
	if len(received) == 0 {
		t.Error("the wait was not ended by a message")
	}
	if log.Len() > 0 {
		t.Errorf("logged:\n%s", log.String())
	}
}
