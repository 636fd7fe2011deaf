package riverlock_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	_ "modernc.org/sqlite"

	"github.com/lockkeeper/lockkeeper"
	riverlock "github.com/lockkeeper/lockkeeper/contrib/river"
	"github.com/lockkeeper/lockkeeper/joblimit"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// world is River with a database of its own, and a client whose jobs are limited.
type world struct {
	client *river.Client[*sql.Tx]
	events <-chan *river.Event // of finished and snoozed jobs
}

func newWorld(t *testing.T, l *joblimit.Limiter, key func(*rivertype.JobRow) string, work func(context.Context, string) error) world {
	file := filepath.Join(t.TempDir(), "river.db")
	db := must(sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_txlock=immediate"))
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	must(must(rivermigrate.New(riversqlite.New(db), nil)).Migrate(t.Context(), rivermigrate.DirectionUp, nil))
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[export]) error { return work(ctx, job.Args.Customer) }))
	client := must(river.NewClient(riversqlite.New(db), &river.Config{
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Workers: workers, TestOnly: true,
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		Middleware: []rivertype.Middleware{riverlock.Middleware(l, key)},
	}))
	events, cancel := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed, river.EventKindJobSnoozed)
	must(0, client.Start(context.Background()))
	t.Cleanup(func() {
		must(0, client.Stop(context.Background()))
		cancel()
	})
	return world{client, events}
}

func (w world) insert(t *testing.T, customer string) {
	must(w.client.Insert(t.Context(), export{customer}, &river.InsertOpts{MaxAttempts: 1}))
}

// require waits for the next event of this kind, or of a failure, and checks the attempts of its job.
func (w world) require(t *testing.T, kind river.EventKind, attempt int) *rivertype.JobRow {
	t.Helper()
	for e := range w.events {
		if e.Kind == kind || e.Kind == river.EventKindJobFailed {
			if e.Kind != kind || e.Job.Attempt != attempt {
				t.Errorf("%s, attempt %d; want %s, attempt %d", e.Kind, e.Job.Attempt, kind, attempt)
			}
			return e.Job
		}
	}
	t.Fatal("no more events")
	return nil
}

// jobs says which jobs have started, which go on until it is closed.
type jobs struct{ started, end chan string }

func newJobs() jobs { return jobs{make(chan string), make(chan string)} }

func (r jobs) work(_ context.Context, customer string) error {
	r.started <- customer
	<-r.end
	return nil
}

func TestRefusedJobIsSnoozedAndKeepsItsAttempts(t *testing.T) {
	running := newJobs()
	l := must(joblimit.Exclusive(lockkeepertest.New(t).Keeper(t, nil), &joblimit.Options{RetryAfter: 50 * time.Millisecond}))
	w := newWorld(t, l, nil, running.work)
	w.insert(t, "1")
	<-running.started
	w.insert(t, "2")
	for range 2 {
		w.require(t, river.EventKindJobSnoozed, 0)
	}
	close(running.end)
	if got := <-running.started; got != "2" {
		t.Error(got)
	}
	for range 2 {
		w.require(t, river.EventKindJobCompleted, 1)
	}
}

// TestEndsWhileRefused: this happens as a job is refused: it is snoozed all the same. What can end together with a job that runs is in the
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
				must(0, work(holder, t.Context(), func(context.Context) error {
					err = work(refused, ctx, func(context.Context) error { t.Error("the job was run"); return nil })
					return nil
				}))
				if !errors.As(err, new(*river.JobSnoozeError)) || !errors.Is(err, lockkeeper.ErrNotAcquired) {
					t.Errorf("%v", err)
				}
				s.RequireFree(t, "job:export")
			})
		})
	}
}

func work(l *joblimit.Limiter, ctx context.Context, fn func(context.Context) error) error {
	return riverlock.Middleware(l, nil).Work(ctx, &rivertype.JobRow{Kind: "export"}, fn)
}

// TestFailsAsItsContextEnds: a job that runs and fails as its context ends is not snoozed.
func TestFailsAsItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := must(joblimit.Exclusive(lockkeepertest.New(t).Keeper(t, nil), nil))
	err := work(l, ctx, func(ctx context.Context) error { cancel(); return ctx.Err() })
	if !errors.Is(err, context.Canceled) || errors.As(err, new(*river.JobSnoozeError)) {
		t.Errorf("%v", err)
	}
}

func TestKeyOfJob(t *testing.T) {
	byArgs := func(job *rivertype.JobRow) string {
		if string(job.EncodedArgs) == `{"customer":""}` {
			return "" // no limit
		}
		return string(job.EncodedArgs)
	}
	running := newJobs()
	w := newWorld(t, must(joblimit.Exclusive(lockkeepertest.New(t).Keeper(t, nil), nil)), byArgs, running.work)
	for _, customer := range []string{"a", "b", "", ""} {
		w.insert(t, customer)
		<-running.started // although the others are running
	}
	close(running.end)
}

func TestRateSnoozesUntilPermitReturns(t *testing.T) {
	s := lockkeepertest.New(t)
	w := newWorld(t, must(joblimit.Rate(s.Keeper(t, nil), 1, time.Hour, nil)), nil, func(context.Context, string) error { return nil })
	w.insert(t, "1")
	w.require(t, river.EventKindJobCompleted, 1)
	w.insert(t, "2")
	job := w.require(t, river.EventKindJobSnoozed, 0)
	if in := time.Until(job.ScheduledAt); in < 55*time.Minute || in > time.Hour+time.Minute {
		t.Errorf("snoozed for %v", in)
	}
	s.Flush(t) // the permit that is taken
}

func TestLossEndsContextOfJob(t *testing.T) {
	s := lockkeepertest.New(t)
	cause := make(chan error, 1)
	l := must(joblimit.Exclusive(s.Keeper(t, nil), &joblimit.Options{TTL: 300 * time.Millisecond}))
	w := newWorld(t, l, nil, func(ctx context.Context, _ string) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	w.insert(t, "1")
	s.LoseLease(t, "job:export")
	if err := <-cause; !errors.Is(err, lockkeeper.ErrLost) {
		t.Error(err)
	}
	w.require(t, river.EventKindJobFailed, 1)
}
