package once_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/once"
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
	rdb := redistest.On(s, network, time.Second)
	k := keepers.New(s, rdb, &lockkeeper.Options{Hooks: hooks, Logger: slog.New(slog.DiscardHandler)})
	s.Cleanup(network.Restore)
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

// TestKeyWithoutExpiry: somebody has taken the key's expiry away. Next is never zero, so nobody who sleeps until then spins; and Do gives a
// record a period, so that the job is not refused for ever.
func TestKeyWithoutExpiry(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		const ttl = 10 * time.Second
		var since []time.Duration
		p := newProcess(s, lockkeeper.Hooks{Succeeded: func(e lockkeeper.Event) {
			since = append(since, e.Duration.Round(time.Second))
		}})
		o := p.job(time.Hour, &once.Options{TTL: ttl})
		for _, x := range []struct {
			value   string
			want    once.Outcome
			in      time.Duration
			expires time.Duration // of the key after Do; 0: it has no expiry
		}{
			{"done:x", once.Done, time.Hour, time.Hour},
			{"x", once.Running, ttl, 0},                                       // another library's
			{"k:1:5000.5000", once.Running, 5 * time.Second, 5 * time.Second}, // a lease whose ttl is another one
		} {
			must.OK(t, s.Mini.Set(key, x.value))
			r, err := o.Status(ctx)
			check.That(t, err == nil && r.Outcome == x.want && r.Next.After(time.Now()), "Status of %q: %v, %v", x.value, r, err)
			r, err = o.Do(ctx, func(context.Context, uint64) error { return errors.New("it ran") })
			check.That(t, err == nil && r.Outcome == x.want && time.Until(r.Next).Round(time.Second) == x.in, "Do of %q: %v, %v", x.value, r, err)
			check.That(t, s.Mini.TTL(key).Round(time.Second) == x.expires, "%q: left for %v, want %v", x.value, s.Mini.TTL(key), x.expires)
		}
		time.Sleep(5 * time.Second)
		p.runJob(o, 0, nil, once.Ran)
		time.Sleep(time.Minute)
		p.runJob(o, 0, nil, once.Done)
		check.That(t, slices.Equal(since, []time.Duration{0, 0, time.Minute}), "successes since %v", since)
	})
}

// TestEndsTogether: what ends a run can coincide. The steps happen in this order, and then the job returns. A lost lease is not found to be
// so before that, unless the job waits for its context.
func TestEndsTogether(t *testing.T) {
	for _, c := range []struct {
		steps    string
		returned error
		errors   []error      // all that the error matches; none: it is nil
		next     once.Outcome // of another process
	}{
		{"", nil, nil, once.Done},
		{"", errFailed, []error{errFailed}, once.Ran},
		{"lose", nil, []error{lockkeeper.ErrLost}, once.Ran},
		{"lose", errFailed, []error{errFailed, lockkeeper.ErrLost}, once.Ran},
		{"lose other", nil, []error{lockkeeper.ErrLost}, once.Done}, // its record is unchanged
		{"lose other", errFailed, []error{errFailed, lockkeeper.ErrLost}, once.Done},
		{"lose ended", nil, []error{lockkeeper.ErrLost}, once.Ran},
		{"cancel", nil, nil, once.Done},
		{"cancel", errFailed, []error{errFailed}, once.Ran},
		{"cancel lose", nil, []error{lockkeeper.ErrLost}, once.Ran},
		{"lose cancel", errFailed, []error{errFailed, lockkeeper.ErrLost}, once.Ran},
		{"close", nil, []error{lockkeeper.ErrReleased}, once.Ran},
		{"close", errFailed, []error{errFailed}, once.Ran},
		{"cancel close", nil, []error{lockkeeper.ErrReleased}, once.Ran},
		{"close lose other", nil, []error{lockkeeper.ErrReleased}, once.Done},
		{"outage", nil, []error{lockkeeper.ErrUnavailable}, once.Running},
		{"outage", errFailed, []error{errFailed, lockkeeper.ErrUnavailable}, once.Running},
		{"cancel outage", nil, []error{context.Canceled}, once.Running},
		{"outage ended", nil, []error{lockkeeper.ErrLost}, once.Running}, // until the lease has expired at the server as well
	} {
		t.Run(fmt.Sprint(c.steps, ", ", c.returned), func(t *testing.T) {
			inBubble(t, 2, func(server *miniredis.Miniredis, p []*process) {
				ctx, cancel := context.WithCancel(ctx)
				other := p[1].job(time.Hour, nil)
				step := map[string]func(context.Context){
					"lose":   func(context.Context) { server.Del(key) },
					"other":  func(context.Context) { p[1].runJob(other, 0, nil, once.Ran) },
					"ended":  func(ctx context.Context) { <-ctx.Done() },
					"cancel": func(context.Context) { cancel() },
					"close":  func(context.Context) { must.Report(t, p[0].keeper.Close()) },
					"outage": func(context.Context) { p[0].net.Down() },
				}
				r, err := p[0].job(time.Hour, nil).Do(ctx, func(ctx context.Context, _ uint64) error {
					for _, name := range strings.Fields(c.steps) {
						step[name](ctx)
					}
					return c.returned
				})
				check.That(t, r.Outcome == once.Ran && (err == nil) == (len(c.errors) == 0), "Do: %v, %v", r, err)
				for _, want := range c.errors {
					check.Is(t, err, want, "the error")
				}
				unrecorded := errors.As(err, new(*once.UnrecordedError))
				check.That(t, unrecorded == (strings.HasSuffix(c.steps, "outage") && c.returned == nil), "the error: %#v", err)
				p[1].runJob(other, 0, nil, c.next)
				time.Sleep(time.Minute) // until what the outage has left has expired
			})
		})
	}
}

// TestEndsWhileAsked: a call is refused, because another process runs the job. This happens before it has asked how far that is.
func TestEndsWhileAsked(t *testing.T) {
	for _, c := range []struct {
		steps  string
		want   once.Outcome
		next   time.Duration // from now on; 0: the job may be run at once
		errors []error
	}{
		{"", once.Running, 30 * time.Second, nil},
		{"succeed", once.Done, time.Hour, nil},
		{"fail", once.Running, 0, nil},
		{"fail again", once.Running, 30 * time.Second, nil}, // another run
		{"lose", once.Running, 0, nil},
		{"lose again", once.Running, 30 * time.Second, nil},
		{"succeed lose", once.Running, 0, nil}, // its record was deleted
		{"cancel", once.None, 0, []error{lockkeeper.ErrNotAcquired, context.Canceled}},
		{"succeed cancel", once.None, 0, []error{lockkeeper.ErrNotAcquired, context.Canceled}},
		{"outage", once.None, 0, []error{lockkeeper.ErrNotAcquired, lockkeeper.ErrUnavailable}},
		{"fail outage", once.None, 0, []error{lockkeeper.ErrNotAcquired, lockkeeper.ErrUnavailable}},
		{"close", once.None, 0, []error{lockkeeper.ErrNotAcquired, lockkeeper.ErrClosed}},
	} {
		t.Run(c.steps, func(t *testing.T) {
			embedded.Run(t, func(s *embedded.Server) {
				ctx, cancel := context.WithCancel(ctx)
				running := newProcess(s, lockkeeper.Hooks{})
				start := func() (end func(error)) {
					began, returns, ended := make(chan struct{}), make(chan error), make(chan struct{})
					go func() {
						defer close(ended)
						_, _ = running.job(time.Hour, nil).Do(ctx, func(context.Context, uint64) error {
							close(began)
							return <-returns
						})
					}()
					<-began
					return func(err error) { returns <- err; <-ended }
				}
				end := start()
				var asks *process
				ends := func(err error) { end(err); end = func(error) {} }
				step := map[string]func(){
					"succeed": func() { ends(nil) },
					"fail":    func() { ends(errFailed) },
					"lose":    func() { s.Mini.Del(key) },
					"again":   func() { end(errFailed); end = start() },
					"cancel":  cancel,
					"outage":  func() { asks.net.Down() },
					"close":   func() { must.Report(t, asks.keeper.Close()) },
				}
				asks = newProcess(s, lockkeeper.Hooks{AcquireDone: func(lockkeeper.Event) {
					for _, name := range strings.Fields(c.steps) {
						step[name]()
					}
				}})
				r, err := asks.job(time.Hour, nil).Do(ctx, func(context.Context, uint64) error { t.Error("it ran"); return nil })
				in := time.Until(r.Next).Round(time.Second)
				check.That(t, r.Outcome == c.want && (err == nil) == (len(c.errors) == 0), "Do: %v, %v", r, err)
				check.That(t, c.want == once.None && r.Next.IsZero() || in == c.next, "the job may be run in %v", in)
				for _, want := range c.errors {
					check.Is(t, err, want, "the error")
				}
				end(nil)
			})
		})
	}
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
		check.Is(t, check.ErrorOf(a.Status(ctx)), lockkeeper.ErrUnavailable, "Status")
		check.Is(t, a.Reset(ctx), lockkeeper.ErrUnavailable, "Reset")
		time.Sleep(time.Until(u.RunAgain))
		p[1].runJob(b, 0, nil, once.Ran)
	})
}

func TestResetAllowsRerun(t *testing.T) {
	inBubble(t, 2, func(_ *miniredis.Miniredis, p []*process) {
		a, b := p[0].job(time.Hour, nil), p[1].job(time.Hour, nil)
		must.Report(t, b.Reset(ctx)) // nothing is recorded
		r, err := a.Do(ctx, func(context.Context, uint64) error {
			check.Is(t, b.Reset(ctx), lockkeeper.ErrNotAcquired, "the error while it runs")
			return nil
		})
		check.That(t, r.Outcome == once.Ran && err == nil, "Do: %v, %v", r, err)
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
			check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), c.says) &&
				strings.HasPrefix(err.Error(), fmt.Sprintf("lockkeeper: once %q: ", c.name)), "%+v: %v", c, err)
		}
		r, err := must.Get(once.New(p[0].keeper, "x", time.Hour, nil))(t).Do(t.Context(), nil)
		check.That(t, r == once.Result{} && errors.Is(err, lockkeeper.ErrInvalid), "a nil function: %v, %v", r, err)
	})
}
