package cronlock_test

import (
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

// world is a server in virtual time, which starts at midnight, and what the jobs of a test do and log.
type world struct {
	*testing.T
	s      *lockkeepertest.Server
	done   chan string
	log    strings.Builder
	logger *slog.Logger // to log, of all jobs: each handler has a mutex of its own
}

func bubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, s: lockkeepertest.New(t), done: make(chan string, 100)}
		w.logger = slog.New(slog.NewTextHandler(&w.log, nil))
		test(w)
	})
}

func (w *world) add(format string, args ...any) { w.done <- fmt.Sprintf(format, args...) }

func (w *world) require(want ...string) {
	w.Helper()
	synctest.Wait()
	var got []string
	for len(w.done) > 0 {
		got = append(got, <-w.done)
	}
	if !slices.Equal(got, want) {
		w.Errorf("the jobs did %q, want %q; log:\n%s", got, want, &w.log)
	}
}

// job returns the job of a process of its own.
func (w *world) job(period time.Duration, fn func(context.Context, uint64) error, o cronlock.Options) cron.Job {
	o.Logger = w.logger
	job, err := cronlock.New(w.s.Keeper(w, nil), name, period, fn, &o)
	if err != nil {
		w.Fatal(err)
	}
	return job
}

// record returns a job that records that it ran.
func (w *world) record(host string) func(context.Context, uint64) error {
	return func(context.Context, uint64) error {
		w.add("%s at %s", host, time.Now().UTC().Format("15:04"))
		return nil
	}
}

// start starts a scheduler with one job, on a host of its own, and returns a function that stops it and waits for its jobs.
func (w *world) start(s cron.Schedule, j cron.Job) (stop func()) {
	c := cron.New(cron.WithLogger(cron.DiscardLogger))
	c.Schedule(s, j)
	c.Start()
	stop = sync.OnceFunc(func() { <-c.Stop().Done() })
	w.Cleanup(stop)
	return stop
}

// late is a schedule of a host whose clock is late.
type late struct {
	cron.Schedule
	by time.Duration
}

func (l late) Next(t time.Time) time.Time { return l.Schedule.Next(t.Add(-l.by)).Add(l.by) }

func parse(t testing.TB, spec string) cron.Schedule {
	t.Helper()
	s, err := cron.ParseStandard(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOneHostRunsEachSlotAlthoughClocksDiffer(t *testing.T) {
	for by, hosts := range map[time.Duration][]string{
		0:                {"any", "any", "any"}, // any host may be first
		time.Millisecond: {"a", "b", "c"},
		29 * time.Second: {"a", "b", "c"},
		31 * time.Second: {"a", "b", "c"},
		5 * time.Minute:  {"a", "b", "c"},
	} {
		t.Run(by.String(), func(t *testing.T) {
			bubble(t, func(w *world) {
				time.Sleep(30 * time.Minute)
				hourly := parse(w, "TZ=UTC 0 * * * *")
				for i, host := range hosts {
					w.start(late{hourly, time.Duration(i) * by}, w.job(cronlock.Period(hourly), w.record(host), cronlock.Options{}))
				}
				time.Sleep(3 * time.Hour)
				w.require(hosts[0]+" at 01:00", hosts[0]+" at 02:00", hosts[0]+" at 03:00")
			})
		})
	}
}

// TestEndsTogether: what ends a run can coincide. The steps happen in this order, and then the job returns.
func TestEndsTogether(t *testing.T) {
	failed := errors.New("disk full")
	for _, c := range []struct {
		steps    string
		returned error
		losses   int    // reported to OnLost
		log      string // one error, or ""
		runs     bool   // another host, which is due then
	}{
		{"", nil, 0, "", false},
		{"", failed, 0, "job failed", true},
		{"lose", nil, 1, "lease lost", true},
		{"lose", failed, 1, "job failed", true},
		{"lose ended", nil, 1, "lease lost", true},
		{"lose ended", failed, 1, "job failed", true},
		{"cancel", nil, 0, "", false},
		{"cancel", context.Canceled, 0, "job failed", true},
		{"cancel lose", nil, 1, "lease lost", true},
		{"cancel lose later", nil, 1, "lease lost", true}, // while the job goes on
		{"lose ended cancel", nil, 1, "lease lost", true},
		{"close", nil, 0, "may be run again", true},
		{"cancel close", nil, 0, "may be run again", true},
		{"outage", nil, 0, "may be run again", false}, // not before the lease has expired
		{"outage ended", nil, 1, "lease lost", false},
	} {
		t.Run(fmt.Sprint(c.steps, ", ", c.returned), func(t *testing.T) {
			bubble(t, func(w *world) {
				losses := 0
				base, cancel := context.WithCancel(w.Context())
				k := w.s.Keeper(w, nil)
				step := map[string]func(context.Context){
					"lose": func(context.Context) { w.s.LoseLease(w, name) },
					"ended": func(ctx context.Context) {
						<-ctx.Done()
						if synctest.Wait(); losses != 1 || !errors.Is(context.Cause(ctx), lockkeeper.ErrLost) {
							w.Errorf("%d losses while the job runs, whose context ends by %v", losses, context.Cause(ctx))
						}
					},
					"later":  func(context.Context) { time.Sleep(time.Minute) },
					"cancel": func(context.Context) { cancel() },
					"close":  func(context.Context) { _ = k.Close() },
					"outage": func(context.Context) { w.s.Unreachable() },
				}
				onLost := func(job string, err error) {
					if losses++; job != name || !errors.Is(err, lockkeeper.ErrLost) {
						w.Errorf("a loss of %q: %v", job, err)
					}
				}
				o := &cronlock.Options{BaseContext: base, Logger: w.logger, OnLost: onLost}
				job, err := cronlock.New(k, name, time.Hour, func(ctx context.Context, _ uint64) error {
					for _, name := range strings.Fields(c.steps) {
						step[name](ctx)
					}
					return c.returned
				}, o)
				if err != nil {
					w.Fatal(err)
				}
				job.Run()
				if losses != c.losses || strings.Count(w.log.String(), "lease lost;") != c.losses {
					w.Errorf("%d losses; log:\n%s", losses, &w.log)
				}
				if c.log == "" != (w.log.Len() == 0) || !strings.Contains(w.log.String(), c.log) {
					w.Errorf("log:\n%s; want %q", &w.log, c.log)
				}
				w.s.Restore()
				w.job(time.Hour, w.record("next"), cronlock.Options{}).Run()
				synctest.Wait()
				if (len(w.done) == 1) != c.runs {
					w.Errorf("the job ran %d times on the next host", len(w.done))
				}
				time.Sleep(time.Minute) // until what the outage has left has expired
			})
		})
	}
}

func TestOutageSkipsJobUnlessItMayRunWithoutLease(t *testing.T) {
	bubble(t, func(w *world) {
		ended, end := context.WithCancel(w.Context())
		end()
		for host, o := range map[string]cronlock.Options{
			"skips": {},
			"runs":  {RunIfUnavailable: true},
			"ended": {RunIfUnavailable: true, BaseContext: ended},
		} {
			w.start(parse(w, "@hourly"), w.job(50*time.Minute, func(ctx context.Context, fence uint64) error {
				w.add("%s, fence %d", host, fence)
				return errors.Join(ctx.Err(), errors.New("disk full"))
			}, o))
		}
		w.s.Unreachable()
		time.Sleep(time.Hour + time.Minute)
		w.require("runs, fence 0")
		for _, says := range []string{"job skipped", "job runs without a lease", "disk full"} {
			if !strings.Contains(w.log.String(), says) {
				w.Errorf("no %q in the log:\n%s", says, &w.log)
			}
		}
		w.s.Restore()
	})
}

func TestLossWithoutOnLost(t *testing.T) {
	bubble(t, func(w *world) {
		w.job(time.Hour, func(context.Context, uint64) error { w.s.LoseLease(w, name); return nil }, cronlock.Options{}).Run()
		if !strings.Contains(w.log.String(), "lease lost") {
			w.Errorf("the log:\n%s", &w.log)
		}
	})
}

// TestOutageAfterRefusal: Redis says that the job is running elsewhere, and then answers no more.
func TestOutageAfterRefusal(t *testing.T) {
	bubble(t, func(w *world) {
		k := w.s.Keeper(w, &lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: func(lockkeeper.Event) { w.s.Unreachable() }}})
		second, err := cronlock.New(k, name, time.Hour, w.record("second"), &cronlock.Options{RunIfUnavailable: true, Logger: w.logger})
		if err != nil {
			w.Fatal(err)
		}
		w.job(time.Hour, func(context.Context, uint64) error {
			second.Run()
			w.s.Restore()
			return nil
		}, cronlock.Options{}).Run()
		w.require()
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

func TestInvalidJobIsRefused(t *testing.T) {
	k := lockkeepertest.New(t).Keeper(t, nil)
	fn := func(context.Context, uint64) error { return nil }
	_, withoutFn := cronlock.New(k, name, time.Hour, nil, nil)
	_, withoutPeriod := cronlock.New(k, name, 0, fn, nil)
	_, shortTTL := cronlock.New(k, name, time.Hour, fn, &cronlock.Options{TTL: time.Millisecond})
	_, withoutName := cronlock.Wrap(k, "", time.Hour, nil)
	for says, err := range map[string]error{"fn": withoutFn, "period": withoutPeriod, "TTL": shortTTL, "name": withoutName} {
		if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
