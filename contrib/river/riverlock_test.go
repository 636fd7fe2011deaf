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

func exclusive(t *testing.T, s *lockkeepertest.Server) *joblimit.Limiter {
	return must(joblimit.Exclusive(s.Keeper(t, nil), &joblimit.Options{RetryAfter: 50 * time.Millisecond}))
}

// TestRefusedJobIsSnoozedAndKeepsItsAttempts runs River with a database of its own.
func TestRefusedJobIsSnoozedAndKeepsItsAttempts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "river.db")
	db := must(sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_txlock=immediate"))
	db.SetMaxOpenConns(1)
	defer db.Close()
	must(must(rivermigrate.New(riversqlite.New(db), nil)).Migrate(t.Context(), rivermigrate.DirectionUp, nil))
	started, end := make(chan string), make(chan struct{})
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[export]) error {
		started <- job.Args.Customer
		<-end
		return nil
	}))
	client := must(river.NewClient(riversqlite.New(db), &river.Config{
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Workers: workers, TestOnly: true,
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		Middleware: []rivertype.Middleware{riverlock.Middleware(exclusive(t, lockkeepertest.New(t)), nil)},
	}))
	events, cancel := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed, river.EventKindJobSnoozed)
	defer cancel()
	must(0, client.Start(context.Background()))
	defer client.Stop(context.Background())
	insert := func(customer string) {
		must(client.Insert(t.Context(), export{customer}, &river.InsertOpts{MaxAttempts: 1}))
	}
	require := func(kind river.EventKind, attempt int) { // of the next event of this kind, or of a failure
		t.Helper()
		for e := range events {
			if e.Kind == kind || e.Kind == river.EventKindJobFailed {
				if e.Kind != kind || e.Job.Attempt != attempt {
					t.Errorf("%s, attempt %d; want %s, attempt %d", e.Kind, e.Job.Attempt, kind, attempt)
				}
				return
			}
		}
	}
	insert("1")
	<-started
	insert("2")
	for range 2 {
		require(river.EventKindJobSnoozed, 0)
	}
	close(end)
	if got := <-started; got != "2" {
		t.Error(got)
	}
	for range 2 {
		require(river.EventKindJobCompleted, 1)
	}
}

// TestEndsWhileRefused: this happens as a job is refused: it is snoozed all the same, for the time that the limiter says. What can end together
// with a job that runs is in the tests of joblimit.
func TestEndsWhileRefused(t *testing.T) {
	for _, name := range []string{"nothing", "cancel", "close"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := lockkeepertest.New(t)
				ctx, cancel := context.WithCancel(t.Context())
				var k *lockkeeper.Keeper
				ends := map[string]func(){"nothing": func() {}, "cancel": cancel, "close": func() { _ = k.Close() }}[name]
				k = s.Keeper(t, &lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: func(lockkeeper.Event) { ends() }}})
				refused, holder := must(joblimit.Exclusive(k, nil)), exclusive(t, s)
				var err error
				must(0, work(holder, t.Context(), func(context.Context) error {
					s.RequireHeld(t, "job:export")
					err = work(refused, ctx, func(context.Context) error { t.Error("the job was run"); return nil })
					return nil
				}))
				var snooze *river.JobSnoozeError
				var p *joblimit.PostponedError
				if !errors.As(err, &snooze) || !errors.As(err, &p) || snooze.Duration != p.RetryAfter || !errors.Is(err, lockkeeper.ErrNotAcquired) {
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

// TestFailsAsItsContextEnds: a job that runs, with its lease, and fails as its context ends is not snoozed.
func TestFailsAsItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := work(exclusive(t, lockkeepertest.New(t)), ctx, func(ctx context.Context) error {
		if lockkeeper.LeaseFromContext(ctx).Err() != nil {
			t.Error("the context of the job is not that of its lease")
		}
		cancel()
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) || errors.As(err, new(*river.JobSnoozeError)) {
		t.Errorf("%v", err)
	}
}

// TestKeyOfJob: jobs with different keys run beside each other, and those without a key have no limit.
func TestKeyOfJob(t *testing.T) {
	byArgs := riverlock.Middleware(exclusive(t, lockkeepertest.New(t)), func(job *rivertype.JobRow) string { return string(job.EncodedArgs) })
	inside := func(context.Context) error { return nil }
	for _, args := range []string{"a", "b", "", ""} {
		next := inside
		inside = func(ctx context.Context) error {
			return byArgs.Work(ctx, &rivertype.JobRow{EncodedArgs: []byte(args)}, next)
		}
	}
	must(0, inside(t.Context()))
}
