package once_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

const key = "{lock:x}:once:holders"

var ctx = context.Background()

func TestMain(m *testing.M) {
	quiet.Redis()
	goleak.VerifyTestMain(m)
}

// process is a keeper with connections of its own.
type process struct {
	*testing.T
	net    *faultnet.Net
	keeper *lockkeeper.Keeper
}

func (p *process) job(period time.Duration, opts *once.Options) *once.Once {
	p.Helper()
	return must.Get(once.New(p.keeper, "x", period, opts))(p)
}

// runJob calls Do with a job that takes a moment and returns ends, and checks the result.
func (p *process) runJob(o *once.Once, took time.Duration, ends error, want once.Outcome) once.Result {
	p.Helper()
	ran := false
	r, err := o.Do(ctx, func(ctx context.Context, fence uint64) error {
		ran = true
		check.That(p, fence != 0, "no fence")
		time.Sleep(took)
		return ends
	})
	if r.Outcome != want || ran != (want == once.Ran) || !errors.Is(err, ends) || ends == nil && err != nil {
		p.Errorf("Do: %v, %v, ran %t; want %v, %v", r, err, ran, want, ends)
	}
	return r
}

// newProcess starts a process with hooks.
func newProcess(s *embedded.Server, hooks lockkeeper.Hooks) *process {
	network := s.Network()
	rdb := redis.NewClient(network.Options(time.Second))
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Hooks: hooks, Logger: slog.New(slog.DiscardHandler)}))(s)
	s.Cleanup(func() {
		network.Restore()
		_, _ = k.Close(), rdb.Close()
	})
	return &process{s.T, network, k}
}

// inBubble runs a test with n processes on one embedded server, in virtual time.
func inBubble(t *testing.T, n int, test func(server *miniredis.Miniredis, p []*process)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var all []*process
		for range n {
			all = append(all, newProcess(s, lockkeeper.Hooks{}))
		}
		test(s.Mini, all)
	})
}

var errFailed = errors.New("no data")

func TestOneSuccessPerPeriod(t *testing.T) {
	for name, apart := range map[string]time.Duration{"together": 0, "one after the other": 300 * time.Millisecond} {
		for what, took := range map[string]time.Duration{"short": 100 * time.Millisecond, "longer than its ttl": 5 * time.Minute} {
			t.Run(name+", "+what, func(t *testing.T) {
				inBubble(t, 3, func(server *miniredis.Miniredis, p []*process) {
					start := time.Now()
					count := func() map[once.Outcome]int {
						var mu sync.Mutex
						var wg sync.WaitGroup
						seen := map[once.Outcome]int{}
						for i, p := range p {
							wg.Go(func() {
								time.Sleep(time.Duration(i) * apart)
								r, err := p.job(20*time.Hour, nil).Do(ctx, func(ctx context.Context, _ uint64) error {
									time.Sleep(took)
									return context.Cause(ctx)
								})
								mu.Lock()
								defer mu.Unlock()
								seen[r.Outcome]++
								must.Report(t, err)
								check.That(t, r.Outcome == once.Running || r.Next.Sub(start).Round(time.Second) == 20*time.Hour,
									"%v: next after %v", r.Outcome, r.Next.Sub(start))
							})
						}
						wg.Wait()
						return seen
					}
					if seen := count(); seen[once.Ran] != 1 || seen[once.Done]+seen[once.Running] != 2 {
						t.Errorf("%v", seen)
					}
					// The period is counted from the start of the run, however long the run took.
					if left := server.TTL(key) + time.Since(start); left < 20*time.Hour-time.Second || left > 20*time.Hour+time.Second {
						t.Errorf("the record ends %v after the start", left)
					}
					time.Sleep(20*time.Hour - time.Since(start) - time.Second)
					if seen := count(); seen[once.Done] < 1 || seen[once.Ran] > 1 {
						t.Errorf("in the last second, to the next period: %v", seen)
					}
				})
			})
		}
	}
}

func TestRunsAgainAfterPeriod(t *testing.T) {
	inBubble(t, 2, func(_ *miniredis.Miniredis, p []*process) {
		a, b := p[0].job(20*time.Hour, nil), p[1].job(20*time.Hour, nil)
		for day := range 3 {
			start := time.Now()
			p[0].runJob(a, time.Duration(day)*time.Hour, nil, once.Ran)
			for time.Since(start) < 20*time.Hour-time.Minute {
				p[1].runJob(b, 0, nil, once.Done) // also after the metadata of the name has expired
				time.Sleep(2 * time.Hour)
			}
			time.Sleep(24*time.Hour - time.Since(start))
		}
		p[0].runJob(a, 21*time.Hour, nil, once.Ran) // longer than the period
		p[1].runJob(b, 0, nil, once.Ran)
		p[0].runJob(a, 0, nil, once.Done)
	})
}

func TestFailedJobRunsAgain(t *testing.T) {
	inBubble(t, 2, func(server *miniredis.Miniredis, p []*process) {
		a, b := p[0].job(time.Hour, nil), p[1].job(time.Hour, nil)
		p[0].runJob(a, time.Second, errFailed, once.Ran)
		func() {
			defer func() {
				check.That(t, recover() == "at the disco", "the panic was not passed on")
			}()
			_, _ = b.Do(ctx, func(context.Context, uint64) error { panic("at the disco") })
		}()
		check.That(t, !server.Exists(key), "the lease was not released")
		p[1].runJob(b, time.Second, nil, once.Ran)
		p[0].runJob(a, time.Second, nil, once.Done)
	})
}

func TestCallDuringRunReportsRunning(t *testing.T) {
	inBubble(t, 2, func(_ *miniredis.Miniredis, p []*process) {
		a, b := p[0].job(time.Hour, nil), p[1].job(time.Hour, nil)
		go p[0].runJob(a, 10*time.Minute, nil, once.Ran)
		time.Sleep(5 * time.Minute)
		r := p[1].runJob(b, 0, nil, once.Running)
		left := time.Until(r.Next)
		check.That(t, left > 0 && left <= 30*time.Second, "its lease ends in %v", left)
		check.Is(t, b.Reset(ctx), lockkeeper.ErrNotAcquired, "the error")
		time.Sleep(6 * time.Minute)
		p[1].runJob(b, 0, nil, once.Done)
	})
}

// TestKeyWithoutExpiry checks that a time that is not known is not one in the past.
func TestKeyWithoutExpiry(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		o := newProcess(s, lockkeeper.Hooks{Succeeded: func(e lockkeeper.Event) {
			check.That(t, e.Duration == 0, "a run since %v", e.Duration)
		}}).job(time.Hour, nil)
		for value, want := range map[string]once.Outcome{"done:x": once.Done, "x": once.Running} {
			must.OK(t, s.Mini.Set(key, value))
			for name, call := range map[string]func() (once.Result, error){
				"Do":     func() (once.Result, error) { return o.Do(ctx, nil) },
				"Status": func() (once.Result, error) { return o.Status(ctx) },
			} {
				r, err := call()
				check.That(t, err == nil && r.Outcome == want && r.Next.IsZero(), "%s of %q: %v, %v", name, value, r, err)
			}
		}
	})
}

// TestContextThatEndsWithRefusal checks the error of a call whose context ends when the server has refused it.
func TestContextThatEndsWithRefusal(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		ending, cancel := context.WithCancel(ctx)
		refused := newProcess(s, lockkeeper.Hooks{AcquireDone: func(lockkeeper.Event) { cancel() }}).job(time.Hour, nil)
		_, err := newProcess(s, lockkeeper.Hooks{}).job(time.Hour, nil).Do(ctx, func(context.Context, uint64) error {
			r, err := refused.Do(ending, func(context.Context, uint64) error { return nil })
			check.That(t, r.Outcome == once.None && errors.Is(err, context.Canceled) && errors.Is(err, lockkeeper.ErrNotAcquired),
				"Do: %v, %v", r, err)
			return nil
		})
		must.Report(t, err)
	})
}

func TestRunsElsewhereAfterCrash(t *testing.T) {
	inBubble(t, 2, func(server *miniredis.Miniredis, p []*process) {
		opts := &once.Options{TTL: 10 * time.Second}
		a, b := p[0].job(time.Hour, opts), p[1].job(time.Hour, opts)
		ended := make(chan error)
		go func() {
			_, err := a.Do(ctx, func(ctx context.Context, _ uint64) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			ended <- err
		}()
		time.Sleep(time.Second)
		p[0].net.Down()
		crash := time.Now()
		p[1].runJob(b, 0, nil, once.Running)
		for server.Exists(key) {
			time.Sleep(10 * time.Millisecond)
		}
		d := time.Since(crash)
		check.That(t, d <= 10*time.Second, "the lease outlived the crash by %v", d)
		p[1].runJob(b, 0, nil, once.Ran)
		check.Is(t, <-ended, lockkeeper.ErrLost, "the error")
		p[1].runJob(b, 0, nil, once.Done)
	})
}

// A run that succeeds after its lease was lost is not recorded as a success.
func TestSuccessAfterLossReturnsErrLost(t *testing.T) {
	inBubble(t, 2, func(server *miniredis.Miniredis, p []*process) {
		a, b := p[0].job(time.Hour, nil), p[1].job(time.Hour, nil)
		r, err := a.Do(ctx, func(ctx context.Context, _ uint64) error {
			server.Del(key)
			p[1].runJob(b, time.Second, nil, once.Ran)
			return nil // ignores ctx
		})
		check.That(t, r.Outcome == once.Ran && errors.Is(err, lockkeeper.ErrLost), "%v, %v", r, err)
		p[0].runJob(a, 0, nil, once.Done) // the other's record is unchanged
	})
}

func TestLostReplyToCompleteIsRetried(t *testing.T) {
	for name, fault := range map[string]faultnet.Fault{"cut": faultnet.CutReply, "swallowed": faultnet.SwallowReply, "lost": faultnet.LoseRequest} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(server *miniredis.Miniredis, p []*process) {
				start := time.Now()
				p[0].net.Break(lua.Once.Complete.SHA, 2, fault)
				p[0].runJob(p[0].job(time.Hour, nil), time.Minute, nil, once.Ran)
				if left := server.TTL(key) + time.Since(start); left < time.Hour-time.Second || left > time.Hour+5*time.Second {
					t.Errorf("the record ends %v after the start", left)
				}
				p[1].runJob(p[1].job(time.Hour, nil), 0, nil, once.Done)
			})
		})
	}
}

func TestUnrecordedSuccessReturnsError(t *testing.T) {
	inBubble(t, 2, func(_ *miniredis.Miniredis, p []*process) {
		a, b := p[0].job(time.Hour, nil), p[1].job(time.Hour, nil)
		r, err := a.Do(ctx, func(context.Context, uint64) error {
			p[0].net.Down()
			return nil
		})
		var u *once.UnrecordedError
		must.That(t, r.Outcome == once.Ran && errors.As(err, &u) && !errors.Is(err, lockkeeper.ErrLost), "%v, %v", r, err)
		check.That(t, strings.Contains(err.Error(), "the job has succeeded, but may be run again from"), "the error says %q", err)
		r, err = a.Do(ctx, func(context.Context, uint64) error { t.Error("it was run"); return nil })
		check.That(t, r.Outcome == once.None && err != nil && !errors.Is(err, lockkeeper.ErrNotAcquired),
			"while Redis is down: %v, %v", r, err)
		time.Sleep(time.Until(u.RunAgain))
		p[1].runJob(b, 0, nil, once.Ran)
	})
}

// The job's context may have ended when the job ends.
func TestCancelledContextKeepsSuccess(t *testing.T) {
	inBubble(t, 2, func(_ *miniredis.Miniredis, p []*process) {
		ctx, cancel := context.WithCancel(ctx)
		r, err := p[0].job(time.Hour, nil).Do(ctx, func(context.Context, uint64) error {
			cancel()
			return nil
		})
		check.That(t, r.Outcome == once.Ran && err == nil, "%v, %v", r, err)
		p[1].runJob(p[1].job(time.Hour, nil), 0, nil, once.Done)

		r, err = p[1].job(time.Hour, nil).Do(ctx, func(context.Context, uint64) error { t.Error("it was run"); return nil })
		check.That(t, r.Outcome == once.None && errors.Is(err, context.Canceled), "with a context that has ended: %v, %v", r, err)
	})
}

// TestClose checks that a record outlasts its keeper, and that a run that is in progress when its keeper is closed is not recorded.
func TestClose(t *testing.T) {
	inBubble(t, 3, func(_ *miniredis.Miniredis, p []*process) {
		r, err := p[0].job(time.Hour, nil).Do(ctx, func(ctx context.Context, _ uint64) error {
			must.Report(t, p[0].keeper.Close())
			<-ctx.Done()
			return nil
		})
		check.That(t, r.Outcome == once.Ran && errors.Is(err, lockkeeper.ErrReleased), "%v, %v", r, err)
		p[1].runJob(p[1].job(time.Hour, nil), 0, nil, once.Ran)
		must.Report(t, p[1].keeper.Close())
		p[2].runJob(p[2].job(time.Hour, nil), 0, nil, once.Done)
	})
}

func TestResetAllowsRerun(t *testing.T) {
	inBubble(t, 2, func(_ *miniredis.Miniredis, p []*process) {
		a, b := p[0].job(time.Hour, nil), p[1].job(time.Hour, nil)
		must.Report(t, b.Reset(ctx)) // nothing is recorded
		p[0].runJob(a, 0, nil, once.Ran)
		if r, err := b.Status(ctx); r.Outcome != once.Done || err != nil || time.Until(r.Next) > time.Hour || time.Until(r.Next) < time.Hour-time.Second {
			t.Errorf("Status: %v, %v", r, err)
		}
		must.Report(t, b.Reset(ctx))
		if r, err := b.Status(ctx); r != (once.Result{}) || err != nil {
			t.Errorf("Status: %v, %v", r, err)
		}
		p[1].runJob(b, 0, nil, once.Ran)
		p[0].runJob(a, 0, nil, once.Done)
	})
}

func TestInvalidArgumentsRejected(t *testing.T) {
	inBubble(t, 1, func(_ *miniredis.Miniredis, p []*process) {
		for _, c := range []struct {
			name   string
			period time.Duration
			ttl    time.Duration
			says   string
		}{
			{"", time.Hour, 0, "bad name"},
			{"x", 0, 0, "period 0s"},
			{"x", -time.Hour, 0, "period -1h"},
			{"x", 400 * 24 * time.Hour, 0, "period 9600h"},
			{"x", 20 * time.Second, 0, "period 20s is shorter than TTL 30s"},
			{"x", time.Hour, time.Millisecond, "TTL 1ms"},
		} {
			_, err := once.New(p[0].keeper, c.name, c.period, &once.Options{TTL: c.ttl})
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), c.says), "%+v: %v", c, err)
		}
	})
}
