package cronlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/lockkeeper/lockkeeper"
	cronlock "github.com/lockkeeper/lockkeeper/contrib/cron"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

const name = "report"

// journal records what the jobs of a test do. It is also where they log.
type journal struct {
	mu    sync.Mutex
	lines []string
	log   bytes.Buffer
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) entries() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.log.Write(b)
}

func (j *journal) require(t *testing.T, want ...string) {
	t.Helper()
	if got := j.entries(); !slices.Equal(got, want) {
		t.Errorf("the jobs did %q, want %q; log:\n%s", got, want, j.logged())
	}
}

func (j *journal) logged() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.log.String()
}

func (j *journal) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// late is a schedule of a host whose clock is late.
type late struct {
	cron.Schedule
	by time.Duration
}

func (l late) Next(t time.Time) time.Time { return l.Schedule.Next(t.Add(-l.by)).Add(l.by) }

// start starts a scheduler with one job, on a host of its own, and returns a function that stops it and waits for its jobs.
func start(t *testing.T, s cron.Schedule, j cron.Job) (stop func()) {
	t.Helper()
	c := cron.New(cron.WithLogger(cron.DiscardLogger))
	c.Schedule(s, j)
	c.Start()
	stop = sync.OnceFunc(func() { <-c.Stop().Done() })
	t.Cleanup(stop)
	return stop
}

func parse(t *testing.T, spec string) cron.Schedule {
	t.Helper()
	s, err := cron.ParseStandard(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bubble runs a test in virtual time, which starts at midnight.
func bubble(t *testing.T, test func(t *testing.T, s *lockkeepertest.Server, j *journal)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockkeepertest.New(t), new(journal)) })
}

func newJob(t *testing.T, k *lockkeeper.Keeper, period time.Duration, fn func(context.Context, uint64) error, o cronlock.Options, j *journal) cron.Job {
	t.Helper()
	o.Logger = j.logger()
	c, err := cronlock.New(k, name, period, fn, &o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// record returns a job that records that it ran.
func (j *journal) record(host string) func(context.Context, uint64) error {
	return func(context.Context, uint64) error {
		j.add("%s at %s", host, time.Now().UTC().Format("15:04"))
		return nil
	}
}

func TestOneHostRunsEachSlotAlthoughClocksDiffer(t *testing.T) {
	for _, by := range []time.Duration{0, time.Millisecond, 29 * time.Second, 31 * time.Second, 5 * time.Minute} {
		t.Run(by.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
				time.Sleep(30 * time.Minute)
				hourly := parse(t, "TZ=UTC 0 * * * *")
				for i, host := range []string{"a", "b", "c"} {
					job := newJob(t, s.Keeper(t, nil), cronlock.Period(hourly), j.record(host), cronlock.Options{}, j)
					start(t, late{hourly, time.Duration(i) * by}, job)
				}
				time.Sleep(5 * time.Hour)
				if by == 0 { // any host may be first
					if n := len(j.entries()); n != 5 {
						t.Errorf("%d runs in 5 slots: %q", n, j.entries())
					}
					return
				}
				j.require(t, "a at 01:00", "a at 02:00", "a at 03:00", "a at 04:00", "a at 05:00")
			})
		})
	}
}

func TestHostsThatAreNotDueTogetherRunOncePerInterval(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		every := cron.Every(10 * time.Minute)
		stopA := start(t, every, newJob(t, s.Keeper(t, nil), cronlock.Period(every), j.record("a"), cronlock.Options{}, j))
		time.Sleep(4 * time.Minute)
		start(t, every, newJob(t, s.Keeper(t, nil), cronlock.Period(every), j.record("b"), cronlock.Options{}, j))
		time.Sleep(30 * time.Minute)
		stopA()
		time.Sleep(25 * time.Minute)
		j.require(t, "a at 00:10", "a at 00:20", "a at 00:30", "b at 00:44", "b at 00:54")
	})
}

func TestFailedJobIsRunByNextHost(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		daily := parse(t, "TZ=UTC 0 2 * * *")
		fails := func(context.Context, uint64) error {
			j.add("a fails")
			return errors.New("disk full")
		}
		start(t, daily, newJob(t, s.Keeper(t, nil), 20*time.Hour, fails, cronlock.Options{}, j))
		start(t, late{daily, time.Minute}, newJob(t, s.Keeper(t, nil), 20*time.Hour, j.record("b"), cronlock.Options{}, j))
		time.Sleep(3 * time.Hour)
		j.require(t, "a fails", "b at 02:01")
		if !strings.Contains(j.logged(), "disk full") {
			t.Errorf("the failure was not logged: %s", j.logged())
		}
	})
}

func TestContextOfJobEndsWhenLeaseIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		untilEnd := func(ctx context.Context, fence uint64) error {
			<-ctx.Done()
			j.add("stopped by loss: %t", errors.Is(context.Cause(ctx), lockkeeper.ErrLost))
			return ctx.Err()
		}
		onLost := func(job string, err error) { j.add("%s lost: %t", job, errors.Is(err, lockkeeper.ErrLost)) }
		start(t, parse(t, "@hourly"), newJob(t, s.Keeper(t, nil), 50*time.Minute, untilEnd, cronlock.Options{OnLost: onLost}, j))
		time.Sleep(time.Hour)
		s.LoseLease(t, name)
		time.Sleep(time.Minute)
		got := j.entries()
		slices.Sort(got)
		if want := []string{"report lost: true", "stopped by loss: true"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if !strings.Contains(j.logged(), "lease lost") {
			t.Errorf("the loss was not logged: %s", j.logged())
		}
	})
}

func TestLossIsReportedWhileWrappedJobRuns(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		lost := make(chan string)
		w, err := cronlock.Wrap(s.Keeper(t, nil), name, 50*time.Minute, &cronlock.Options{Logger: j.logger(), OnLost: func(job string, err error) { lost <- job }})
		if err != nil {
			t.Fatal(err)
		}
		start(t, parse(t, "@hourly"), cron.NewChain(w).Then(cron.FuncJob(func() { j.add("lost %s", <-lost) })))
		time.Sleep(time.Hour)
		s.LoseLease(t, name)
		time.Sleep(time.Minute)
		j.require(t, "lost report")
	})
}

func TestLossThatJobDidNotSeeIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		onLost := func(job string, err error) { j.add("%s lost: %t", job, errors.Is(err, lockkeeper.ErrLost)) }
		fn := func(context.Context, uint64) error {
			s.LoseLease(t, name) // found when the success is recorded
			return nil
		}
		newJob(t, s.Keeper(t, nil), time.Hour, fn, cronlock.Options{OnLost: onLost}, j).Run()
		j.require(t, "report lost: true")
	})
}

func TestWrappedJobRunsOncePerSlot(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		for _, host := range []string{"a", "b"} {
			w, err := cronlock.Wrap(s.Keeper(t, nil), name, 20*time.Hour, &cronlock.Options{Logger: j.logger()})
			if err != nil {
				t.Fatal(err)
			}
			start(t, parse(t, "@daily"), cron.NewChain(w).Then(cron.FuncJob(func() { j.add("%s", host) })))
		}
		time.Sleep(3*24*time.Hour + time.Hour)
		if n := len(j.entries()); n != 3 {
			t.Errorf("%q in three days", j.entries())
		}
	})
}

func TestOutageSkipsJobUnlessItMayRunWithoutLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		ran := func(host string) func(context.Context, uint64) error {
			return func(ctx context.Context, fence uint64) error {
				j.add("%s, fence %d", host, fence)
				return ctx.Err()
			}
		}
		hourly := parse(t, "@hourly")
		start(t, hourly, newJob(t, s.Keeper(t, nil), 50*time.Minute, ran("skips"), cronlock.Options{}, j))
		start(t, hourly, newJob(t, s.Keeper(t, nil), 50*time.Minute, ran("runs"), cronlock.Options{RunIfUnavailable: true}, j))
		ended, end := context.WithCancel(t.Context())
		end()
		start(t, hourly, newJob(t, s.Keeper(t, nil), 50*time.Minute, ran("ended"), cronlock.Options{RunIfUnavailable: true, BaseContext: ended}, j))
		s.Unreachable()
		time.Sleep(time.Hour + time.Minute)
		j.require(t, "runs, fence 0")
		s.Restore()
	})
}

func TestPanicReleasesLease(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		k := s.Keeper(t, nil)
		bad := newJob(t, k, time.Hour, func(context.Context, uint64) error { panic("bad job") }, cronlock.Options{}, j)
		cron.NewChain(cron.Recover(cron.DiscardLogger)).Then(bad).Run()
		s.RequireFree(t, name)
		newJob(t, k, time.Hour, j.record("a"), cronlock.Options{}, j).Run()
		j.require(t, "a at 00:00")
	})
}

func TestPeriodFollowsShortestInterval(t *testing.T) {
	for spec, want := range map[string]time.Duration{
		"@every 5m":             4*time.Minute + 30*time.Second,
		"@every 1s":             900 * time.Millisecond,
		"TZ=UTC 0 2 * * *":      21*time.Hour + 36*time.Minute,
		"TZ=UTC 0 9,12 * * 1-5": 162 * time.Minute,
		"TZ=UTC 0 0 29 2 *":     365 * 24 * time.Hour, // every four years
		"TZ=UTC 0 0 30 2 *":     365 * 24 * time.Hour, // never

		// Clocks are set ahead and back at 2:00.
		"TZ=America/New_York 30 1 * * *":   23 * time.Hour * 9 / 10,
		"TZ=America/New_York 30 2 * * *":   24 * time.Hour * 9 / 10, // not on the day on which there is no 2:30
		"TZ=America/New_York 0 * * * *":    54 * time.Minute,
		"TZ=America/New_York */20 1 * * *": 18 * time.Minute,
		"TZ=America/New_York 0 1,3 * * *":  54 * time.Minute, // of the day on which clocks are set ahead
		"TZ=America/New_York 30 1 1 * *":   28 * 24 * time.Hour * 9 / 10,
		"TZ=America/New_York 30 1 * 11 0":  7 * 24 * time.Hour * 9 / 10,
	} {
		if got := cronlock.Period(parse(t, spec)); got != want {
			t.Errorf("%s: %v, want %v", spec, got, want)
		}
	}
}

// TestDailyJobRunsOnceOnTheDayOfTwoHours: when clocks are set back, 1:30 comes twice.
func TestDailyJobRunsOnceOnTheDayOfTwoHours(t *testing.T) {
	bubble(t, func(t *testing.T, s *lockkeepertest.Server, j *journal) {
		night := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC) // clocks are set back at 6:00
		time.Sleep(time.Until(night.Add(-24 * time.Hour)))
		daily := parse(t, "TZ=America/New_York 30 1 * * *")
		fn := func(context.Context, uint64) error {
			j.add("%s", time.Now().UTC().Format(time.DateTime))
			return nil
		}
		start(t, daily, newJob(t, s.Keeper(t, nil), cronlock.Period(daily), fn, cronlock.Options{}, j))
		time.Sleep(3 * 24 * time.Hour)
		j.require(t, "2026-10-31 05:30:00", "2026-11-01 05:30:00", "2026-11-02 06:30:00")
	})
}

func TestInvalidJobIsRefused(t *testing.T) {
	k := lockkeepertest.New(t).Keeper(t, nil)
	ok := func(context.Context, uint64) error { return nil }
	for _, x := range []struct {
		name   string
		period time.Duration
		fn     func(context.Context, uint64) error
		o      *cronlock.Options
		says   string
	}{
		{name, time.Hour, nil, nil, "nil"},
		{"", time.Hour, ok, nil, "name"},
		{name, 0, ok, nil, "period"},
		{name, -time.Second, ok, nil, "period"},
		{name, 366 * 24 * time.Hour, ok, nil, "period"},
		{name, time.Hour, ok, &cronlock.Options{TTL: time.Millisecond}, "TTL"},
		{name, time.Minute, ok, &cronlock.Options{TTL: time.Hour}, "TTL"},
	} {
		_, err := cronlock.New(k, x.name, x.period, x.fn, x.o)
		if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if _, err := cronlock.Wrap(k, "", time.Hour, nil); !errors.Is(err, lockkeeper.ErrInvalid) {
		t.Error(err)
	}
}
