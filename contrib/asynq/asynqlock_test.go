package asynqlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper"
	asynqlock "github.com/lockkeeper/lockkeeper/contrib/asynq"
	"github.com/lockkeeper/lockkeeper/joblimit"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// world is asynq on the server of a test, which also has the locks.
type world struct {
	*testing.T
	s         *lockkeepertest.Server
	client    *asynq.Client
	inspector *asynq.Inspector
	failed    atomic.Int32 // calls of the user's IsFailure
}

func newWorld(t *testing.T) *world {
	s := lockkeepertest.New(t)
	w := &world{T: t, s: s}
	w.client, w.inspector = asynq.NewClient(w.redis()), asynq.NewInspector(w.redis())
	t.Cleanup(func() { _, _ = w.client.Close(), w.inspector.Close() })
	return w
}

func (w *world) redis() asynq.RedisClientOpt {
	o, err := redis.ParseURL(w.s.URL(w))
	if err != nil {
		w.Fatal(err)
	}
	return asynq.RedisClientOpt{Addr: o.Addr, DB: o.DB}
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
	server := asynq.NewServer(w.redis(), config)
	if err := server.Start(asynqlock.Middleware(l, key)(handle)); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(server.Shutdown)
}

func (w *world) enqueue(kind, payload string, opts ...asynq.Option) *asynq.TaskInfo {
	w.Helper()
	info, err := w.client.Enqueue(asynq.NewTask(kind, []byte(payload)), append(opts, asynq.Retention(time.Hour))...)
	if err != nil {
		w.Fatal(err)
	}
	return info
}

// require waits until a task is in a state, and returns it.
func (w *world) require(task *asynq.TaskInfo, want asynq.TaskState) *asynq.TaskInfo {
	w.Helper()
	for {
		info, err := w.inspector.GetTaskInfo(task.Queue, task.ID)
		if err == nil && info.State == want {
			return info
		}
		select {
		case <-w.Context().Done():
		case <-time.After(5 * time.Millisecond):
		}
		if end, ok := w.Deadline(); ok && time.Until(end) < 10*time.Second {
			w.Fatalf("%v, %v; want %v", info, err, want)
		}
	}
}

func open(t *testing.T) func(l *joblimit.Limiter, err error) *joblimit.Limiter {
	return func(l *joblimit.Limiter, err error) *joblimit.Limiter {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

var soon = &joblimit.Options{RetryAfter: 20 * time.Millisecond}

func TestRefusedTaskIsPostponedAndNotFailed(t *testing.T) {
	w := newWorld(t)
	started, end := make(chan string), make(chan struct{})
	for range 2 { // two processes
		w.worker(open(t)(joblimit.Exclusive(w.s.Keeper(t, nil), soon)), nil, func(_ context.Context, task *asynq.Task) error {
			started <- string(task.Payload())
			<-end
			return nil
		})
	}
	first := w.enqueue("export", "1")
	if got := <-started; got != "1" {
		t.Fatal(got)
	}
	second := w.enqueue("export", "2", asynq.MaxRetry(1))
	info := w.require(second, asynq.TaskStateRetry)
	if info.Retried != 0 {
		t.Errorf("postponed as a retry: %+v", info)
	}
	other := w.enqueue("mail", "3") // has another key
	if got := <-started; got != "3" {
		t.Errorf("started %q", got)
	}
	close(end)
	if got := <-started; got != "2" {
		t.Error(got)
	}
	for _, task := range []*asynq.TaskInfo{first, second, other} {
		if info := w.require(task, asynq.TaskStateCompleted); info.Retried != 0 {
			t.Errorf("%+v", info)
		}
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
	w := newWorld(t)
	started, end := make(chan string), make(chan struct{})
	l := open(t)(joblimit.Exclusive(w.s.Keeper(t, nil), soon))
	w.worker(l, nil, func(_ context.Context, task *asynq.Task) error {
		started <- string(task.Payload())
		<-end
		return nil
	})
	w.enqueue("export", "1")
	<-started
	last := w.enqueue("export", "2", asynq.MaxRetry(0))
	w.require(last, asynq.TaskStateActive)
	close(end)
	if got := <-started; got != "2" {
		t.Error(got)
	}
	w.require(last, asynq.TaskStateCompleted)
}

func TestKeyOfPayload(t *testing.T) {
	w := newWorld(t)
	started, end := make(chan string, 10), make(chan struct{})
	byPayload := func(_ context.Context, task *asynq.Task) string { return string(task.Payload()) }
	w.worker(open(t)(joblimit.Concurrent(w.s.Keeper(t, nil), 1, soon)), byPayload, func(_ context.Context, task *asynq.Task) error {
		started <- string(task.Payload())
		<-end
		return nil
	})
	for _, payload := range []string{"a", "b", "", ""} { // without a key there is no limit
		w.enqueue("export", payload)
		<-started
	}
	close(end)
}

func TestRateDelaysTask(t *testing.T) {
	w := newWorld(t)
	ran := make(chan struct{}, 10)
	l := open(t)(joblimit.Rate(w.s.Keeper(t, nil), 1, time.Hour, soon))
	w.worker(l, nil, func(context.Context, *asynq.Task) error {
		ran <- struct{}{}
		return nil
	})
	w.enqueue("call", "1")
	<-ran
	info := w.require(w.enqueue("call", "2"), asynq.TaskStateRetry)
	if in := time.Until(info.NextProcessAt); in < 55*time.Minute || in > time.Hour+time.Minute {
		t.Errorf("postponed by %v", in)
	}
	w.s.Flush(t) // the permit that is taken
}

func TestLossEndsContextOfHandler(t *testing.T) {
	w := newWorld(t)
	cause := make(chan error, 1)
	l := open(t)(joblimit.Exclusive(w.s.Keeper(t, nil), &joblimit.Options{TTL: 300 * time.Millisecond, RetryAfter: 20 * time.Millisecond}))
	var attempts atomic.Int32
	w.worker(l, nil, func(ctx context.Context, _ *asynq.Task) error {
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
	if info := w.require(task, asynq.TaskStateCompleted); info.Retried != 1 {
		t.Errorf("%+v; the handler has failed", info)
	}
	if n := w.failed.Load(); n != 1 {
		t.Errorf("IsFailure was called %d times", n)
	}
}

func TestConfigureKeepsDefaults(t *testing.T) {
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
