package lockkeeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/lockkeeper/lockkeeper/internal/testing/processes"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/semaphore"
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

// TestNewRejectsUnsupportedClients: which there are is in internal/client.
func TestNewRejectsUnsupportedClients(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{})
	defer func() { _ = ring.Close() }()
	for says, rdb := range map[string]redis.UniversalClient{"nil": nil, "redis.Ring": ring} {
		k, err := lockkeeper.New(rdb, nil)
		check.That(t, k == nil && errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says), "%v, %v", k, err)
	}
}

// told checks the calls of hooks of p since it was last called, which are about a lease of the mutex x: each is the hook, the position, the
// duration, and the error.
func told(b *processes.Bubble, p *processes.Process, lease *lockkeeper.Lease, want ...string) {
	b.Helper()
	var got []string
	for _, e := range p.Events() {
		text := e.Hook
		if e.Position > 0 {
			text += fmt.Sprint(" behind ", e.Position)
		}
		if e.Duration >= processes.TTL/4 {
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
		starts, queued := e.Hook == "AcquireStart", e.Hook == "Queued"
		if e.Kind != "mutex" || e.Name != "x" || !starts && e.Token != lease.Token() || !starts && !queued && e.Fence != lease.Fence() {
			text += fmt.Sprintf(" of %+v", e.Event)
		}
		got = append(got, text)
	}
	check.That(b, slices.Equal(got, want), "hooks called:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// TestHooks checks what hooks are told of a holder, of one who is refused and then waits, of one who waits behind that, and of a loss.
func TestHooks(t *testing.T) {
	processes.Run(t, func(b *processes.Bubble) {
		p, q, r := b.Process(), b.Process(), b.Process()
		lease := p.Hold("x")
		told(b, p, lease, "AcquireStart", "AcquireDone")
		_, err := q.Mutex("x").TryLock(background)
		told(b, q, nil, "AcquireStart", "AcquireDone, not acquired")
		check.Is(b, err, lockkeeper.ErrNotAcquired, "the error")
		second := q.LockAsync("x")
		time.Sleep(processes.HeartbeatInterval / 4)
		third := r.LockAsync("x")
		time.Sleep(processes.HeartbeatInterval / 4)
		b.Must(lease.Release(background))
		told(b, p, lease, "Released after 100ms")
		lease = <-second
		told(b, q, lease, "AcquireStart", "Queued", "WakeupReceived", "AcquireDone after 100ms")
		time.Sleep(processes.HeartbeatInterval / 4)
		b.Must(lease.Release(background))
		lease = <-third
		told(b, r, lease, "AcquireStart", "Queued behind 1", "WakeupReceived", "AcquireDone after 100ms")
		b.Must(lease.Release(background))

		lease = p.Hold("x")
		told(b, p, lease, "AcquireStart", "AcquireDone")
		time.Sleep(processes.TTL / 3)
		told(b, p, lease, "Renewed after 1s")
		b.Mini.Del("lock:x")
		<-lease.Done()
		time.Sleep(2 * processes.TTL)
		told(b, p, lease, "Lost after 2s, lease lost")
		b.Must(p.Close())
		told(b, p, lease)
	})
}

// TestUnsetHooksAreSkipped checks that one hook can be set without the others.
func TestUnsetHooksAreSkipped(t *testing.T) {
	all := reflect.TypeFor[lockkeeper.Hooks]()
	for i := range all.NumField() {
		t.Run(all.Field(i).Name, func(t *testing.T) {
			processes.Run(t, func(b *processes.Bubble) {
				var hooks lockkeeper.Hooks
				reflect.ValueOf(&hooks).Elem().Field(i).Set(reflect.ValueOf(func(lockkeeper.Event) {}))
				m := must.Get(mutex.New(b.With(&lockkeeper.Options{Hooks: hooks}), "x", &mutex.Options{TTL: processes.TTL}))(b)
				b.Must(m.Do(background, func(context.Context, uint64) error {
					time.Sleep(processes.TTL)
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
			processes.Run(t, func(b *processes.Bubble) {
				p := b.ProcessWith(timeout, lockkeeper.Options{})
				p.Call(20) // the next one is sent inline
				lease := p.Hold("held")
				other := b.Process().Hold("contended")
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
				call(p.Mutex("contended").Lock)
				time.Sleep(processes.HeartbeatInterval / 2)
				p.Net.Blackhole()
				call(p.Mutex("alone").Lock) // inline
				call(p.Mutex("together").Lock)
				call(p.Mutex("uncontended").TryLock)
				call(func(ctx context.Context) (*lockkeeper.Lease, error) {
					return p.Mutex("contended").Adopt(ctx, other.Token())
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
				b.Must(p.RDB.Close()) // ends all that is left; the bubble fails if a goroutine is left running
			})
		})
	}
}

func TestConcurrentClose(t *testing.T) {
	processes.Run(t, func(b *processes.Bubble) {
		p := b.Process()
		for i := range 10 {
			p.Hold(fmt.Sprint(i))
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
	processes.Run(t, func(b *processes.Bubble) {
		lease := must.Get(must.Get(mutex.New(b.Process().Keeper, "x", nil))(b).Lock(background))(b)
		func() {
			defer func() {
				check.That(b, recover() != nil, "no panic")
			}()
			var none context.Context
			_ = lease.Release(none)
		}()
		b.Must(lease.Err())
		b.Must(lease.Release(background))
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

// TestOptionBounds: what is out of range is rejected with an error that names the option and its value; options are not changed.
func TestOptionBounds(t *testing.T) {
	const day = 24 * time.Hour
	type o = lockkeeper.Options
	retry := func(least, most time.Duration) o {
		return o{Retry: lockkeeper.RetryPolicy{MinBackoff: least, MaxBackoff: most}}
	}
	ack := func(replicas int, timeout time.Duration) o {
		return o{ReplicaAck: lockkeeper.ReplicaAck{Replicas: replicas, Timeout: timeout}}
	}
	for _, c := range []struct {
		options o
		says    string // "" for what is valid
	}{
		{o{}, ""},
		{o{NoPrefix: true}, ""},
		{o{Prefix: "{app}:"}, ""},
		{o{Prefix: strings.Repeat("p", 1024)}, ""},
		{o{Prefix: strings.Repeat("p", 1025)}, "1025"},
		{o{Prefix: "a}"}, `Prefix: bad name: "a}"`},
		{o{Prefix: "a{}"}, "a{}"},
		{o{Prefix: "mine:", NoPrefix: true}, `Prefix "mine:" is set together with NoPrefix`},
		{o{HeartbeatInterval: 10 * time.Millisecond}, ""},
		{o{HeartbeatInterval: 10*time.Millisecond - 1}, "HeartbeatInterval 9.999999ms is not between 10ms and 1h0m0s"},
		{o{HeartbeatInterval: -time.Second}, "HeartbeatInterval -1s"},
		{o{HeartbeatInterval: time.Hour}, ""},
		{o{HeartbeatInterval: time.Hour + 1}, "HeartbeatInterval 1h0m0.0"},
		{o{HeartbeatTimeout: 20 * time.Millisecond}, ""},
		{o{HeartbeatTimeout: 20*time.Millisecond - 1}, "HeartbeatTimeout 19.999999ms"},
		{o{HeartbeatTimeout: day}, ""},
		{o{HeartbeatInterval: time.Minute, HeartbeatTimeout: day + 1}, "HeartbeatTimeout 24h0m0.0"},
		{o{HeartbeatInterval: time.Second, HeartbeatTimeout: 2 * time.Second}, ""},
		{o{HeartbeatInterval: time.Second, HeartbeatTimeout: 1999 * time.Millisecond}, "HeartbeatTimeout 1.999s is shorter than twice the HeartbeatInterval of 1s"},
		{ack(1, time.Millisecond), ""},
		{ack(-1, 0), "ReplicaAck.Replicas -1"},
		{ack(1, time.Microsecond), "ReplicaAck.Timeout 1µs"},
		{ack(0, time.Second), "ReplicaAck.Timeout 1s is set"},
		{o{ReplicaAck: lockkeeper.ReplicaAck{Majority: true, Timeout: time.Second}}, ""},
		{o{ReplicaAck: lockkeeper.ReplicaAck{Fsync: true, Timeout: time.Second}}, ""},
		{o{MetadataTTL: time.Minute}, ""},
		{o{MetadataTTL: time.Minute - 1}, "MetadataTTL 59.9"},
		{o{MetadataTTL: 365 * day}, ""},
		{o{MetadataTTL: 366 * day}, "MetadataTTL 8784h"},
		{retry(time.Millisecond, time.Millisecond), ""},
		{retry(time.Millisecond-1, 0), "Retry.MinBackoff 999.999µs"},
		{retry(0, time.Millisecond-1), "Retry.MaxBackoff 999.999µs"},
		{retry(time.Hour, 0), ""}, // longer than the default of MaxBackoff, which is raised to it
		{retry(time.Hour+1, 0), "Retry.MinBackoff 1h0m0.0"},
		{retry(0, time.Hour+1), "Retry.MaxBackoff 1h0m0.0"},
		{retry(time.Second, time.Millisecond), "Retry.MaxBackoff 1ms is shorter than Retry.MinBackoff 1s"},
		{o{Retry: lockkeeper.RetryPolicy{MaxElapsed: -1}}, ""},
	} {
		before := c.options
		k, err := lockkeeper.New(noServer(t), &c.options)
		if c.says == "" {
			must.That(t, err == nil, "%+v: %v", c.options, err)
			must.Report(t, k.Close())
		} else {
			check.That(t, k == nil && errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), c.says), "%+v: %v", c.options, err)
		}
		check.That(t, reflect.DeepEqual(c.options, before), "New has changed them to %+v", c.options)
	}
}

// TestStats compares what a keeper says of itself with what it does: with a holder and a waiter, without messages, with a server that does
// not answer, and closed.
func TestStats(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		net := s.Network()
		rdb := redis.NewClient(faultnet.Options(net, 20*time.Second))
		defer rdb.Close()
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}))(t)
		is := func(want lockkeeper.Stats, when string) {
			t.Helper()
			got := k.Stats()
			check.That(t, got.SubscriptionSilence <= 5*time.Second, "%s: %+v", when, got)
			got.SubscriptionSilence = 0
			check.That(t, got == want, "%s: %+v, want %+v", when, got, want)
		}
		is(lockkeeper.Stats{}, "a new keeper")
		l := must.Get(fair.New(k, "x", &fair.Options{TTL: time.Hour}))(t)

		lease := must.Get(l.Lock(background))(t)
		synctest.Wait()
		got := k.Stats()
		check.That(t, got.Leases == 1 && got.Requests == 0 && got.Waiting == 0 && got.InFlight == 0 && got.Silence == 0, "a holder: %+v", got)

		ctx, giveUp := context.WithCancel(background)
		defer giveUp()
		waited := make(chan error, 1)
		go func() {
			_, err := l.Lock(ctx)
			waited <- err
		}()
		synctest.Wait()
		is(lockkeeper.Stats{Leases: 1, Requests: 1, Waiting: 1, Channels: 1}, "a holder and a waiter")
		time.Sleep(3 * time.Second)
		got = k.Stats()
		check.That(t, got.SubscriptionSilence == 3*time.Second, "after 3 s without a message: %+v", got)

		net.Blackhole()
		net.CutSubscriptions()
		time.Sleep(10 * time.Second)
		got = k.Stats()
		check.That(t, got.Unsubscribed == 1 && got.InFlight > 0 && got.Silence > 5*time.Second && got.Silence <= 10*time.Second,
			"a server that is silent: %+v", got)

		net.Restore()
		time.Sleep(time.Minute)
		is(lockkeeper.Stats{Leases: 1, Requests: 1, Waiting: 1, Channels: 1}, "it answers again")

		giveUp()
		check.Is(t, <-waited, lockkeeper.ErrNotAcquired, "the wait")
		must.Report(t, lease.Release(background))
		synctest.Wait()
		got = k.Stats()
		check.That(t, got.Leases == 0 && got.Requests == 0 && got.Waiting == 0, "nobody: %+v", got)
		must.Report(t, k.Close())
		got = k.Stats()
		check.That(t, got.Requests == 0 && got.Leases == 0 && got.Unsent == 0 && got.InFlight == 0, "closed: %+v", got)

		other := s.Network() // of a keeper whose last caller has given up
		idle := redis.NewClient(faultnet.Options(other, time.Second))
		defer idle.Close()
		without := must.Get(lockkeeper.New(idle, nil))(t)
		other.Down()
		_, err := must.Get(fair.New(without, "y", nil))(t).TryLock(background)
		check.Is(t, err, lockkeeper.ErrUnavailable, "a try without a server")
		time.Sleep(10 * time.Second)
		check.That(t, without.Stats() == lockkeeper.Stats{}, "nobody needs the server: %+v", without.Stats())
		must.Report(t, without.Close())
	})
}

// TestManyKeepersOfAClientAreReported: a keeper for each request, never closed, leaves goroutines and connections until the server
// has none left. A client and its wrapper are tested in internal/client.
func TestManyKeepersOfAClientAreReported(t *testing.T) {
	var log quiet.Buffer
	opts := &lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	open := func(rdb redis.UniversalClient, n int) (list []*lockkeeper.Keeper) {
		for range n {
			list = append(list, must.Get(lockkeeper.New(rdb, opts))(t))
		}
		return list
	}
	expect := func(what string, want int) {
		t.Helper()
		got := strings.Count(log.String(), "many keepers are open on one client")
		check.That(t, got == want, "%s: reported %d times, want %d", what, got, want)
	}
	rdb, other := redis.NewClient(&redis.Options{}), redis.NewClient(&redis.Options{})
	defer rdb.Close()
	defer other.Close()
	for range 100 {
		check.Is(t, open(rdb, 1)[0].Close(), nil, "Close")
	}
	list := append(open(rdb, 30), open(other, 30)...)
	expect("each was closed, or is one of 30 of its client", 0)
	list = append(list, open(rdb, 100)...)
	expect("130 are open on a client", 1)
	for _, k := range list {
		check.Is(t, k.Close(), nil, "Close")
	}
	for _, k := range open(rdb, 40) {
		defer k.Close()
	}
	expect("40 are open again", 2)
}

func TestLogHooks(t *testing.T) {
	var out bytes.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	rdb, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.LogHooks(slog.New(handler), slog.LevelDebug)}))(t)
	defer k.Close()
	m := must.Get(mutex.New(k, "a name", &mutex.Options{Linger: time.Second}))(t)
	l := must.Get(m.Lock(ctx))(t)
	_, err := m.TryLock(ctx)
	must.That(t, err != nil, "acquired twice")
	_, err = m.TryLock(must.Within(t, 0))
	must.That(t, err != nil, "acquired with a context that has ended")
	_ = l.Release(ctx)
	s := must.Get(semaphore.New(k, "s", 5, nil))(t)
	must.OK(t, s.SetLimit(ctx, 4))
	for _, change := range [][2]string{{`(took|held)=\S+`, "$1=X"}, {`token=\S+`, "token=T"}, {`fence=\d+`, "fence=F"}, {`request=\d+`, "request=R"}} {
		out = *bytes.NewBuffer(regexp.MustCompile(change[0]).ReplaceAll(out.Bytes(), []byte(change[1])))
	}
	want := `level=DEBUG msg="lock acquired" kind=mutex name="a name" request=R token=T fence=F took=X
level=DEBUG msg="lock not acquired" kind=mutex name="a name" request=R took=X err="lockkeeper: mutex \"a name\": not acquired"
level=INFO msg="lock not acquired" kind=mutex name="a name" request=R took=X err="lockkeeper: mutex \"a name\": `
	check.That(t, strings.HasPrefix(out.String(), want), "%s\nwant\n%s", out.String(), want)
	for _, line := range []string{
		`level=DEBUG msg="lock released" kind=mutex name="a name" request=R token=T fence=F held=X`,
		`level=DEBUG msg="lock limit changed" kind=semaphore name=s`, ` limit=4`,
	} {
		check.That(t, strings.Contains(out.String(), line), "%s\nhas not %s", out.String(), line)
	}
	out.Reset()
	quiet := lockkeeper.LogHooks(slog.New(slog.NewTextHandler(&out, nil)), slog.LevelDebug)
	quiet.Queued(lockkeeper.Event{Context: ctx, Position: 3})
	quiet.Lost(lockkeeper.Event{Context: ctx, Reason: "expired", Local: true})
	if got := out.String(); strings.Contains(got, "queued") || !strings.Contains(got, `msg="lock lost" request=0 held=0s inside=true reason=expired`) {
		t.Error(got)
	}
}

// TestInspectTokens checks what holders and waiters say of tokens of each kind.
func TestInspectTokens(t *testing.T) {
	for _, x := range []struct {
		token, keeper, note string
		permits             int
		writes              bool
		ahead               bool
	}{
		{token: "another library", keeper: ""},
		{token: "k:1:30000.6000", keeper: "k"},
		{token: "k:1:30000.6000r", keeper: "k"},
		{token: "k:1:30000.6000w10", keeper: "k", writes: true}, // the number is the longest streak
		{token: "k:1:30000.6000u", keeper: "k", writes: true},
		{token: "k:1:30000.6000d", keeper: "k"},
		{token: "k:1:30000.6000h3", keeper: "k", permits: 3},
		{token: "k:1:30000.6000c4", keeper: "k", permits: 4},
		{token: "k:1:30000.6000hc5", keeper: "k", permits: 5},
		{token: "k:1~am9iIDQy:30000.6000w", keeper: "k", writes: true, note: "job 42"},
		{token: "k:1~G1sySg:30000.6000w", keeper: "k", writes: true}, // a note that cannot be printed
		{token: "k:1:6000.6000cb40", keeper: "k", permits: 40, ahead: true},
		{token: "k:1:30000.6000f1790000000000000", keeper: "k"}, // the number is the least fence
	} {
		h := []views.Holder{{Token: x.token, Owner: "o", Fence: 7, ExpiresIn: time.Second, Unconfirmed: true}}
		holders := must.Get(access.Holders[lockkeeper.Holder](h, nil))(t)
		if want := (lockkeeper.Holder{x.token, x.keeper, "o", time.UnixMicro(7), 7, time.Second, x.permits, x.writes, true, x.note, x.ahead}); !slices.Equal(holders, []lockkeeper.Holder{want}) {
			t.Errorf("holders %+v, want %+v", holders, want)
		}
		w := []views.Waiter{{Token: x.token, Owner: "o", WaitTime: time.Minute, HeartbeatLeft: 1, HeartbeatAge: 5}}
		waiters := must.Get(access.Waiters[lockkeeper.Waiter](w, nil))(t)
		if want := (lockkeeper.Waiter{x.token, x.keeper, "o", time.Minute, true, 5, x.permits, x.writes, x.note}); !slices.Equal(waiters, []lockkeeper.Waiter{want}) {
			t.Errorf("waiters %+v, want %+v", waiters, want)
		}
	}
	list := must.Get(access.Waiters[lockkeeper.Waiter]([]views.Waiter{{HeartbeatLeft: 0}}, nil))(t)
	check.That(t, !list[0].Alive, "a waiter whose heartbeat has expired is alive")
}
