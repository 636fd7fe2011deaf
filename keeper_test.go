package lockkeeper_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	parallel.Tests("8")
	goleak.VerifyTestMain(m, redistest.IgnoreStarter())
}

var background = context.Background()

// noServer returns a client that fails the test if it connects.
func noServer(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("the client has connected")
		return nil, io.EOF
	}})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func TestNewDoesNoIOAndStartsNoGoroutine(t *testing.T) {
	rdb := noServer(t)
	before := goleak.IgnoreCurrent()
	k := must.Get(lockkeeper.New(rdb, nil))(t)
	if _, err := mutex.New(k, "x", nil); err != nil {
		t.Error(err)
	}
	must.Report(t, goleak.Find(before))
	for range 2 {
		must.Report(t, k.Close())
	}
}

func TestNewRejectsUnsupportedClients(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	defer func() { _ = ring.Close() }()
	rdb := noServer(t)
	for name, c := range map[string]struct {
		rdb  redis.UniversalClient
		says string
	}{
		"nil":                    {nil, "nil"},
		"a nil *Client":          {(*redis.Client)(nil), "nil"},
		"a nil *ClusterClient":   {(*redis.ClusterClient)(nil), "nil"},
		"a nil *Ring":            {(*redis.Ring)(nil), "nil"},
		"a Ring, which rehashes": {ring, "redis.Ring"},
		"a wrapped Ring":         {struct{ *redis.Ring }{ring}, "redis.Ring"},
		"a hidden Client":        {struct{ redis.UniversalClient }{rdb}, "embed *redis.Client"},
		"a hidden Ring":          {struct{ redis.UniversalClient }{ring}, "embed *redis.Client"},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := lockkeeper.New(c.rdb, nil)
			check.That(t, k == nil && errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), c.says), "%v, %v", k, err)
		})
	}
}

// bubble is an embedded server in virtual time.
type bubble struct{ *embedded.Server }

func inBubble(t *testing.T, test func(b *bubble)) {
	t.Helper()
	embedded.Run(t, func(s *embedded.Server) { test(&bubble{s}) })
}

const (
	ttl               = 3 * time.Second
	heartbeatInterval = 200 * time.Millisecond
)

// process is a keeper with a client and a network of its own. It records the calls of its hooks.
type process struct {
	*lockkeeper.Keeper
	b   *bubble
	rdb *redis.Client
	net *faultnet.Net

	mu     sync.Mutex
	events []event
}

type event struct {
	hook string
	lockkeeper.Event
}

func (b *bubble) process() *process {
	b.Helper()
	return b.processWith(time.Second, lockkeeper.Options{})
}

// processWith starts a process with these options, whose client waits readTimeout for a reply, or without a limit if it is -1.
func (b *bubble) processWith(readTimeout time.Duration, o lockkeeper.Options) *process {
	b.Helper()
	n := b.Network()
	p := &process{b: b, net: n}
	p.rdb = redis.NewClient(n.Options(readTimeout))
	hook := func(name string) func(lockkeeper.Event) {
		return func(e lockkeeper.Event) {
			check.That(b, e.Context != nil && (e.Request == 0) == (name == "WakeupLost"),
				"%s: the context is %v, the request %d", name, e.Context, e.Request)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.events = append(p.events, event{name, e})
		}
	}
	o.Hooks = lockkeeper.Hooks{
		AcquireStart: hook("AcquireStart"), AcquireDone: hook("AcquireDone"), Queued: hook("Queued"),
		WakeupReceived: hook("WakeupReceived"), WakeupLost: hook("WakeupLost"), Renewed: hook("Renewed"),
		Lost: hook("Lost"), Released: hook("Released"),
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = heartbeatInterval
	}
	if o.Logger == nil {
		o.Logger = quiet.Logger(nil)
	}
	p.Keeper = must.Get(lockkeeper.New(p.rdb, &o))(b)
	b.Cleanup(func() {
		n.Restore()
		_ = p.Close()
		_ = p.rdb.Close()
	})
	return p
}

func (b *bubble) must(err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

func (p *process) mutex(name string) *mutex.Mutex {
	p.b.Helper()
	return must.Get(mutex.New(p.Keeper, name, &mutex.Options{TTL: ttl}))(p.b)
}

func (p *process) hold(name string) *lockkeeper.Lease {
	p.b.Helper()
	return must.Get(p.mutex(name).TryLock(background))(p.b)
}

// lockAsync starts a Lock, and returns once it waits in the queue.
func (p *process) lockAsync(name string) <-chan *lockkeeper.Lease {
	p.b.Helper()
	m, got := p.mutex(name), make(chan *lockkeeper.Lease, 1)
	go func() {
		lease, err := m.Lock(background)
		must.Report(p.b, err)
		got <- lease
	}()
	synctest.Wait()
	return got
}

// told checks the calls of hooks since it was last called, which are about a lease of the mutex x: each is the hook, the position, the
// duration, and the error.
func (p *process) told(lease *lockkeeper.Lease, want ...string) {
	p.b.Helper()
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	var got []string
	for _, e := range p.events {
		text := e.hook
		if e.Position > 0 {
			text += fmt.Sprint(" behind ", e.Position)
		}
		if e.Duration >= ttl/4 {
			e.Duration = e.Duration.Round(time.Second) // renewals are not exactly at a third of the ttl
		}
		if e.Duration > 0 {
			text += fmt.Sprint(" after ", e.Duration)
		}
		for _, err := range []error{lockkeeper.ErrNotAcquired, lockkeeper.ErrLost} {
			if errors.Is(e.Err, err) {
				text += ", " + err.Error()
			}
		}
		starts, queued := e.hook == "AcquireStart", e.hook == "Queued"
		if e.Kind != "mutex" || e.Name != "x" || !starts && e.Token != lease.Token() || !starts && !queued && e.Fence != lease.Fence() {
			text += fmt.Sprintf(" of %+v", e.Event)
		}
		got = append(got, text)
	}
	p.events = nil
	check.That(p.b, slices.Equal(got, want), "hooks called:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// TestHooks checks what hooks are told of a holder, of one who is refused and then waits, of one who waits behind that, and of a loss.
func TestHooks(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p, q, r := b.process(), b.process(), b.process()
		lease := p.hold("x")
		p.told(lease, "AcquireStart", "AcquireDone")
		_, err := q.mutex("x").TryLock(background)
		q.told(nil, "AcquireStart", "AcquireDone, not acquired")
		check.Is(b, err, lockkeeper.ErrNotAcquired, "the error")
		second := q.lockAsync("x")
		time.Sleep(heartbeatInterval / 4)
		third := r.lockAsync("x")
		time.Sleep(heartbeatInterval / 4)
		b.must(lease.Release(background))
		p.told(lease, "Released after 100ms")
		lease = <-second
		q.told(lease, "AcquireStart", "Queued", "WakeupReceived", "AcquireDone after 100ms")
		time.Sleep(heartbeatInterval / 4)
		b.must(lease.Release(background))
		lease = <-third
		r.told(lease, "AcquireStart", "Queued behind 1", "WakeupReceived", "AcquireDone after 100ms")
		b.must(lease.Release(background))

		lease = p.hold("x")
		p.told(lease, "AcquireStart", "AcquireDone")
		time.Sleep(ttl / 3)
		p.told(lease, "Renewed after 1s")
		b.Mini.Del("lock:x")
		<-lease.Done()
		time.Sleep(2 * ttl)
		p.told(lease, "Lost after 2s, lease lost")
		b.must(p.Close())
		p.told(lease)
	})
}

// TestUnsetHooksAreSkipped checks that one hook can be set without the others.
func TestUnsetHooksAreSkipped(t *testing.T) {
	all := reflect.TypeFor[lockkeeper.Hooks]()
	for i := range all.NumField() {
		t.Run(all.Field(i).Name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var hooks lockkeeper.Hooks
				reflect.ValueOf(&hooks).Elem().Field(i).Set(reflect.ValueOf(func(lockkeeper.Event) {}))
				m := must.Get(mutex.New(b.with(&lockkeeper.Options{Hooks: hooks}), "x", &mutex.Options{TTL: ttl}))(b)
				b.must(m.Do(background, func(context.Context, uint64) error {
					time.Sleep(ttl)
					return nil
				}))
			})
		})
	}
}

// TestCloseIsBounded checks that Close waits at most 3 s for a server that does not reply, whatever the client's
// timeout is, and that calls under way return as soon as Close is called, also if their context never ends.
func TestCloseIsBounded(t *testing.T) {
	for _, timeout := range []time.Duration{-1, time.Second, 30 * time.Second} {
		t.Run(fmt.Sprint("ReadTimeout ", timeout), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				p := b.processWith(timeout, lockkeeper.Options{})
				p.call(20) // the next one is sent inline
				lease := p.hold("held")
				other := b.process().hold("contended")
				results := make(chan error, 10)
				calls := 0
				call := func(acquire func(context.Context) (*lockkeeper.Lease, error)) {
					calls++
					go func() {
						_, err := acquire(background)
						results <- err
					}()
					synctest.Wait()
				}
				call(p.mutex("contended").Lock)
				time.Sleep(heartbeatInterval / 2)
				p.net.Blackhole()
				call(p.mutex("alone").Lock) // inline
				call(p.mutex("together").Lock)
				call(p.mutex("uncontended").TryLock)
				call(func(ctx context.Context) (*lockkeeper.Lease, error) {
					return p.mutex("contended").Adopt(ctx, other.Token())
				})

				start := time.Now()
				if err := p.Close(); err == nil {
					b.Error("Close reports no error for a release without a reply")
				}
				least := 2500 * time.Millisecond
				if timeout == time.Second {
					least = 1500 * time.Millisecond // it repeats the release, unless the pause before that would be too long
				}
				if d := time.Since(start); d > 3*time.Second || d < least {
					b.Errorf("Close took %v", d)
				}
				check.Is(b, lease.Err(), lockkeeper.ErrReleased, "the error")
				synctest.Wait()
				for len(results) > 0 {
					calls--
					if err := <-results; !errors.Is(err, lockkeeper.ErrClosed) && timeout != time.Second {
						b.Error(err)
					}
				}
				check.That(b, calls <= 0, "%d calls had not returned when Close returned", calls)
				again := time.Now()
				_ = p.Close()
				if d := time.Since(again); d > 0 {
					b.Errorf("the second Close took %v", d)
				}
				b.must(p.rdb.Close()) // ends all that is left; the bubble fails if a goroutine is left running
			})
		})
	}
}

func TestConcurrentClose(t *testing.T) {
	inBubble(t, func(b *bubble) {
		p := b.process()
		for i := range 10 {
			p.hold(fmt.Sprint(i))
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				must.Report(b, p.Close())
				keys := slices.DeleteFunc(b.Mini.Keys(), func(k string) bool { return strings.HasSuffix(k, ":meta") })
				check.That(b, len(keys) == 0, "after Close these keys remained: %v", keys)
			})
		}
		all.Wait()
	})
}

// TestNilLeaseActsAsReleased checks all methods of a nil lease.
func TestNilLeaseActsAsReleased(t *testing.T) {
	var lease *lockkeeper.Lease
	asked := map[string]any{
		"Name":     lease.Name() == "",
		"Token":    lease.Token() == "",
		"Fence":    lease.Fence() == 0,
		"Deadline": lease.Deadline().IsZero(),
		"Err":      lease.Err() == lockkeeper.ErrReleased,
		"Extend":   lease.Extend(background, time.Second) == lockkeeper.ErrReleased,
		"Release":  lease.Release(background) == nil,
	}
	ctx := lease.Context(background)
	asked["Context"] = ctx.Err() == context.Canceled && context.Cause(ctx) == lockkeeper.ErrReleased
	select {
	case <-lease.Done():
		asked["Done"] = true
	default:
		asked["Done"] = false
	}
	all := reflect.TypeFor[*lockkeeper.Lease]()
	for i := range all.NumMethod() {
		name := all.Method(i).Name
		check.That(t, asked[name] == true, "%s: %v", name, asked[name])
	}
}

// TestReleaseWithoutContext checks that the panic leaves the lease as it was.
func TestReleaseWithoutContext(t *testing.T) {
	inBubble(t, func(b *bubble) {
		lease := must.Get(must.Get(mutex.New(b.process().Keeper, "x", nil))(b).Lock(background))(b)
		func() {
			defer func() {
				check.That(b, recover() != nil, "no panic")
			}()
			var none context.Context
			_ = lease.Release(none)
		}()
		b.must(lease.Err())
		b.must(lease.Release(background))
	})
}

// TestReleaseLostLeaseDuringClose checks a release during Close, which is not synchronized with it. It needs -race.
func TestReleaseLostLeaseDuringClose(t *testing.T) {
	m := miniredis.RunT(t)
	n := faultnet.New(func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", m.Addr()) })
	rdb := redis.NewClient(&redis.Options{Dialer: n.Dial})
	defer func() { _ = rdb.Close() }()
	k := must.Get(lockkeeper.New(rdb, nil))(t)
	take := func(name string) *lockkeeper.Lease {
		x := must.Get(mutex.New(k, name, nil))(t)
		return must.Get(x.TryLock(background))(t)
	}
	take("held")
	lost := take("lost")
	m.Del("lock:lost")
	_ = lost.Extend(background, time.Minute) // notices the loss
	n.Delay(20 * time.Millisecond)           // makes Close wait
	n.ResetCount()
	closed := make(chan error, 1)
	go func() { closed <- k.Close() }()
	for n.Scripts() == 0 { // until its release is sent
		runtime.Gosched()
	}
	_ = lost.Release(background)
	<-closed
}
