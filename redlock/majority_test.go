package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

const (
	ttl   = 600 * time.Millisecond
	limit = 60 * time.Millisecond // ServerTimeout
)

// world is several servers, each with its own clock, in virtual time.
type world struct {
	*testing.T
	servers []*miniredis.Miniredis
	offsets []time.Duration
	slow    atomic.Int64 // ns that each script takes to arrive
	last    []func()

	ids     []atomic.Int64 // what the servers report as their run_ids; 0: none; or denied
	uptimes []atomic.Int64 // s; 0: none
}

// onServers runs a test in a synctest bubble with n servers.
func onServers(t *testing.T, n int, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, offsets: make([]time.Duration, n), ids: make([]atomic.Int64, n), uptimes: make([]atomic.Int64, n)}
		for i := range n {
			m := miniredis.NewMiniRedis()
			m.ClockTTL(true)
			first := must.Get(m.Dial())(w) // Server() is nil before the first connection
			w.must(first.Close())
			m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
				if strings.HasPrefix(command, "EVAL") { // not a command that a script calls: then the server is locked
					time.Sleep(time.Duration(w.slow.Load()))
					m.SetTime(time.Now().Add(w.offsets[i]))
				}
				id, uptime := w.ids[i].Load(), w.uptimes[i].Load()
				if command == "INFO" && id == denied {
					c.WriteError("NOPERM User default has no permissions to run the 'info' command")
					return true
				}
				if command != "INFO" || id+uptime == 0 {
					return false
				}
				info := "# Server\r\n"
				if id > 0 {
					info += fmt.Sprintf("run_id:%040x\r\n", id)
				}
				if uptime > 0 {
					info += fmt.Sprintf("uptime_in_seconds:%d\r\n", uptime)
				}
				c.WriteBulk(info)
				return true
			})
			w.servers = append(w.servers, m)
		}
		defer func() {
			for _, f := range slices.Backward(w.last) {
				f()
			}
			for _, m := range w.servers {
				m.Close()
			}
			time.Sleep(time.Minute) // go-redis ends its goroutines by timers
		}()
		test(w)
	})
}

// process is a client process: a keeper and a network for each server.
type process struct {
	w       *world
	nets    []*faultnet.Net
	keepers []*lockkeeper.Keeper
}

func (w *world) process(change ...func(*lockkeeper.Options)) *process {
	w.Helper()
	p := &process{w: w}
	for _, m := range w.servers {
		n := faultnet.New(faultnet.Buffer(func(context.Context, string, string) (net.Conn, error) { return m.Dial() }))
		rdb := redis.NewClient(faultnet.Options(n, time.Second))
		o := &lockkeeper.Options{Logger: slog.New(slog.DiscardHandler), Retry: lockkeeper.RetryPolicy{MaxElapsed: 2 * time.Second}}
		for _, f := range change {
			f(o)
		}
		k := must.Get(lockkeeper.New(rdb, o))(w)
		p.nets, p.keepers = append(p.nets, n), append(p.keepers, k)
		w.last = append(w.last, func() {
			n.Restore()
			_ = k.Close()
			_ = rdb.Close()
		})
	}
	return p
}

func (p *process) lock(change ...func(*redlock.Options)) *redlock.Lock {
	p.w.Helper()
	o := &redlock.Options{TTL: ttl, ServerTimeout: limit}
	for _, f := range change {
		f(o)
	}
	return must.Get(redlock.New(p.keepers, "x", o))(p.w)
}

func fixed(o *redlock.Options) { o.NoRenewal = true }

func (w *world) must(err error) {
	if err != nil {
		w.Helper()
		w.Fatal(err)
	}
}

func (w *world) hold(l *redlock.Lock) *lockkeeper.Lease {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 10*time.Second)
	defer cancel()
	return must.Get(l.Lock(ctx))(w)
}

// connect opens the connections and loads the scripts.
func (w *world) connect(l *redlock.Lock) {
	w.Helper()
	w.must(w.hold(l).Release(w.Context()))
	synctest.Wait() // also at the servers that the majority did not wait for
}

// owners is the token that each server has for the lock; "": none.
func (w *world) owners() []string {
	list := make([]string, len(w.servers))
	for i, m := range w.servers {
		m.SetTime(time.Now().Add(w.offsets[i]))
		list[i], _ = m.Get("lock:x")
	}
	return list
}

// owned checks how many servers have the lease, when all commands under way have ended.
func (w *world) owned(by *lockkeeper.Lease, want int) {
	w.Helper()
	synctest.Wait()
	n := 0
	for _, owner := range w.owners() {
		if owner == by.Token() {
			n++
		}
	}
	check.That(w, n == want, "%d servers have the lease, want %d", n, want)
}

// clean checks that no keys are left but metadata and tombstones, which expire.
func (w *world) clean() {
	w.Helper()
	synctest.Wait()
	w.owners() // expired keys are gone
	for i, m := range w.servers {
		for _, k := range m.Keys() {
			if !strings.HasSuffix(k, ":meta") && !strings.HasSuffix(k, ":tombstones") && !strings.HasPrefix(k, "{lock:}:owner:") {
				w.Errorf("server %d: %s is left", i+1, k)
			}
		}
	}
}

// is checks which of the package's errors an error matches.
func (w *world) is(err error, want ...error) {
	w.Helper()
	for _, e := range []error{lockkeeper.ErrNotAcquired, lockkeeper.ErrUnavailable, lockkeeper.ErrLost, lockkeeper.ErrReleased, lockkeeper.ErrClosed, context.DeadlineExceeded} {
		if errors.Is(err, e) != slices.Contains(want, e) {
			w.Errorf("errors.Is %q is not %v: %v", e, slices.Contains(want, e), err)
		}
	}
}

// wantReplies checks the answer of each server in an error: 'y' agreed, 'n' another holder has it, 'l' the lease is lost there,
// '-' no answer or another error, '?' any.
func (w *world) wantReplies(err error, want string) {
	w.Helper()
	var all *redlock.Error
	must.That(w, errors.As(err, &all), "%v is not an *Error", err)
	got := ""
	for i, s := range all.Servers {
		switch {
		case i < len(want) && want[i] == '?':
			got += "?"
		case s.Err == nil:
			got += "y"
		case errors.Is(s.Err, lockkeeper.ErrNotAcquired):
			got += "n"
		case errors.Is(s.Err, lockkeeper.ErrLost):
			got += "l"
		default:
			got += "-"
		}
	}
	check.That(w, got == want, "the servers' answers are %s, want %s: %v", got, want, err)
}

// occupy gives the lock at some servers to another holder.
func (w *world) occupy(servers ...int) {
	for _, i := range servers {
		w.must(w.servers[i].Set("lock:x", "theirs"))
		w.servers[i].SetTTL("lock:x", time.Minute)
	}
}

func TestNewRejectsInvalidKeepers(t *testing.T) {
	onServers(t, 5, func(w *world) {
		ks := w.process().keepers
		for what, list := range map[string][]*lockkeeper.Keeper{
			"0 keepers":              {},
			"2 keepers":              ks[:2],
			"4 keepers":              ks[:4],
			"keeper 2 of 3 is nil":   {ks[0], nil, ks[1]},
			"1 and 3 of 3 are the s": {ks[0], ks[1], ks[0]},
		} {
			_, err := redlock.New(list, "x", nil)
			check.That(w, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), what), "%s: %v", what, err)
		}
		acknowledges := w.process(func(o *lockkeeper.Options) { o.ReplicaAck.Replicas = 1 }).keepers
		_, err := redlock.New([]*lockkeeper.Keeper{ks[0], acknowledges[1], ks[2]}, "x", nil)
		if !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), "keeper 2 of 3 has ReplicaAck") {
			w.Error(err)
		}
		for n := 1; n <= 5; n += 2 {
			if _, err := redlock.New(ks[:n], "x", nil); err != nil {
				w.Error(err)
			}
		}
	})
}

// Case 51.
func TestFailedAttemptReleasesGrants(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p := w.process()
		l := p.lock()
		w.occupy(1, 2)
		_, err := l.TryLock(w.Context())
		w.is(err, lockkeeper.ErrNotAcquired)
		w.wantReplies(err, "?nn") // two refusals decide it, whatever the first answers
		synctest.Wait()
		got := w.owners()
		check.That(w, slices.Equal(got, []string{"", "theirs", "theirs"}), "the servers' owners are %q", got)
	})
}

// Case 51, where the answers are lost.
func TestFailedAttemptReleasesInDoubtGrants(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p := w.process()
		l := p.lock()
		w.connect(l)
		for _, n := range p.nets[1:] {
			n.Break("evalsha", 1, faultnet.SwallowReply|faultnet.Copy)
		}
		ctx, cancel := context.WithTimeout(w.Context(), limit/2)
		defer cancel()
		_, err := l.Lock(ctx)
		w.is(err, lockkeeper.ErrUnavailable, context.DeadlineExceeded)
		w.wantReplies(err, "y--")
		time.Sleep(2 * limit)
		w.clean()
		for _, n := range p.nets[1:] {
			w.must(n.Replay()) // copies of the requests arrive later
		}
		w.clean()
		w.must(w.hold(l).Release(w.Context()))
		w.clean()
	})
}

// TestContentionDistinguishedFromOutage: the error is ErrNotAcquired only if a majority has answered.
func TestContentionDistinguishedFromOutage(t *testing.T) {
	onServers(t, 5, func(w *world) {
		p := w.process()
		l := p.lock()
		w.occupy(4)
		p.nets[0].Down()
		p.nets[1].Down()
		_, err := l.TryLock(w.Context()) // three answer, one of them refuses
		w.is(err, lockkeeper.ErrNotAcquired)
		w.wantReplies(err, "--yyn")
		check.That(w, strings.Contains(err.Error(), ": not acquired (server 1: "), "text: %v", err)
		p.nets[2].Down()
		_, err = l.TryLock(w.Context()) // two answer: no majority is possible, whether the lock is held or not
		w.is(err, lockkeeper.ErrUnavailable)
		w.wantReplies(err, "---yn")
		check.That(w, strings.Contains(err.Error(), "no majority of the servers (server 1: "), "text: %v", err)
	})
}

// Case 53.
func TestSlowAcquireShortensLeaseOrFails(t *testing.T) {
	onServers(t, 3, func(w *world) {
		// Two servers answer, and one of them has to raise its fence: two steps, each within ServerTimeout.
		w.offsets = []time.Duration{0, time.Hour, 2 * time.Hour}
		p := w.process()
		slow := func(delay time.Duration) (*lockkeeper.Lease, error) {
			l := p.lock(fixed, func(o *redlock.Options) { o.ServerTimeout = ttl / 2 })
			w.connect(l)
			for _, m := range w.servers {
				m.FlushDB()
			}
			p.nets[1].Down()
			w.slow.Store(int64(delay))
			defer w.slow.Store(0)
			ctx, cancel := context.WithTimeout(w.Context(), ttl)
			defer cancel()
			return p.lock(fixed, func(o *redlock.Options) { o.ServerTimeout = ttl / 2 }).Lock(ctx)
		}
		start := time.Now()
		lease := must.Get(slow(ttl / 5))(w)
		if d := time.Since(start); d < 2*ttl/5 {
			w.Fatalf("two steps took %v", d)
		}
		if d := lease.Deadline().Sub(start); d > ttl-ttl/100-2*time.Millisecond {
			w.Errorf("the deadline of a lease of %v is %v after the request", ttl, d)
		}
		w.must(lease.Release(w.Context()))
		p.nets[1].Restore()
		late, err := slow(ttl/2 - time.Millisecond)
		check.That(w, err != nil, "a lease was handed out with %v left", time.Until(late.Deadline()))
		w.is(err, lockkeeper.ErrUnavailable, context.DeadlineExceeded)
		p.nets[1].Restore()
		time.Sleep(ttl)
		w.clean()
	})
}

func TestDeadlineIsThatOfMajority(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p := w.process()
		lease := w.hold(p.lock())
		w.owned(lease, 3)
		p.nets[0].Down()
		time.Sleep(5 * ttl) // one server may be away
		w.must(lease.Err())
		p.nets[1].Down()
		down, deadline := time.Now(), lease.Deadline()
		time.Sleep(ttl / 2) // only the third renews
		d := lease.Deadline()
		check.That(w, d == deadline, "with one server of three the deadline moved by %v", d.Sub(deadline))
		select {
		case <-lease.Done():
		case <-time.After(time.Minute): // it would be renewed forever
		}
		if now := time.Now(); now != deadline || now.Sub(down) > ttl {
			w.Errorf("lost %v after the second server was cut off, the deadline was %v after it", now.Sub(down), deadline.Sub(down))
		}
		w.is(lease.Err(), lockkeeper.ErrLost)
		w.wantReplies(lease.Err(), "-ly") // the first was asked for the lease again, without an answer
		owners := w.owners()
		check.That(w, owners[1] == lease.Token(), "a server ended the lease before its holder's deadline")
		w.is(lease.Release(w.Context()), lockkeeper.ErrLost)
		w.owned(lease, 1)
		p.nets[0].Restore()
		p.nets[1].Restore()
		time.Sleep(2 * ttl)
		w.clean()
	})
}

func TestLeaseSurvivesRollingDataLoss(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p, q := w.process(), w.process()
		lease := w.hold(p.lock())
		for round := range 6 {
			w.servers[round%3].FlushAll()
			time.Sleep(ttl)
			w.must(lease.Err())
			w.owned(lease, 3)
			check.Is(w, check.ErrorOf(q.lock().TryLock(w.Context())), lockkeeper.ErrNotAcquired, "the error")
		}
		fence := lease.Fence()
		w.must(lease.Release(w.Context()))
		next := w.hold(q.lock())
		check.That(w, next.Fence() > fence, "fence %d after %d", next.Fence(), fence)
	})
}

func TestCloseOneKeeperReleasesLease(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p, q := w.process(), w.process()
		lease := w.hold(p.lock())
		waits := make(chan error, 2)
		for _, l := range []*redlock.Lock{p.lock(), q.lock()} {
			go func() {
				other, err := l.Lock(w.Context())
				if err == nil {
					err = other.Release(w.Context())
				}
				waits <- err
			}()
		}
		time.Sleep(ttl / 10)
		w.must(p.keepers[1].Close())
		w.is(lease.Err(), lockkeeper.ErrReleased)
		first, second := <-waits, <-waits
		if first == nil {
			first, second = second, first
		}
		w.is(first, lockkeeper.ErrClosed)
		w.must(second)
		_, err := p.lock().TryLock(w.Context())
		w.is(err, lockkeeper.ErrClosed)
		_, err = p.lock().Adopt(w.Context(), lease.Token())
		w.is(err, lockkeeper.ErrClosed)
		w.must(lease.Release(w.Context()))
		w.clean()
	})
}
