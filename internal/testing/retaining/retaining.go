// Package retaining tests in virtual time what the locks with an option Retain have in common.
package retaining

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
)

// TTL is that of the leases by default.
const TTL = 5 * time.Second

var ctx = context.Background()

// Acquire is a method of a lock.
type Acquire func(context.Context) (*lockkeeper.Lease, error)

// Lock is the lock of a process of the name x. Inside is what the process may grant inside, Alone excludes all others.
type Lock struct {
	Inside, Alone, TryAlone Acquire
	Do                      func(context.Context, func(ctx context.Context, fence uint64) error) error // with what Inside acquires
	Adopt                   func(ctx context.Context, token string) (*lockkeeper.Lease, error)
	Kind                    lockkeeper.Kind
	Turns                   bool // one at a time is inside
}

// Options are the options of a lock with which Retain may be in conflict, and Retain.
type Options struct {
	Retain, NoRenewal bool
	MaxLifetime       time.Duration
}

// New returns the lock of a process.
type New func(k *lockkeeper.Keeper, o Options) (Lock, error)

// Process is a process of a test.
type Process struct {
	*lockkeeper.Keeper
	Net  *faultnet.Net
	t    *testing.T
	lock Lock
	new  New

	mu     sync.Mutex
	events []string
}

// Run runs a test with two processes in virtual time. The first retains its leases.
func Run(t *testing.T, lock New, test func(s *embedded.Server, p, other *Process)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var all []*Process
		for i := range 2 {
			p := &Process{t: s.T, Net: s.Network(), new: lock}
			rdb := redis.NewClient(p.Net.Options(time.Second))
			saw := func(what string) func(lockkeeper.Event) {
				return func(e lockkeeper.Event) {
					p.mu.Lock()
					defer p.mu.Unlock()
					p.events = append(p.events, fmt.Sprintf("%s %v", what, e.Local))
					check.That(s, (e.Kind == "rwlock") == (e.Mode == "read" || e.Mode == "write") && e.Context != nil && e.Request != 0,
						"%s: %+v", what, e)
				}
			}
			var err error
			p.Keeper, err = lockkeeper.New(rdb, &lockkeeper.Options{
				Hooks: lockkeeper.Hooks{
					AcquireStart: saw("start"), AcquireDone: saw("done"), Released: saw("released"), Recalled: saw("recalled"), Lost: saw("lost"),
				},
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			p.Must(err)
			p.lock, err = lock(p.Keeper, Options{Retain: i == 0})
			p.Must(err)
			s.Cleanup(func() {
				p.Net.Restore()
				_ = p.Close()
				_ = rdb.Close()
			})
			all = append(all, p)
		}
		test(s, all[0], all[1])
	})
}

// Must ends the test if there is an error.
func (p *Process) Must(err error) {
	p.t.Helper()
	must.OK(p.t, err)
}

// Enter acquires a lease that the process may grant inside.
func (p *Process) Enter() *lockkeeper.Lease {
	p.t.Helper()
	return must.Get(p.lock.Inside(ctx))(p.t)
}

// Leave releases a lease.
func (p *Process) Leave(l *lockkeeper.Lease) {
	p.t.Helper()
	p.Must(l.Release(ctx))
}

// Retained makes the process retain a lease, and returns one that was granted by it.
func (p *Process) Retained() *lockkeeper.Lease {
	p.t.Helper()
	p.Leave(p.Enter()) // it subscribes
	synctest.Wait()
	p.Leave(p.Enter()) // it retains
	must.That(p.t, p.Local(), "no lease is retained")
	return p.Enter()
}

// Scripts returns how many scripts the process has sent during the function.
func (p *Process) Scripts(f func()) int {
	p.Net.ResetCount()
	f()
	return p.Net.Scripts()
}

// Local reports whether a lease is granted inside the process.
func (p *Process) Local() bool {
	p.t.Helper()
	return p.Scripts(func() { p.Leave(p.Enter()) }) == 0
}

// LocalNow reports whether one would be, without waiting for one that is not.
func (p *Process) LocalNow() bool {
	brief, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	local := false
	n := p.Scripts(func() {
		if l, err := p.lock.Inside(brief); err == nil {
			local = true
			p.Leave(l)
		}
	})
	return local && n == 0
}

// Waits requests the lock alone, in the background.
func (p *Process) Waits() chan *lockkeeper.Lease { return p.waits(p.lock.Alone) }

// WaitsInside requests, in the background, what the process may grant inside.
func (p *Process) WaitsInside() chan *lockkeeper.Lease { return p.waits(p.lock.Inside) }

func (p *Process) waits(acquire Acquire) chan *lockkeeper.Lease {
	granted := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := acquire(ctx)
		must.Report(p.t, err)
		granted <- l
	}()
	synctest.Wait()
	return granted
}

// IsGranted reports whether a request has been granted by now.
func IsGranted(granted chan *lockkeeper.Lease) bool {
	synctest.Wait()
	return len(granted) > 0
}

// Events returns the calls of hooks since the last time, and whether they were about a grant inside.
func (p *Process) Events() string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	events := p.events
	p.events = nil
	return fmt.Sprint(events)
}

// Test runs the tests that are the same for all locks.
func Test(t *testing.T, lock New) {
	for name, test := range map[string]func(s *embedded.Server, p, other *Process){
		"unused_retained_lease_delays_nobody":              unusedDelaysNobody,
		"retained_lease_is_not_believed_past_its_deadline": notBelievedPastDeadline,
		"release_after_close_is_reported":                  releaseAfterCloseReported,
		"grants_inside_are_by_one_lease":                   grantsAreByOneLease,
		"retained_lease_is_recalled":                       recalled,
		"lost_recall_is_learned_by_renewal":                lostRecall,
		"close_ends_retained_lease":                        closeEnds,
		"extended_lease_serves_one_caller":                 extendedServesOne,
		"break_ends_retained_lease":                        breakEnds,
		"hooks":                                            hooks,
		"refused":                                          refused,
	} {
		t.Run(name, func(t *testing.T) { Run(t, lock, test) })
	}
}

func unusedDelaysNobody(s *embedded.Server, p, other *Process) {
	p.Leave(p.Retained())
	began := time.Now()
	check.Is(s, check.ErrorOf(other.lock.TryAlone(ctx)), lockkeeper.ErrNotAcquired, "a try while another process retains a lease")
	synctest.Wait()
	l, err := other.lock.TryAlone(ctx) // the first has recalled it
	other.Must(err)
	check.Is(s, check.ErrorOf(p.lock.TryAlone(ctx)), lockkeeper.ErrNotAcquired, "a try while another process holds it")
	other.Leave(l)

	time.Sleep(time.Minute)
	p.Leave(p.Retained())
	var granted chan *lockkeeper.Lease
	n := p.Scripts(func() { granted = other.Waits() })
	check.That(s, n == 1, "the lease was given back by %d scripts", n)
	check.That(s, IsGranted(granted) && time.Since(began) <= time.Minute, "a process waits with nobody inside")
	other.Leave(<-granted)

	time.Sleep(time.Minute)
	p.Leave(p.Retained())
	time.Sleep(TTL * 7 / 3)
	l, err = other.lock.TryAlone(ctx)
	must.That(s, err == nil, "a lease that was not used for its ttl is kept: %v", err)
	other.Leave(l)
}

func notBelievedPastDeadline(s *embedded.Server, p, _ *Process) {
	for _, idle := range []bool{false, true} {
		inside := p.Retained()
		work := inside.Context(ctx)
		p.Net.Break("evalsha", 1000, faultnet.LoseRequest) // and not the subscription
		time.Sleep(time.Until(inside.Deadline()) - 1)
		check.That(s, inside.Err() == nil, "lost too early")
		if idle {
			_ = inside.Release(ctx)
		}
		time.Sleep(time.Nanosecond)
		check.That(s, !p.LocalNow(), "granted inside after the deadline")
		if !idle {
			for _, err := range []error{inside.Err(), context.Cause(work), inside.Release(ctx)} {
				check.Is(s, err, lockkeeper.ErrLost, "not lost")
			}
		}
		p.Net.Restore()
		time.Sleep(time.Minute)
	}
}

func releaseAfterCloseReported(s *embedded.Server, p, _ *Process) {
	inside := p.Retained()
	p.Events()
	p.Must(p.Close())
	p.Leave(inside)
	p.Leave(inside)
	events := p.Events()
	check.That(s, events == "[released true]", "the hooks were told of %s", events)
}

func (p *Process) holders() []lockkeeper.Holder {
	p.t.Helper()
	state := must.Get(admin.Inspect(ctx, p.Keeper, p.lock.Kind, "x"))(p.t)
	return state.Holders
}

func grantsAreByOneLease(s *embedded.Server, p, other *Process) {
	first := p.Retained()
	token, fence, deadline := first.Token(), first.Fence(), first.Deadline()
	work := first.Context(ctx)
	p.Leave(first)
	check.That(s, errors.Is(first.Err(), lockkeeper.ErrReleased) && errors.Is(context.Cause(work), lockkeeper.ErrReleased),
		"after Release: %v, %v", first.Err(), context.Cause(work))
	must.Receive(s, first.Done(), time.Second, "the end of a released lease")
	p.Leave(first)
	var l *lockkeeper.Lease
	n := p.Scripts(func() {
		for range 100 {
			p.Leave(p.Enter())
		}
		l = p.Enter()
	})
	check.That(s, n == 0, "100 grants took %d scripts", n)
	check.That(s, l.Token() == token && l.Fence() == fence && l.Deadline().Equal(deadline) && l.Name() == "x" && l.Err() == nil,
		"%s, fence %d, until %v, %v", l.Token(), l.Fence(), l.Deadline(), l.Err())
	p.Leave(first) // again, while another caller is inside
	check.That(s, l.Err() == nil, "a second Release of an earlier lease has ended this one")
	h := other.holders()
	check.That(s, len(h) == 1 && h[0].Token == token && h[0].Fence == fence, "holders: %+v; want one, %s with fence %d", h, token, fence)
	time.Sleep(time.Minute) // it is renewed while somebody is inside
	check.Is(s, l.Err(), nil, "lost")
	p.Leave(l)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	check.Is(s, check.ErrorOf(p.lock.Inside(ended)), context.Canceled, "with a context that has ended")
	p.Must(p.lock.Do(ctx, func(ctx context.Context, f uint64) error {
		check.That(s, f == fence, "Do has fence %d", f)
		return ctx.Err()
	}))
	check.That(s, p.Local(), "Do has not released it")
}

func recalled(s *embedded.Server, p, other *Process) {
	p.Leave(p.Retained())
	other.Leave(<-other.Waits()) // it subscribes; else it would have to do that before it is queued
	time.Sleep(time.Minute)
	inside := []*lockkeeper.Lease{p.Retained()}
	var local []chan *lockkeeper.Lease
	if p.lock.Turns {
		local = append(local, p.WaitsInside(), p.WaitsInside())
	} else {
		inside = append(inside, p.Enter())
	}
	began := time.Now()
	elsewhere := other.Waits()
	local = append(local, p.WaitsInside())
	must.That(s, !IsGranted(local[len(local)-1]), "a caller passes another process that waits")
	for _, l := range inside {
		must.That(s, !IsGranted(elsewhere), "two processes hold the lock")
		p.Leave(l)
	}
	if !IsGranted(elsewhere) || IsGranted(local[0]) || time.Since(began) != 0 {
		s.Fatalf("the lock is not with the process that waited, but in this one: %v; after %v", IsGranted(local[0]), time.Since(began))
	}
	last := <-elsewhere
	check.That(s, last.Fence() > inside[0].Fence(), "the fence does not rise")
	other.Leave(last)
	for i, w := range local {
		must.That(s, IsGranted(w), "waiter %d has lost its turn by the recall", i)
		l := <-w
		check.That(s, l.Fence() > last.Fence(), "the fence does not rise")
		last = l
		p.Leave(l)
	}
	check.That(s, !p.Local(), "retained again at once after a recall")
	time.Sleep(time.Minute)
	for range 20 {
		p.Leave(p.Enter())
	}
	check.That(s, p.Local(), "not retained again")
}

// lostRecall checks that a subscription on which a recall did not come is replaced as well, so that the next recall comes.
func lostRecall(s *embedded.Server, p, other *Process) {
	for _, used := range []bool{false, true} {
		p.Leave(p.Enter()) // it subscribes
		time.Sleep(time.Second)
		inside := p.Retained()
		if !used {
			p.Leave(inside)
		}
		p.Net.BlackholeSubscriptions()
		elsewhere := other.Waits()
		must.That(s, !IsGranted(elsewhere) && (used || p.LocalNow()), "a recall has come")
		time.Sleep(TTL/3 + 100*time.Millisecond) // for a renewal
		check.That(s, !p.LocalNow(), "granted inside although a renewal has told of the recall")
		if used {
			must.That(s, !IsGranted(elsewhere), "two processes hold the lock")
			p.Leave(inside)
		}
		must.That(s, IsGranted(elsewhere), "the lease is retained although a renewal has told that it was recalled")
		other.Leave(<-elsewhere)
		time.Sleep(time.Minute)

		p.Leave(p.Retained())
		began := time.Now()
		other.Leave(<-other.Waits())
		check.That(s, time.Since(began) <= 0, "used %t: after the next recall the other process waited for %v", used, time.Since(began))
		time.Sleep(time.Minute)
	}
}

func closeEnds(s *embedded.Server, p, other *Process) {
	inside := p.Retained()
	work := inside.Context(ctx)
	waiting := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := p.lock.Alone(ctx)
			waiting <- err
		}()
		synctest.Wait()
	}
	p.Must(p.Close())
	check.That(s, errors.Is(inside.Err(), lockkeeper.ErrReleased) && errors.Is(context.Cause(work), lockkeeper.ErrReleased),
		"%v, %v", inside.Err(), context.Cause(work))
	for range 2 {
		check.Is(s, <-waiting, lockkeeper.ErrClosed, "a waiter")
	}
	for _, acquire := range []Acquire{p.lock.Inside, p.lock.TryAlone} {
		check.Is(s, check.ErrorOf(acquire(ctx)), lockkeeper.ErrClosed, "of a closed keeper")
	}
	p.Leave(inside)
	l := must.Get(other.lock.TryAlone(ctx))(p.t)
	other.Leave(l)
}

func extendedServesOne(s *embedded.Server, p, other *Process) {
	inside := p.Retained()
	p.Must(inside.Extend(ctx, time.Minute))
	check.That(s, time.Until(inside.Deadline()) >= 59*time.Second, "it lasts for %v", time.Until(inside.Deadline()))
	waiting := p.Waits()
	p.Must(inside.Extend(ctx, time.Second))
	check.That(s, time.Until(inside.Deadline()) <= time.Second, "it lasts for %v", time.Until(inside.Deadline()))
	time.Sleep(time.Minute)
	check.Is(s, inside.Err(), nil, "it is not renewed")
	p.Leave(inside)
	l := <-waiting
	check.That(s, l.Fence() > inside.Fence(), "a lease that was extended serves another caller")
	p.Leave(l)
	h := other.holders()
	check.That(s, len(h) == 0 || h[0].Token != inside.Token(), "the lease that was extended is retained: %+v", h)
}

// breakEnds checks that a break ends a retained lease, whether somebody is inside or not, and that nothing is granted inside after it.
func breakEnds(s *embedded.Server, p, other *Process) {
	for _, idle := range []bool{false, true} {
		inside := p.Retained()
		if idle {
			p.Leave(inside)
		}
		b, err := admin.Break(ctx, other.Keeper, p.lock.Kind, "x", &admin.BreakOptions{Token: inside.Token(), Reason: "it is stuck"})
		p.Must(err)
		l, err := other.lock.TryAlone(ctx)
		other.Must(err)
		synctest.Wait()
		if len(b.Holders) != 1 || p.LocalNow() {
			s.Errorf("idle %t: %+v was broken; granted inside after that: %t", idle, b, p.LocalNow())
		}
		if !idle {
			for _, err := range []error{inside.Err(), inside.Release(ctx)} {
				var broken *lockkeeper.BrokenError
				check.That(s, errors.Is(err, lockkeeper.ErrLost) && errors.As(err, &broken) && broken.Reason == "it is stuck",
					"broken: %v", err)
			}
		}
		other.Leave(l)
		time.Sleep(time.Minute)
	}
}

// hooks checks what the hooks are told, and whether each event is about a grant inside.
func hooks(s *embedded.Server, p, other *Process) {
	p.Leave(p.Retained())
	p.Events()
	p.Leave(p.Enter())
	want := "start false done true released true"
	if p.lock.Turns {
		inside := p.Enter()
		waiting := p.Waits()
		p.Leave(inside)
		p.Leave(<-waiting)
		want += " start false done true start false released true done true released true"
	}
	other.Leave(<-other.Waits())
	got := p.Events()
	check.That(s, got == "["+want+" recalled false]", "events: %s; want %s, and a recall", got, want)
}

func refused(s *embedded.Server, p, other *Process) {
	for _, o := range []Options{{NoRenewal: true}, {MaxLifetime: time.Hour}} {
		o.Retain = true
		check.Is(s, check.ErrorOf(p.new(p.Keeper, o)), lockkeeper.ErrInvalid, "%+v", o)
	}
	inside := p.Retained()
	for _, q := range []*Process{p, other} {
		check.Is(s, check.ErrorOf(q.lock.Adopt(ctx, inside.Token())), lockkeeper.ErrInvalid, "Adopt")
	}
	p.Leave(inside)
	plain := <-other.Waits() // it can be adopted where Retain is set
	l := must.Get(p.lock.Adopt(ctx, plain.Token()))(p.t)
	p.Leave(l)
}
