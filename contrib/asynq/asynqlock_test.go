package asynqlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/lockkeeper/lockkeeper"
	asynqlock "github.com/lockkeeper/lockkeeper/contrib/asynq"
	"github.com/lockkeeper/lockkeeper/joblimit"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is asynq on a server of its own.
type world struct {
	*testing.T
	redis     asynq.RedisConnOpt
	client    *asynq.Client
	inspector *asynq.Inspector
	failed    atomic.Int32 // calls of the user's IsFailure
}

func newWorld(t *testing.T) *world {
	redis := must(asynq.ParseRedisURI(lockkeepertest.New(t).URL(t)))
	w := &world{T: t, redis: redis, client: asynq.NewClient(redis), inspector: asynq.NewInspector(redis)}
	t.Cleanup(func() { _, _ = w.client.Close(), w.inspector.Close() })
	return w
}

// worker starts a server whose handler is limited, and that checks for delayed tasks all the time.
func (w *world) worker(l *joblimit.Limiter, handle asynq.HandlerFunc) {
	w.Helper()
	config := asynq.Config{
		Concurrency: 4, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 10 * time.Millisecond, DelayedTaskCheckInterval: 20 * time.Millisecond,
		IsFailure: func(err error) bool {
			w.failed.Add(1)
			return true
		},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}
	asynqlock.Configure(&config)
	server := asynq.NewServer(w.redis, config)
	must(0, server.Start(asynqlock.Middleware(l, nil)(handle)))
	w.Cleanup(server.Shutdown)
}

func (w *world) enqueue(kind, payload string, opts ...asynq.Option) *asynq.TaskInfo {
	w.Helper()
	return must(w.client.Enqueue(asynq.NewTask(kind, []byte(payload)), append(opts, asynq.Retention(time.Hour))...))
}

// require waits until a task is in a state, after so many attempts that have failed.
func (w *world) require(task *asynq.TaskInfo, state asynq.TaskState, retried int) {
	w.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		info, err := w.inspector.GetTaskInfo(task.Queue, task.ID)
		if err == nil && info.State == state {
			if info.Retried != retried {
				w.Errorf("retried %d times, want %d", info.Retried, retried)
			}
			return
		}
		if time.Now().After(end) {
			w.Fatalf("%v, %v; want %v", info, err, state)
		}
	}
}

func TestRefusedTaskIsPostponedAndNotFailed(t *testing.T) {
	w, locks := newWorld(t), lockkeepertest.New(t)
	started, end := make(chan string), make(chan struct{})
	for range 2 { // two processes
		l := must(joblimit.Exclusive(locks.Keeper(t, nil), &joblimit.Options{RetryAfter: 20 * time.Millisecond}))
		w.worker(l, func(_ context.Context, task *asynq.Task) error {
			started <- string(task.Payload())
			<-end
			return nil
		})
	}
	starts := func(want string) {
		t.Helper()
		if got := <-started; got != want {
			t.Errorf("started %q, want %q", got, want)
		}
	}
	first := w.enqueue("export", "1")
	starts("1")
	second := w.enqueue("export", "2", asynq.MaxRetry(1))
	w.require(second, asynq.TaskStateRetry, 0)
	other := w.enqueue("mail", "3") // has another key
	starts("3")
	close(end)
	starts("2")
	for _, task := range []*asynq.TaskInfo{first, second, other} {
		w.require(task, asynq.TaskStateCompleted, 0)
	}
	if n := w.failed.Load(); n != 0 {
		t.Errorf("postponed tasks were passed to the user's IsFailure %d times", n)
	}
	if stats, err := w.inspector.GetQueueInfo("default"); err != nil || stats.Failed != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestLastAttemptWaits: asynq would archive a task whose last attempt returns an error, whatever keeps it from running.
func TestLastAttemptWaits(t *testing.T) {
	for what, begin := range map[string]func(t *testing.T, locks *lockkeepertest.Server) (end func()){
		"the lock is held": func(t *testing.T, locks *lockkeepertest.Server) (end func()) {
			lease := must(must(mutex.New(locks.Keeper(t, nil), "job:export", nil)).Lock(t.Context()))
			return func() { must(0, lease.Release(t.Context())) }
		},
		"Redis refuses": func(t *testing.T, locks *lockkeepertest.Server) (end func()) {
			rdb := locks.Client(t)
			must(rdb.HSet(t.Context(), "lock:job:export", "of", "another").Result()) // WRONGTYPE
			return func() { must(rdb.Del(t.Context(), "lock:job:export").Result()) }
		},
		"an outage": func(_ *testing.T, locks *lockkeepertest.Server) (end func()) {
			locks.Unreachable()
			return locks.Restore
		},
	} {
		t.Run(what, func(t *testing.T) {
			w, locks, tried := newWorld(t), lockkeepertest.New(t), make(chan error, 1000)
			hook := func(e lockkeeper.Event) { tried <- e.Err }
			k := locks.Keeper(t, &lockkeeper.Options{
				Retry: lockkeeper.RetryPolicy{MaxElapsed: 50 * time.Millisecond},
				Hooks: lockkeeper.Hooks{Queued: hook, AcquireDone: hook},
			})
			w.worker(must(joblimit.Exclusive(k, &joblimit.Options{RetryAfter: 20 * time.Millisecond})), func(context.Context, *asynq.Task) error { return nil })
			end := begin(t, locks)
			last := w.enqueue("export", "1", asynq.MaxRetry(0))
			<-tried
			w.require(last, asynq.TaskStateActive, 0)
			end()
			w.require(last, asynq.TaskStateCompleted, 0)
		})
	}
}

// process runs a task as the middleware does, which is limited by its payload.
func process(l *joblimit.Limiter, ctx context.Context, key string, fn func(context.Context) error) error {
	byPayload := func(_ context.Context, task *asynq.Task) string { return string(task.Payload()) }
	handler := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error { return fn(ctx) })
	return asynqlock.Middleware(l, byPayload)(handler).ProcessTask(ctx, asynq.NewTask("export", []byte(key)))
}

// TestKeyOfTask: tasks with different keys run beside each other, and those without a key have no limit.
func TestKeyOfTask(t *testing.T) {
	l := must(joblimit.Exclusive(lockkeepertest.New(t).Keeper(t, nil), nil))
	inside := func(context.Context) error { return nil }
	for _, key := range []string{"a", "b", "", ""} {
		next := inside
		inside = func(ctx context.Context) error { return process(l, ctx, key, next) }
	}
	must(0, inside(t.Context()))
}

// TestHandlerFailsWithItsLease: the context of the handler is that of the lease, with which it ends, and what the handler returns then is a failure.
func TestHandlerFailsWithItsLease(t *testing.T) {
	l := must(joblimit.Exclusive(lockkeepertest.New(t).Keeper(t, nil), nil))
	err := process(l, t.Context(), "a", func(ctx context.Context) error {
		if lockkeeper.LeaseFromContext(ctx).Err() != nil {
			t.Error("the context of the handler is not that of its lease")
		}
		return lockkeeper.ErrLost
	})
	if !errors.Is(err, lockkeeper.ErrLost) || errors.As(err, new(*joblimit.PostponedError)) {
		t.Error(err)
	}
}

// TestEndsWhileRefused: this happens as a task is refused: it is postponed all the same. What can end together with a task that runs is in the
// tests of joblimit.
func TestEndsWhileRefused(t *testing.T) {
	for _, name := range []string{"nothing", "cancel", "close"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := lockkeepertest.New(t)
				ctx, cancel := context.WithCancel(t.Context())
				var k *lockkeeper.Keeper
				ends := map[string]func(){"nothing": func() {}, "cancel": cancel, "close": func() { _ = k.Close() }}[name]
				k = s.Keeper(t, &lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: func(lockkeeper.Event) { ends() }}})
				refused, holder := must(joblimit.Exclusive(k, nil)), must(joblimit.Exclusive(s.Keeper(t, nil), nil))
				var err error
				must(0, process(holder, t.Context(), "a", func(context.Context) error {
					err = process(refused, ctx, "a", func(context.Context) error { t.Error("the task was run"); return nil })
					return nil
				}))
				if !errors.As(err, new(*joblimit.PostponedError)) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
					t.Errorf("%v", err)
				}
				s.RequireFree(t, "job:a")
			})
		})
	}
}

// TestConfigure: a task is delayed for as long as the limiter says. What is not set has asynq's defaults.
func TestConfigure(t *testing.T) {
	var c asynq.Config
	asynqlock.Configure(&c)
	if c.IsFailure(nil) || !c.IsFailure(errors.New("x")) || c.IsFailure(&joblimit.PostponedError{}) {
		t.Error("IsFailure")
	}
	task := asynq.NewTask("x", nil)
	if d := c.RetryDelayFunc(1, &joblimit.PostponedError{RetryAfter: time.Hour}, task); d != time.Hour {
		t.Error(d)
	}
	if d := c.RetryDelayFunc(1, errors.New("x"), task); d <= 0 {
		t.Error(d)
	}
}
