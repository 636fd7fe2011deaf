package asynqlock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/lockkeeper/lockkeeper"
	asynqlock "github.com/lockkeeper/lockkeeper/contrib/asynq"
	"github.com/lockkeeper/lockkeeper/joblimit"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// world is asynq on the server of a test, which also has the locks.
type world struct {
	*testing.T
	s         *lockkeepertest.Server
	redis     asynq.RedisConnOpt
	client    *asynq.Client
	inspector *asynq.Inspector
	failed    atomic.Int32 // calls of the user's IsFailure
}

func newWorld(t *testing.T) *world {
	s := lockkeepertest.New(t)
	redis, err := asynq.ParseRedisURI(s.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, s: s, redis: redis, client: asynq.NewClient(redis), inspector: asynq.NewInspector(redis)}
	t.Cleanup(func() { _, _ = w.client.Close(), w.inspector.Close() })
	return w
}

// exclusive returns the limiter of a process of its own.
func (w *world) exclusive(ttl time.Duration) *joblimit.Limiter {
	w.Helper()
	l, err := joblimit.Exclusive(w.s.Keeper(w, nil), &joblimit.Options{TTL: ttl, RetryAfter: 20 * time.Millisecond})
	if err != nil {
		w.Fatal(err)
	}
	return l
}

// worker starts a server whose handler is limited, and that checks for delayed tasks all the time.
func (w *world) worker(l *joblimit.Limiter, key func(context.Context, *asynq.Task) string, handle asynq.HandlerFunc) {
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
	if err := server.Start(asynqlock.Middleware(l, key)(handle)); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(server.Shutdown)
}

// tasks says which tasks have started, which go on until it is closed.
type tasks struct{ started, end chan string }

func newTasks() tasks { return tasks{make(chan string), make(chan string)} }

func (r tasks) handle(_ context.Context, task *asynq.Task) error {
	r.started <- string(task.Payload())
	<-r.end
	return nil
}

func (r tasks) requireStarted(t *testing.T, payload string) {
	t.Helper()
	if got := <-r.started; got != payload {
		t.Errorf("started %q, want %q", got, payload)
	}
}

func (w *world) enqueue(kind, payload string, opts ...asynq.Option) *asynq.TaskInfo {
	w.Helper()
	info, err := w.client.Enqueue(asynq.NewTask(kind, []byte(payload)), append(opts, asynq.Retention(time.Hour))...)
	if err != nil {
		w.Fatal(err)
	}
	return info
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
	w, running := newWorld(t), newTasks()
	for range 2 { // two processes
		w.worker(w.exclusive(0), nil, running.handle)
	}
	first := w.enqueue("export", "1")
	running.requireStarted(t, "1")
	second := w.enqueue("export", "2", asynq.MaxRetry(1))
	w.require(second, asynq.TaskStateRetry, 0)
	other := w.enqueue("mail", "3") // has another key
	running.requireStarted(t, "3")
	close(running.end)
	running.requireStarted(t, "2")
	for _, task := range []*asynq.TaskInfo{first, second, other} {
		w.require(task, asynq.TaskStateCompleted, 0)
	}
	if n := w.failed.Load(); n != 0 {
		t.Errorf("postponed tasks were passed to the user's IsFailure %d times", n)
	}
	stats, err := w.inspector.GetQueueInfo("default")
	if err != nil || stats.Failed != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

func TestLastAttemptWaitsInsteadOfBeingArchived(t *testing.T) {
	w, running := newWorld(t), newTasks()
	w.worker(w.exclusive(0), nil, running.handle)
	w.enqueue("export", "1")
	running.requireStarted(t, "1")
	last := w.enqueue("export", "2", asynq.MaxRetry(0))
	w.require(last, asynq.TaskStateActive, 0)
	close(running.end)
	running.requireStarted(t, "2")
	w.require(last, asynq.TaskStateCompleted, 0)
}

// refusals receives what is logged.
type refusals chan string

func (r refusals) Write(text []byte) (int, error) {
	r <- string(text)
	return len(text), nil
}

// TestLastAttemptOutlastsRefusals: Redis refuses with an error that requires intervention, after which a task would be archived.
func TestLastAttemptOutlastsRefusals(t *testing.T) {
	w, refusals := newWorld(t), make(refusals, 1)
	log := slog.New(slog.NewTextHandler(refusals, &slog.HandlerOptions{Level: slog.LevelError}))
	l, err := joblimit.Exclusive(w.s.Keeper(t, nil), &joblimit.Options{RetryAfter: 20 * time.Millisecond, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	w.worker(l, nil, func(context.Context, *asynq.Task) error { return nil })
	rdb := w.s.Client(t)
	if err := rdb.HSet(t.Context(), "lock:job:export", "of", "another").Err(); err != nil { // WRONGTYPE
		t.Fatal(err)
	}
	last := w.enqueue("export", "1", asynq.MaxRetry(0))
	if text := <-refusals; !strings.Contains(text, "WRONGTYPE") {
		t.Error(text)
	}
	if err := rdb.Del(t.Context(), "lock:job:export").Err(); err != nil {
		t.Fatal(err)
	}
	w.require(last, asynq.TaskStateCompleted, 0)
}

// TestLastAttemptOutlastsOutage: the server of the locks does not answer for longer than the retry policy allows.
func TestLastAttemptOutlastsOutage(t *testing.T) {
	w, locks := newWorld(t), lockkeepertest.New(t)
	k := locks.Keeper(t, &lockkeeper.Options{Retry: lockkeeper.RetryPolicy{MaxElapsed: 50 * time.Millisecond}})
	l, err := joblimit.Exclusive(k, &joblimit.Options{RetryAfter: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	w.worker(l, nil, func(context.Context, *asynq.Task) error { return nil })
	locks.Unreachable()
	last := w.enqueue("export", "1", asynq.MaxRetry(0))
	time.Sleep(500 * time.Millisecond)
	locks.Restore()
	w.require(last, asynq.TaskStateCompleted, 0)
}

func TestKeyOfPayload(t *testing.T) {
	w, running := newWorld(t), newTasks()
	byPayload := func(_ context.Context, task *asynq.Task) string { return string(task.Payload()) }
	w.worker(w.exclusive(0), byPayload, running.handle)
	for _, payload := range []string{"a", "b", "", ""} { // without a key there is no limit
		w.enqueue("export", payload)
		running.requireStarted(t, payload)
	}
	close(running.end)
}

func TestLossEndsContextOfHandler(t *testing.T) {
	w := newWorld(t)
	cause := make(chan error, 1)
	var attempts atomic.Int32
	w.worker(w.exclusive(300*time.Millisecond), nil, func(ctx context.Context, _ *asynq.Task) error {
		if attempts.Add(1) > 1 {
			return nil
		}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	task := w.enqueue("export", "1")
	w.s.LoseLease(t, "job:export")
	if err := <-cause; !errors.Is(err, lockkeeper.ErrLost) {
		t.Error(err)
	}
	w.require(task, asynq.TaskStateCompleted, 1)
	if n := w.failed.Load(); n != 1 {
		t.Errorf("IsFailure was called %d times", n)
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
				refused, err1 := joblimit.Exclusive(k, nil)
				holder, err2 := joblimit.Exclusive(s.Keeper(t, nil), nil)
				if err := errors.Join(err1, err2); err != nil {
					t.Fatal(err)
				}
				run := func(l *joblimit.Limiter, ctx context.Context, fn func() error) error {
					handler := asynqlock.Middleware(l, nil)(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return fn() }))
					return handler.ProcessTask(ctx, asynq.NewTask("export", nil))
				}
				var err error
				_ = run(holder, t.Context(), func() error {
					err = run(refused, ctx, func() error { t.Error("the task was run"); return nil })
					return nil
				})
				if !errors.As(err, new(*joblimit.PostponedError)) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
					t.Errorf("%v", err)
				}
				s.RequireFree(t, "job:export")
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
