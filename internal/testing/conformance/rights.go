package conformance

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// documentedRule returns the ACL rule from docs/operations.md as the arguments of a command.
func documentedRule(t testing.TB) []any {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```\nACL SETUSER ")
	rule, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("no ACL SETUSER in docs/operations.md")
	}
	args := []any{"acl", "setuser"}
	for _, f := range strings.Fields(rule) {
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
	d := &deployment{t, p, func() redis.UniversalClient { return dial(user, "change-me") }}
	var locks []Locker
	for range 2 {
		rdb := d.rdb()
		t.Cleanup(func() { _ = rdb.Close() })
		k, err := lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatInterval: rareHeartbeat, Logger: logger, Hooks: lockkeeper.Hooks{
			Queued:         func(lockkeeper.Event) { queued <- struct{}{} },
			WakeupReceived: func(lockkeeper.Event) { received <- struct{}{} },
			Renewed:        func(lockkeeper.Event) { renewed <- struct{}{} },
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.Close() })
		l, err := p.New(k, "orders:42", Options{TTL: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		locks = append(locks, l)
	}
	lease, err := locks[0].Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := locks[1].Lock(ctx)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	<-renewed
	<-queued
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := (<-got).Release(ctx); err != nil {
		t.Error(err)
	}
	select {
	case <-received:
	default:
		t.Error("the wait was not ended by a message")
	}
	for len(queued) > 0 {
		<-queued
	}
	short, stop := context.WithCancel(ctx) // and a wait that is cancelled
	lease, err = locks[0].Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := locks[1].Lock(short)
		if err == nil {
			t.Error("two holders")
		}
		got <- nil
	}()
	<-renewed
	<-queued
	stop()
	<-got
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
	if log.Len() > 0 {
		t.Errorf("logged:\n%s", log.String())
	}
}
