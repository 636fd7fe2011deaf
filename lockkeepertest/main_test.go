package lockkeepertest_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

const redisURL = "LOCKKEEPERTEST_REDIS_URL"

// everywhere runs a test in a bubble, on an embedded server outside of one, and on a real server.
func everywhere(t *testing.T, test func(t *testing.T, s *lockkeepertest.Server)) {
	t.Parallel() // they mostly wait
	t.Run("bubble", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, lockkeepertest.New(t)) })
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, newOn(t, ""))
	})
	t.Run("real", func(t *testing.T) {
		redistest.RequireBinary(t)
		t.Parallel()
		test(t, newOn(t, "redis://"+redistest.Start(t).Addr))
	})
}

// environment is held while the variable is set: t.Setenv is not for parallel tests.
var environment sync.Mutex

// newOn returns a server at the URL, or an embedded one.
func newOn(t testing.TB, url string) *lockkeepertest.Server {
	t.Helper()
	environment.Lock()
	defer environment.Unlock()
	before := os.Getenv(redisURL)
	defer os.Setenv(redisURL, before)
	os.Setenv(redisURL, url)
	return lockkeepertest.New(t)
}

func TestMain(m *testing.M) {
	parallel.Tests("32")
	os.Exit(m.Run())
}

// newMutex returns a mutex of a keeper.
func newMutex(t *testing.T, k *lockkeeper.Keeper, name string, o *mutex.Options) *mutex.Mutex {
	t.Helper()
	return must.Get(mutex.New(k, name, o))(t)
}

// lock acquires a lock, which the test ends without if it fails.
func lock(t *testing.T, l interface {
	Lock(context.Context) (*lockkeeper.Lease, error)
}) *lockkeeper.Lease {
	t.Helper()
	return must.Get(l.Lock(t.Context()))(t)
}

func release(t *testing.T, lease *lockkeeper.Lease) {
	t.Helper()
	must.Report(t, lease.Release(context.Background()))
}

// recorder is a testing.TB that records failures.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }
func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Helper() {}

// failuresOf runs a test and its cleanups, and returns how it failed.
func failuresOf(t testing.TB, test func(t testing.TB)) []string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for len(r.cleanups) > 0 { // a cleanup can add one
				last := len(r.cleanups) - 1
				f := r.cleanups[last]
				r.cleanups = r.cleanups[:last]
				f()
			}
		}()
		test(r)
	}()
	<-done
	return r.failures
}
