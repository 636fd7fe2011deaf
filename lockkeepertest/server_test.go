package lockkeepertest_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

// TestDatabasesOfRealServer: servers do not share one, leave none behind, and use none that is not empty.
func TestDatabasesOfRealServer(t *testing.T) {
	real := redistest.Start(t, "--databases", "4")
	t.Setenv(redisURL, "redis://"+real.Addr+"/1")
	admin := redis.NewClient(&redis.Options{Addr: real.Addr, DB: 2})
	defer func() { _ = admin.Close() }()
	must.OK(t, admin.Set(t.Context(), "precious", 1, 0).Err())
	for range 2 {
		t.Run("servers", func(t *testing.T) {
			a, b := lockkeepertest.New(t), lockkeepertest.New(t)
			for s, want := range map[*lockkeepertest.Server]string{a: "/1", b: "/3"} {
				url := s.URL(t)
				check.That(t, strings.HasSuffix(url, want), "the URL %s does not end in %s", url, want)
			}
			lease := lock(t, newMutex(t, a.Keeper(t, nil), "x", ttl))
			b.RequireFree(t, "x")
			a.RequireHeld(t, "x")
			a.Flush(t)
			got := failuresOf(t, func(t testing.TB) { lockkeepertest.New(t) })
			check.That(t, len(got) == 1 && strings.Contains(got[0], "no empty database"), "a third server: %q", got)
			requireLost(t, lease)
		})
	}
	keys, err := real.Client().Do(t.Context(), "info", "keyspace").Text()
	check.That(t, err == nil && strings.Count(keys, "db") == 1 && strings.Contains(keys, "db2:keys=1,"), "left behind: %s, %v", keys, err)
}

// TestRedlock: to each of its servers it is a mutex.
func TestRedlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var servers []*lockkeepertest.Server
		var keepers []*lockkeeper.Keeper
		for range 3 {
			s := lockkeepertest.New(t)
			servers, keepers = append(servers, s), append(keepers, s.Keeper(t, nil))
		}
		lease := lock(t, must.Get(redlock.New(keepers, "x", nil))(t))
		for _, s := range servers {
			s.Kind("redlock").RequireHeld(t, "x")
		}
		release(t, lease)
		for _, s := range servers {
			s.RequireFree(t, "x")
		}
	})
}

// TestOutageEndsAtOnce: nobody waits for replies to what was lost, so a release in the background gets through.
func TestOutageEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		lease := lock(t, newMutex(t, s.Keeper(t, nil), "x", nil))
		s.Unreachable()
		ctx := must.Within(t, 10*time.Millisecond)
		err := lease.Release(ctx)
		check.That(t, err != nil, "the release was answered")
		s.Restore()
		start := time.Now()
		s.RequireFree(t, "x")
		within(t, start, 0, time.Second)
	})
}

// TestLocksDoNotImportTestCode: nothing that is for tests is part of a program that uses the locks.
func TestLocksDoNotImportTestCode(t *testing.T) {
	const module = "github.com/lockkeeper/lockkeeper"
	out, err := exec.Command("go", "list", "-deps", module, module+"/mutex", module+"/fair", module+"/rwlock", module+"/semaphore",
		module+"/ratelimit", module+"/redlock", module+"/once").Output()
	must.OK(t, err)
	list := string(out)
	must.That(t, strings.Contains(list, module+"/internal/keeper\n"), "not a list of imports: %s", list)
	for name := range strings.Lines(list) {
		name = strings.TrimSpace(name)
		for _, test := range []string{module + "/lockkeepertest", module + "/internal/testing", "github.com/alicebob/", "github.com/yuin/", "go.uber.org/goleak", "pgregory.net/", "github.com/anishathalye/", "github.com/spf13/"} {
			check.That(t, !strings.HasPrefix(name, test), "the locks import %s", name)
		}
		check.That(t, name != "testing", "the locks import testing")
	}
}

// TestServerFromOutsideOfTheBubble checks that a Server, a keeper or a client that was made outside of the bubble in which it is
// used fails the test with one sentence. Without the check the runtime ends the test binary.
func TestServerFromOutsideOfTheBubble(t *testing.T) {
	t.Setenv(redisURL, "")
	for name, prepare := range map[string]func(testing.TB, *lockkeepertest.Server) (use func()){
		"Keeper":      func(t testing.TB, s *lockkeepertest.Server) func() { return func() { s.Keeper(t, nil) } },
		"Client":      func(t testing.TB, s *lockkeepertest.Server) func() { return func() { s.Client(t) } },
		"RequireHeld": func(t testing.TB, s *lockkeepertest.Server) func() { return func() { s.RequireHeld(t, "x") } },
		"Flush":       func(t testing.TB, s *lockkeepertest.Server) func() { return func() { s.Flush(t) } },
		"Failover":    func(t testing.TB, s *lockkeepertest.Server) func() { return func() { s.Failover(t, func() {}) } },
		"keeper_made_before": func(t testing.TB, s *lockkeepertest.Server) func() {
			m := must.Get(mutex.New(s.Keeper(t, nil), "x", nil))(t)
			return func() { _, _ = m.Lock(context.Background()) }
		},
		"client_made_before": func(t testing.TB, s *lockkeepertest.Server) func() {
			rdb := s.Client(t)
			return func() { _ = rdb.Ping(context.Background()).Err() }
		},
		"client_used_before": func(t testing.TB, s *lockkeepertest.Server) func() {
			rdb := s.Client(t)
			must.OK(t, rdb.Ping(context.Background()).Err())
			return func() { _ = rdb.Ping(context.Background()).Err() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := failuresOf(t, func(tb testing.TB) {
				use := prepare(tb, lockkeepertest.New(tb))
				synctest.Test(t, func(*testing.T) {
					ended := make(chan struct{})
					go func() { // since Fatal ends the goroutine
						defer close(ended)
						use()
					}()
					<-ended
				})
			})
			must.That(t, len(got) != 0, "the test has not failed")
			for _, text := range got {
				check.That(t, strings.HasSuffix(text, "call it in the function of synctest.Test"), "%q", text)
			}
		})
	}
}
