// Package lingering tests in virtual time what the locks with an option Linger have in common.
package lingering

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Linger is that of the first process of a test.
const Linger = 100 * time.Millisecond

var ctx = context.Background()

// Acquire is a method of a lock.
type Acquire func(context.Context) (*lockkeeper.Lease, error)

// Lock is the lock of a process of the name x. Shared is what callers of the process share, Alone excludes all others.
type Lock struct {
	Shared, Alone, TryAlone Acquire
	Do                      func(context.Context, func(ctx context.Context, fence uint64) error) error // with what Shared acquires
	Adopt                   func(ctx context.Context, token string) (*lockkeeper.Lease, error)
	Kind                    lockkeeper.Kind
	Turns                   bool // one caller at a time has the lease, and the others wait for it in the process
}

// Options are Linger, and what it depends on.
type Options struct {
	Linger, TTL time.Duration
	NoRenewal   bool
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

// Run runs a test with two processes in virtual time. The first one's lock has Linger.
func Run(t *testing.T, lock New, test func(s *embedded.Server, p, other *Process)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) {
		var all []*Process
		for i := range 2 {
			p := &Process{t: s.T, Net: s.Network(), new: lock}
			saw := func(what string) func(lockkeeper.Event) {
				return func(e lockkeeper.Event) {
					p.mu.Lock()
					defer p.mu.Unlock()
					p.events = append(p.events, fmt.Sprintf("%s %v", what, e.Local))
				}
			}
			p.Keeper = keepers.New(s, redistest.On(s, p.Net, time.Second), &lockkeeper.Options{
				Hooks: lockkeeper.Hooks{
					AcquireStart: saw("start"), AcquireDone: saw("done"), Released: saw("released"), Lost: saw("lost"),
				},
				Logger: quiet.Logger(nil),
			})
			s.Cleanup(p.Net.Restore)
			p.lock = must.Get(lock(p.Keeper, Options{Linger: Linger * time.Duration(1-i)}))(s)
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

// Enter acquires a lease that callers of the process share.
func (p *Process) Enter() *lockkeeper.Lease {
	p.t.Helper()
	return must.Get(p.lock.Shared(ctx))(p.t)
}

// Leave releases a lease.
func (p *Process) Leave(l *lockkeeper.Lease) {
	p.t.Helper()
	p.Must(l.Release(ctx))
}

// Scripts returns how many scripts the process has sent during the function.
func (p *Process) Scripts(f func()) int {
	p.Net.ResetCount()
	f()
	return p.Net.Scripts()
}

// Local reports whether a lease is granted inside the process at once.
func (p *Process) Local() bool {
	brief, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	local := false
	n := p.Scripts(func() {
		if l, err := p.lock.Shared(brief); err == nil {
			local = true
			p.Leave(l)
		}
	})
	return local && n == 0
}

// Waits requests the lock alone, in the background.
func (p *Process) Waits() chan *lockkeeper.Lease { return p.InBackground(ctx, p.lock.Alone) }

// WaitsInside requests, in the background, what callers of the process share.
func (p *Process) WaitsInside() chan *lockkeeper.Lease { return p.InBackground(ctx, p.lock.Shared) }

// InBackground calls a method of a lock in the background. If it fails, the result has nil.
func (p *Process) InBackground(ctx context.Context, acquire Acquire) chan *lockkeeper.Lease {
	granted := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := acquire(ctx)
		if ctx.Err() == nil {
			must.Report(p.t, err)
		}
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

func (p *Process) holders() []lockkeeper.Holder {
	p.t.Helper()
	return must.Get(admin.Inspect(ctx, p.Keeper, p.lock.Kind, "x"))(p.t).Holders
}

// Test runs the tests that are the same for all locks.
func Test(t *testing.T, lock New) {
	for name, test := range map[string]func(s *embedded.Server, p, other *Process){
		"callers_share_one_lease_until_linger_ends":  shareOneLease,
		"others_wait_for_linger_at_most":             othersWaitForLinger,
		"last_caller_releases_after_linger":          lastReleases,
		"lease_is_not_shared_past_its_deadline":      notSharedPastDeadline,
		"lost_lease_ends_all_inside_and_the_sharing": lostLease,
		"refused_lease_is_not_shared":                refusedLease,
		"broken_lease_ends_all_inside":               brokenLease,
		"close_ends_the_sharing":                     closeEnds,
		"try":                                        tries,
		"hooks":                                      hooks,
		"refused":                                    refused,
		"objects_of_a_name_share":                    objectsShare,
	} {
		t.Run(name, func(t *testing.T) { Run(t, lock, test) })
	}
}

func shareOneLease(s *embedded.Server, p, other *Process) {
	p.Leave(p.Enter()) // the server knows the scripts from now on
	time.Sleep(time.Minute)
	var first, last *lockkeeper.Lease
	n := p.Scripts(func() {
		first = p.Enter()
		p.Leave(first)
		for range 100 {
			p.Leave(p.Enter())
		}
		time.Sleep(Linger - 1)
		last = p.Enter()
	})
	check.That(s, n == 1, "102 grants took %d scripts", n)
	check.That(s, last.Token() == first.Token() && last.Fence() == first.Fence() && last.Name() == "x" && last.Err() == nil && time.Until(last.Deadline()) > 0,
		"%s, fence %d, until %v, %v", last.Token(), last.Fence(), last.Deadline(), last.Err())
	work := last.Context(ctx)
	p.Leave(first) // again, while another caller is inside
	check.That(s, first.Err() != nil && last.Err() == nil && work.Err() == nil, "after a second Release of another's: %v, %v", last.Err(), work.Err())
	h := other.holders()
	check.That(s, len(h) == 1 && h[0].Token == first.Token() && h[0].Fence == first.Fence(), "holders: %+v", h)
	time.Sleep(time.Minute) // it is renewed while somebody is inside
	check.Is(s, last.Err(), nil, "lost")
	p.Leave(last)
	check.That(s, errors.Is(last.Err(), lockkeeper.ErrReleased) && errors.Is(context.Cause(work), lockkeeper.ErrReleased), "%v, %v", last.Err(), context.Cause(work))
	must.Receive(s, last.Done(), time.Second, "the end of a released lease")
	h = other.holders()
	check.That(s, len(h) == 0, "after the release of the last: %+v", h)
	p.Must(p.lock.Do(ctx, func(ctx context.Context, f uint64) error {
		check.That(s, f > first.Fence(), "after Linger the fence is %d, not more than %d", f, first.Fence())
		return ctx.Err()
	}))
	check.That(s, p.Local(), "Do has not released it")
	ended, cancel := context.WithCancel(ctx)
	cancel()
	check.Is(s, check.ErrorOf(p.lock.Shared(ended)), context.Canceled, "with a context that has ended")
}

func othersWaitForLinger(s *embedded.Server, p, other *Process) {
	for range 3 { // with and without a subscription, and soon after the last
		began := time.Now()
		p.Leave(p.Enter())
		time.Sleep(Linger / 2)
		p.Leave(p.Enter())
		p.Net.BlackholeSubscriptions() // nobody has to tell it anything
		l := <-other.Waits()
		check.That(s, time.Since(began) == Linger, "another process waited until %v after the grant, want %v", time.Since(began), Linger)
		other.Leave(l)
		p.Net.Restore()
	}
	p.Leave(p.Enter())
	time.Sleep(Linger)
	synctest.Wait()
	other.Leave(must.Get(other.lock.TryAlone(ctx))(p.t))
}

func lastReleases(s *embedded.Server, p, other *Process) {
	inside := p.Enter()
	elsewhere := other.Waits()
	time.Sleep(Linger)
	check.That(s, !p.Local(), "granted inside after Linger")
	local := p.WaitsInside()
	must.That(s, !IsGranted(elsewhere) && !IsGranted(local), "granted while a caller is inside")
	p.Leave(inside)
	must.That(s, IsGranted(elsewhere) && !IsGranted(local), "the process that waited first has not got the lock after the last caller has left")
	l := <-elsewhere
	check.That(s, l.Fence() > inside.Fence(), "the fence does not rise")
	other.Leave(l)
	p.Leave(<-local)
}

// notSharedPastDeadline: a lease whose grant was answered late ends before Linger does.
func notSharedPastDeadline(s *embedded.Server, p, _ *Process) {
	const ttl = 6 * Linger
	var err error
	p.lock, err = p.new(p.Keeper, Options{Linger: 2 * Linger, TTL: ttl})
	p.Must(err)
	p.Leave(p.Enter()) // the script is known, and the connection is there
	time.Sleep(time.Second)
	p.Net.Delay(450 * time.Millisecond)
	l := p.Enter()
	p.Net.Break("evalsha", 1000, faultnet.LoseRequest)
	p.Net.Delay(0)
	left := time.Until(l.Deadline())
	must.That(s, left > 0 && left < 2*Linger, "the lease lasts for %v", left)
	_ = l.Context(ctx)
	time.Sleep(left - 1)
	check.That(s, l.Err() == nil, "lost too early")
	time.Sleep(time.Nanosecond)
	check.That(s, !p.Local(), "granted inside after the deadline")
	check.Is(s, l.Release(ctx), lockkeeper.ErrLost, "the release of a lost lease")
	p.Net.Restore()
}

func lostLease(s *embedded.Server, p, other *Process) {
	inside := p.Enter()
	work := inside.Context(ctx)
	for _, key := range s.Mini.Keys() { // as if the server had lost its data
		s.Mini.Del(key)
	}
	l := must.Get(other.lock.TryAlone(ctx))(p.t)
	time.Sleep(time.Minute)
	for _, err := range []error{inside.Err(), context.Cause(work), inside.Release(ctx)} {
		check.Is(s, err, lockkeeper.ErrLost, "of a lost lease")
	}
	check.That(s, !p.Local(), "granted inside by a lost lease")
	other.Leave(l)
	next := p.Enter()
	check.That(s, next.Token() != inside.Token(), "the next caller has the lost lease")
	p.Leave(next)
}

// refusedLease: a lease that was granted by way of the queue is renewed within a long Linger. When the server refuses that, the lease is shared no
// more, also while it is not known yet why.
func refusedLease(s *embedded.Server, p, other *Process) {
	var err error
	p.lock, err = p.new(p.Keeper, Options{Linger: 10 * time.Second})
	p.Must(err)
	first := must.Get(other.lock.Alone(ctx))(p.t)
	waiting := p.WaitsInside()
	other.Leave(first)
	l := <-waiting
	p.Leave(l)
	must.That(s, p.Local(), "the lease is not shared")
	for _, key := range s.Mini.Keys() {
		s.Mini.Del(key)
	}
	p.Net.Delay(50 * time.Millisecond)
	for end := time.Now().Add(9 * time.Second); time.Until(l.Deadline()) > time.Second; time.Sleep(time.Millisecond) { // then the reason is asked for
		must.That(s, time.Now().Before(end), "no renewal within Linger")
	}
	check.That(s, !p.Local(), "a lease that was refused its renewal is shared")
	p.Net.Delay(0)
}

// brokenLease checks that a break ends a shared lease, whether somebody is inside or not, and that nothing is granted inside after it.
func brokenLease(s *embedded.Server, p, other *Process) {
	other.Leave(<-other.Waits())
	p.Leave(<-p.Waits())
	for _, idle := range []bool{false, true} {
		time.Sleep(time.Minute)
		inside := p.Enter()
		work := inside.Context(ctx)
		if idle {
			p.Leave(inside)
		}
		b, err := admin.Break(ctx, other.Keeper, p.lock.Kind, "x", &admin.BreakOptions{Token: inside.Token(), Reason: "it is stuck"})
		p.Must(err)
		l, err := other.lock.TryAlone(ctx)
		other.Must(err)
		synctest.Wait()
		check.That(s, len(b.Holders) == 1 && !p.Local(), "idle %t: %+v was broken, or a caller was granted it after that", idle, b)
		if !idle {
			for _, err := range []error{inside.Err(), context.Cause(work), inside.Release(ctx)} {
				var broken *lockkeeper.BrokenError
				check.That(s, errors.Is(err, lockkeeper.ErrLost) && errors.As(err, &broken) && broken.Reason == "it is stuck", "broken: %v", err)
			}
		}
		other.Leave(l)
	}
}

func closeEnds(s *embedded.Server, p, other *Process) {
	inside := p.Enter()
	work := inside.Context(ctx)
	waiting := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := p.lock.Alone(ctx)
			waiting <- err
		}()
		synctest.Wait()
	}
	p.Events()
	p.Must(p.Close())
	check.That(s, errors.Is(inside.Err(), lockkeeper.ErrReleased) && errors.Is(context.Cause(work), lockkeeper.ErrReleased),
		"%v, %v", inside.Err(), context.Cause(work))
	for range 2 {
		check.Is(s, <-waiting, lockkeeper.ErrClosed, "a waiter")
	}
	for _, acquire := range []Acquire{p.lock.Shared, p.lock.TryAlone} {
		check.Is(s, check.ErrorOf(acquire(ctx)), lockkeeper.ErrClosed, "of a closed keeper")
	}
	p.Leave(inside)
	p.Leave(inside)
	check.That(s, strings.Count(p.Events(), "released") == 1, "a release after Close is not reported once")
	other.Leave(must.Get(other.lock.TryAlone(ctx))(p.t))
}

// tries: a try does not wait for another caller, and finds the lock free as soon as the process has no caller inside and Linger is over.
func tries(s *embedded.Server, p, other *Process) {
	p.Leave(p.Enter())
	check.Is(s, check.ErrorOf(other.lock.TryAlone(ctx)), lockkeeper.ErrNotAcquired, "a try of another process within Linger")
	p.Leave(must.Get(p.lock.TryAlone(ctx))(p.t))
	for range 20 {
		p.Net.Delay(time.Millisecond)
		p.Leave(p.Enter())
		time.Sleep(Linger - 2*time.Millisecond) // the release is under way
		p.Leave(must.Get(p.lock.TryAlone(ctx))(p.t))
	}
	p.Net.Delay(0)
	time.Sleep(time.Second)
	if !p.lock.Turns {
		return
	}
	inside := p.Enter()
	waiting := p.Waits()
	p.Net.ResetCount()
	check.Is(s, check.ErrorOf(p.lock.TryAlone(ctx)), lockkeeper.ErrNotAcquired, "a try beside a caller")
	p.Leave(inside)
	p.Leave(<-waiting)
	check.That(s, p.Net.Scripts() == 0 || p.lock.Kind == "semaphore", "%d scripts", p.Net.Scripts())
}

// hooks checks what the hooks are told, and whether each event is about a grant inside.
func hooks(s *embedded.Server, p, _ *Process) {
	p.Leave(p.Enter())
	p.Leave(p.Enter())
	want := "start false done false released true start false done true released true"
	got := p.Events()
	check.That(s, got == "["+want+"]", "events: %s; want %s", got, want)
	time.Sleep(time.Second)
	got = p.Events()
	check.That(s, got == "[]", "the end of Linger is reported: %s", got)
}

func refused(s *embedded.Server, p, other *Process) {
	const ttl = 3 * time.Second
	for says, o := range map[string]Options{
		"Linger -1ns is not between 0 and 1s":                    {Linger: -1, TTL: ttl},
		"Linger 1.000000001s is not between 0 and 1s":            {Linger: ttl/3 + 1, TTL: ttl},
		"Linger 10.000000001s is not between 0 and 10s":          {Linger: 10*time.Second + 1, TTL: time.Hour},
		"Linger 1s is set together with NoRenewal; set only one": {Linger: time.Second, TTL: ttl, NoRenewal: true},
	} {
		_, err := p.new(p.Keeper, o)
		check.That(s, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says), "%+v: %v", o, err)
	}
	inside := p.Enter()
	for what, err := range map[string]error{
		"Extend": inside.Extend(ctx, time.Minute),
		"Adopt":  check.ErrorOf(p.lock.Adopt(ctx, inside.Token())),
	} {
		check.That(s, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), "Linger"), "%s: %v", what, err)
	}
	check.That(s, inside.Err() == nil, "%v", inside.Err())
	p.Leave(inside)
	_ = other
}

// objectsShare: callers share a lease whichever object of the name they use.
func objectsShare(s *embedded.Server, p, _ *Process) {
	p.Leave(p.Enter())
	for range 3 {
		another, err := p.new(p.Keeper, Options{Linger: Linger})
		p.Must(err)
		n := p.Scripts(func() { p.Leave(must.Get(another.Shared(ctx))(p.t)) })
		check.That(s, n == 0, "another object of the name has sent %d scripts", n)
	}
}
