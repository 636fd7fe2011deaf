package riverlock_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
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

// database returns a new SQLite database with River's tables.
func database(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "river.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	m, err := rivermigrate.New(riversqlite.New(db), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
	return db
}

// worker starts a River client whose jobs are limited. Its events are those of finished and snoozed jobs.
func worker(t *testing.T, db *sql.DB, l *joblimit.Limiter, key func(*rivertype.JobRow) string, work func(context.Context, string) error) (*river.Client[*sql.Tx], <-chan *river.Event) {
	t.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, job *river.Job[export]) error { return work(ctx, job.Args.Customer) }))
	client, err := river.NewClient(riversqlite.New(db), &river.Config{
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler), Workers: workers, TestOnly: true,
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		Middleware: []rivertype.Middleware{riverlock.Middleware(l, key)},
	})
	if err != nil {
		t.Fatal(err)
	}
	events, cancel := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobFailed, river.EventKindJobSnoozed)
	if err := client.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		cancel()
	})
	return client, events
}

func insert(t *testing.T, client *river.Client[*sql.Tx], customer string) {
	t.Helper()
	if _, err := client.Insert(t.Context(), export{customer}, &river.InsertOpts{MaxAttempts: 1}); err != nil {
		t.Fatal(err)
	}
}

func limiter(t *testing.T) func(l *joblimit.Limiter, err error) *joblimit.Limiter {
	return func(l *joblimit.Limiter, err error) *joblimit.Limiter {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

// next returns the next event of one of these kinds.
func next(events <-chan *river.Event, kinds ...river.EventKind) *river.Event {
	for e := range events {
		for _, kind := range kinds {
			if e.Kind == kind {
				return e
			}
		}
	}
	return nil
}

func TestRefusedJobIsSnoozedAndKeepsItsAttempts(t *testing.T) {
	db, s := database(t), lockkeepertest.New(t)
	l := limiter(t)(joblimit.Exclusive(s.Keeper(t, nil), &joblimit.Options{RetryAfter: 50 * time.Millisecond}))
	started, end := make(chan string), make(chan struct{})
	client, events := worker(t, db, l, nil, func(_ context.Context, customer string) error {
		started <- customer
		<-end
		return nil
	})
	insert(t, client, "1")
	<-started
	insert(t, client, "2")
	for range 2 {
		if e := next(events, river.EventKindJobSnoozed, river.EventKindJobFailed); e.Kind != river.EventKindJobSnoozed || e.Job.Attempt != 0 {
			t.Errorf("%s, attempt %d", e.Kind, e.Job.Attempt)
		}
	}
	close(end)
	if got := <-started; got != "2" {
		t.Error(got)
	}
	for range 2 {
		if e := next(events, river.EventKindJobCompleted, river.EventKindJobFailed); e.Kind != river.EventKindJobCompleted || e.Job.Attempt != 1 {
			t.Errorf("%s, attempt %d", e.Kind, e.Job.Attempt)
		}
	}
}

func TestKeyOfJob(t *testing.T) {
	db, s := database(t), lockkeepertest.New(t)
	l := limiter(t)(joblimit.Concurrent(s.Keeper(t, nil), 1, nil))
	byArgs := func(job *rivertype.JobRow) string {
		if string(job.EncodedArgs) == `{"customer":""}` {
			return "" // no limit
		}
		return string(job.EncodedArgs)
	}
	started, end := make(chan string), make(chan struct{})
	client, _ := worker(t, db, l, byArgs, func(_ context.Context, customer string) error {
		started <- customer
		<-end
		return nil
	})
	for _, customer := range []string{"a", "b", "", ""} {
		insert(t, client, customer)
		<-started // although the others are running
	}
	close(end)
}

func TestRateSnoozesUntilPermitReturns(t *testing.T) {
	db, s := database(t), lockkeepertest.New(t)
	l := limiter(t)(joblimit.Rate(s.Keeper(t, nil), 1, time.Hour, nil))
	client, events := worker(t, db, l, nil, func(context.Context, string) error { return nil })
	insert(t, client, "1")
	next(events, river.EventKindJobCompleted)
	insert(t, client, "2")
	e := next(events, river.EventKindJobSnoozed)
	if in := time.Until(e.Job.ScheduledAt); in < 55*time.Minute || in > time.Hour+time.Minute {
		t.Errorf("snoozed for %v", in)
	}
	s.Flush(t) // the permit that is taken
}

func TestLossEndsContextOfJob(t *testing.T) {
	db, s := database(t), lockkeepertest.New(t)
	l := limiter(t)(joblimit.Exclusive(s.Keeper(t, nil), &joblimit.Options{TTL: 300 * time.Millisecond}))
	cause := make(chan error, 1)
	client, events := worker(t, db, l, nil, func(ctx context.Context, _ string) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	})
	insert(t, client, "1")
	s.LoseLease(t, "job:export")
	if err := <-cause; !errors.Is(err, lockkeeper.ErrLost) {
		t.Error(err)
	}
	next(events, river.EventKindJobFailed)
}
