package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/redis/go-redis/v9"
)

// promises are cases for statements in the documentation that no other case covers.
var promises = []Case{
	{Name: "05_ended_or_invalid_calls_send_nothing", Test: nothingSent},
	{Name: "11_ttl_bounds", Test: ttlBounds},
	{Name: "11_default_ttl", Test: defaultTTL},
	{Name: "13_adopt_extends_to_full_ttl", Test: adoptExtendsToTTL},
	{Name: "22_unsent_extend_changes_nothing", Test: unsentExtend},
	{Name: "22_no_extend_beyond_max_lifetime", Test: extendBeyondMaxLifetime},
	{Name: "54_close_retries_releases", Test: closeRetriesReleases},
	{Name: "54_close_times_out_after_three_seconds", Test: closeTimesOut},
	{Name: "54_close_reports_loss", Test: closeReportsLoss},
	{Name: "54_close_calls_hook_and_ends_adopt", Test: closeHookAndAdopt},
	{Name: "56_unlimited_retries_outlast_outage", Test: unlimitedRetries},
	{Name: "56_errors_name_lock", Test: errorsNameLock},
	{Name: "58_do_reports_loss_and_honors_context", Test: doReportsLoss},
	{Name: "contexts_end_before_release_is_sent", Test: contextsEndBeforeRelease},
	{Name: "metadata_of_held_lease_is_kept", Test: metadataKept},
	{Name: "keys_expire_as_documented", Test: keysExpire},
}

// queuedPromises are the same for primitives with a queue at the server.
var queuedPromises = []Case{
	{Name: "33_max_elapsed_counts_from_outage_start", Test: maxElapsedFromOutageStart},
	{Name: "33_heartbeat_counts_until_timeout", Test: heartbeatTimeoutHonored},
	{Name: "inspect_wait_times_until_close", Test: inspectTimes},
}

// Fair are the cases of the fair lock alone.
var Fair = []Case{
	{Name: "inspect_holder", Test: inspectHolder},
}

// Foreign are the cases of locks whose key has the format of other libraries.
var Foreign = []Case{
	{Name: "foreign_holder_excludes_until_expiry", Test: foreignHolder},
}

// contextsEndBeforeRelease checks that the contexts of a lease have ended before its release reaches the server, so
// that its holder has stopped before the next one is granted the lock.
func contextsEndBeforeRelease(w *World) {
	cancelled, cancel := context.WithCancel(w.ctx())
	cancel()
	for what, end := range map[string]func(p *Process, l *lockkeeper.Lease) error{
		"Release":                       func(_ *Process, l *lockkeeper.Lease) error { return l.Release(w.ctx()) },
		"Release with a context to end": func(_ *Process, l *lockkeeper.Lease) error { return l.Release(w.Context()) },
		"Release with one that has":     func(_ *Process, l *lockkeeper.Lease) error { return l.Release(cancelled) },
		"Close":                         func(p *Process, _ *lockkeeper.Lease) error { return p.Close() },
	} {
		p := w.Process()
		lease := w.hold(p.Lock("x", withoutRenewal, withTTL(time.Minute))) // none of its renewals is sent
		// Contexts that were derived before cannot check the lease: they must be cancelled.
		parent, stop := context.WithCancel(w.ctx())
		ctx, bound := lease.Context(w.ctx()), lease.Context(parent)
		child, stopChild := context.WithCancel(bound)
		ends := []<-chan struct{}{lease.Done(), ctx.Done(), bound.Done(), child.Done()}
		token, sent := []byte(lease.Token()), make(chan bool, 100)
		p.Net.Watch(func(b []byte) {
			if !bytes.Contains(b, token) {
				return
			}
			over := true
			for _, c := range ends {
				select {
				case <-c:
				default:
					over = false
				}
			}
			sent <- over
		})
		w.must(end(p, lease))
		p.Net.Watch(nil)
		if len(sent) == 0 {
			w.Errorf("%s: nothing was sent", what)
		}
		for len(sent) > 0 {
			if !<-sent {
				w.Errorf("%s: the release was sent, and the lease's contexts have not ended", what)
			}
		}
		for _, c := range []context.Context{ctx, bound, child} {
			if !errors.Is(context.Cause(c), lockkeeper.ErrReleased) {
				w.Errorf("%s: cause %v", what, context.Cause(c))
			}
		}
		stopChild()
		stop()
		w.checkFree(w.Process().Lock("x"))
	}
}

// closeRetriesReleases checks that Close releases leases and queue entries although the server fails for a moment.
func closeRetriesReleases(w *World) {
	const moment = 500 * time.Millisecond
	w.clientTimeout = time.Second // Close goes on for three
	for what, fails := range map[string]func(p *Process){
		"no connection":     (*Process).Crash,
		"no answer":         func(p *Process) { p.Net.Break("evalsha", 2, faultnet.CutReply) },
		"requests get lost": func(p *Process) { p.Net.Break("evalsha", 4, faultnet.LoseRequest) },
	} {
		other := w.hold(w.Process().Lock("busy", withTTL(time.Minute)))
		p := w.Process()
		w.hold(p.Lock("x", withTTL(time.Minute)))
		waits := w.lockAsync(w.ctx(), p.Lock("busy"))
		w.awaitWaiters("busy", 1)
		fails(p)
		restore := time.AfterFunc(moment, p.Net.Restore)
		if err := p.Close(); err != nil {
			w.Errorf("%s: %v", what, err)
		}
		restore.Stop()
		w.checkError(w.await(waits, 0).err, lockkeeper.ErrClosed)
		if left := w.holders("x"); len(left) > 0 {
			w.Errorf("%s: after Close the lock is held by %v", what, left)
		}
		if !w.P.MajorityLock {
			if n := w.admin.ZCount(w.ctx(), w.queueKey("busy"), "-inf", protocol.BehindWaiters).Val(); n != 0 {
				w.Errorf("%s: after Close %d wait", what, n)
			}
		}
		w.release(other)
	}
	w.checkOnlyTombstones()
}

// closeTimesOut checks that Close returns no earlier and not much later than its timeout if no commands are under
// way.
func closeTimesOut(w *World) {
	if w.Real {
		return // it takes three seconds
	}
	for what, retry := range map[string]lockkeeper.RetryPolicy{
		"short": {MaxBackoff: 100 * time.Millisecond}, "default": {}, "long": {MinBackoff: time.Minute},
	} {
		p := w.Process(func(o *lockkeeper.Options) { o.Retry = retry })
		w.hold(p.Lock(what, withTTL(time.Hour)))
		p.Crash()
		start := time.Now()
		err := p.Close()
		if err == nil || errors.Is(err, lockkeeper.ErrLost) {
			w.Errorf("Close released a lease although the server was down: %v", err)
		}
		if d := time.Since(start); d > 3*time.Second || what == "short" && d < 2800*time.Millisecond {
			w.Errorf("with %s pauses Close took %v", what, d)
		}
	}
}

func closeReportsLoss(w *World) {
	p := w.Process()
	w.hold(p.Lock("x", withTTL(time.Minute)))
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	if err := p.Close(); !errors.Is(err, lockkeeper.ErrLost) {
		w.Errorf("Close with a lease that the server has lost: %v", err)
	}
}

// closeHookAndAdopt checks that the Released hook is called for each lease that Close releases, and that a call in
// progress returns ErrClosed.
func closeHookAndAdopt(w *World) {
	if w.Real {
		return // Close waits for the client's timeout
	}
	var mu sync.Mutex
	var reported []string
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Released = func(e lockkeeper.Event) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, e.Token)
		}
	})
	lease := w.hold(p.Lock("x", withTTL(time.Minute)))
	other := w.hold(w.Process().Lock("y", withTTL(time.Minute)))
	p.Net.Blackhole()
	adopted := make(chan error, 1)
	l := p.Lock("y", withTTL(time.Minute))
	go func() {
		_, err := l.Adopt(w.ctx(), other.Token())
		adopted <- err
	}()
	time.Sleep(heartbeatInterval / 10)
	_ = p.Close()
	w.checkError(<-adopted, lockkeeper.ErrClosed)
	mu.Lock()
	defer mu.Unlock()
	if len(reported) != 1 || reported[0] != lease.Token() {
		w.Errorf("Released was called for %q, want one call for %q", reported, lease.Token())
	}
}

// nothingSent checks that calls which need no command send none.
func nothingSent(w *World) {
	p := w.Process()
	l := p.Lock("x", withoutRenewal, func(o *Options) { o.MaxLifetime = 2 * ttl })
	released, lost := w.hold(l), (*lockkeeper.Lease)(nil)
	w.release(released)
	lost = w.hold(p.Lock("y", withoutRenewal))
	w.awaitLoss(lost, ttl)
	w.checkError(lost.Release(w.ctx()), lockkeeper.ErrLost)
	held := w.hold(l)
	w.settle() // what a majority lock sends in the background
	p.Net.ResetCount()
	w.release(released)
	w.checkError(released.Extend(w.ctx(), ttl), lockkeeper.ErrReleased)
	w.checkError(lost.Release(w.ctx()), lockkeeper.ErrLost)
	w.checkError(lost.Extend(w.ctx(), ttl), lockkeeper.ErrLost)
	for _, d := range []time.Duration{0, time.Millisecond, 1000 * 24 * time.Hour, 3 * ttl} { // the last exceeds MaxLifetime
		w.checkError(held.Extend(w.ctx(), d), lockkeeper.ErrInvalid)
	}
	_, err := l.Adopt(w.ctx(), "")
	w.checkError(err, lockkeeper.ErrInvalid)
	if !w.Real {
		synctest.Wait()
	}
	if n := p.Net.Scripts(); n != 0 {
		w.Errorf("%d scripts were sent", n)
	}
	w.release(held)
	w.checkOnlyTombstones()
}

func ttlBounds(w *World) {
	const least, most = 10 * time.Millisecond, 365 * 24 * time.Hour
	p := w.Process()
	for d, fits := range map[time.Duration]bool{least - 1: false, least: true, most: true, most + 1: false} {
		l, err := w.P.New(p.Keeper, "x", Options{TTL: d})
		if fits != (err == nil) {
			w.Errorf("TTL %v: %v", d, err)
		}
		if !fits {
			w.checkError(err, lockkeeper.ErrInvalid)
			continue
		}
		if d == most || !w.Real { // on a loaded machine the shortest would be lost
			w.release(w.hold(l))
		}
	}
	lease := w.hold(p.Lock("x", withoutRenewal))
	w.must(lease.Extend(w.ctx(), most))
	if left := time.Until(lease.Deadline()); left < most*98/100 {
		w.Errorf("extended to %v, its holder relies on it for %v", most, left)
	}
	w.checkError(lease.Extend(w.ctx(), most+1), lockkeeper.ErrInvalid)
	w.release(lease)
}

func defaultTTL(w *World) {
	l, err := w.P.New(w.Process().Keeper, "x", Options{})
	w.must(err)
	lease := w.hold(l)
	if left := time.Until(lease.Deadline()); left > 30*time.Second || left < 25*time.Second {
		w.Errorf("its holder relies on it for %v", left)
	}
	w.checkKeyExpiry("x", 30*time.Second)
	w.release(lease)
}

// checkKeyExpiry checks the expiry of the lock's key, which is that of its only lease.
func (w *World) checkKeyExpiry(name string, want time.Duration) {
	w.Helper()
	left, err := w.admin.PTTL(w.ctx(), w.P.Key(name)).Result()
	w.must(err)
	if left > want || left < want-w.slack()-5*time.Millisecond {
		w.Errorf("the lock's key expires in %v, want %v", left, want)
	}
}

func adoptExtendsToTTL(w *World) {
	first := w.hold(w.Process().Lock("x", withoutRenewal))
	lease, err := w.Process().Lock("x", withoutRenewal, withTTL(time.Minute)).Adopt(w.ctx(), first.Token())
	w.must(err)
	if left := time.Until(lease.Deadline()); left < 55*time.Second || left > time.Minute {
		w.Errorf("its holder relies on it for %v", left)
	}
	w.checkKeyExpiry("x", time.Minute)
	w.release(lease)
}

// unsentExtend checks Extend if there is no connection to send it on.
func unsentExtend(w *World) {
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = heartbeatInterval })
	lease := w.hold(p.Lock("x", withoutRenewal, withTTL(time.Minute)))
	p.Crash()
	w.eventually("no open connection", func() bool {
		for range 20 {
			if err := p.RDB.Ping(w.ctx()).Err(); err == nil || !strings.Contains(err.Error(), "dial") {
				return false
			}
		}
		return true
	})
	_ = lease.Extend(w.ctx(), time.Minute) // nor any other attempt
	before, start := lease.Deadline(), time.Now()
	err := lease.Extend(w.ctx(), 10*time.Second)
	w.checkError(err, lockkeeper.ErrUnavailable)
	if d := time.Since(start); d > 10*time.Second+w.slack() {
		w.Errorf("it lasted %v", d)
	}
	if after := lease.Deadline(); after != before {
		w.Errorf("its holder relies on it for %v less", before.Sub(after))
	}
	p.Net.Restore()
	w.release(lease)
}

func extendBeyondMaxLifetime(w *World) {
	lease := w.hold(w.Process().Lock("x", func(o *Options) { o.MaxLifetime = 3 * ttl }))
	time.Sleep(2 * ttl)
	err := lease.Extend(w.ctx(), 2*ttl)
	w.checkError(err, lockkeeper.ErrInvalid)
	if err == nil || !strings.Contains(err.Error(), "MaxLifetime") {
		w.Errorf("the error does not name it: %v", err)
	}
	w.must(lease.Err())
	w.release(lease)
}

// unlimitedRetries checks that with a negative MaxElapsed only the context limits the wait during an outage.
func unlimitedRetries(w *World) {
	if w.Real {
		return // it takes a minute
	}
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = -1 })
	p.Crash()
	waits := w.lockAsync(w.ctx(), p.Lock("x"))
	time.Sleep(time.Minute)
	w.expectNotGranted(waits)
	p.Net.Restore()
	r := w.await(waits, 5*time.Second)
	w.must(r.err)
	w.release(r.lease)
}

func errorsNameLock(w *World) {
	p := w.Process()
	lease := w.hold(p.Lock("the name"))
	ctx, cancel := context.WithTimeout(w.ctx(), heartbeatInterval/2)
	defer cancel()
	l := w.Process().Lock("the name")
	_, tried := l.TryLock(w.ctx())
	_, waited := l.Lock(ctx)
	_, adopted := l.Adopt(w.ctx(), lease.Token()+"0")
	w.must(p.Close())
	_, closed := p.Lock("the name").TryLock(w.ctx())
	for want, err := range map[error]error{
		lockkeeper.ErrNotAcquired: tried, context.DeadlineExceeded: waited, lockkeeper.ErrLost: adopted, lockkeeper.ErrClosed: closed,
	} {
		if !errors.Is(err, want) || !strings.Contains(err.Error(), fmt.Sprintf("%s %q", w.P.Kind, "the name")) {
			w.Errorf("want %v of %s %q: %v", want, w.P.Kind, "the name", err)
		}
	}
}

// doReportsLoss checks that Do reports a loss that its function has not noticed, and that a server which does not
// reply does not block it.
func doReportsLoss(w *World) {
	p := w.Process()
	w.checkError(p.Lock("x").Do(w.ctx(), func(ctx context.Context, _ uint64) error {
		w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
		<-ctx.Done()
		return nil
	}), lockkeeper.ErrLost)
	if w.Real {
		return // the rest takes more than a second
	}
	ctx, cancel := context.WithCancel(w.ctx())
	var start time.Time
	err := p.Lock("x", withoutRenewal, withTTL(time.Minute)).Do(ctx, func(context.Context, uint64) error {
		p.Net.Blackhole()
		cancel()
		start = time.Now()
		return nil
	})
	w.checkError(err, lockkeeper.ErrUnavailable, context.Canceled)
	if d := time.Since(start); d > time.Second+w.slack() {
		w.Errorf("Do returned %v after its context had ended", d)
	}
}

// metadataKept checks that renewals keep the metadata of a name, however long a lease is held.
func metadataKept(w *World) {
	if w.Real {
		return // it takes minutes
	}
	p := w.Process(func(o *lockkeeper.Options) { o.MetadataTTL = time.Minute })
	lease := w.hold(p.Lock("x", withTTL(10*time.Second)))
	for range 20 {
		time.Sleep(15 * time.Second)
		w.must(lease.Err())
		left, err := w.admin.PTTL(w.ctx(), w.metaKey("x")).Result()
		w.must(err)
		if left <= 0 {
			w.Fatal("the metadata of a name in use was deleted")
		}
	}
	w.release(lease)
}

// metaKey returns the key of the metadata of a name.
func (w *World) metaKey(name string) string {
	kind := w.P.Kind
	if kind == "redlock" {
		kind = "mutex"
	}
	return "{lock:" + name + "}:" + kind + ":meta"
}

// keysExpire checks the table in docs/operations.md: when unused keys expire.
func keysExpire(w *World) {
	const idle = 10 * time.Minute
	p := w.Process(func(o *lockkeeper.Options) { o.MetadataTTL = idle })
	lease := w.hold(p.Lock("x", withoutRenewal, withTTL(time.Minute)))
	w.checkKeyExpiry("x", time.Minute)
	left, err := w.admin.PTTL(w.ctx(), w.metaKey("x")).Result()
	w.must(err)
	want := idle + time.Minute + w.P.Window
	if d := left - want; d > 5*time.Millisecond || d < -w.slack()-5*time.Millisecond {
		w.Errorf("the metadata expires in %v, want MetadataTTL, the ttl and the window, %v", left, want)
	}
	if !w.P.MajorityLock {
		ctx, cancel := context.WithCancel(w.ctx())
		waits := w.lockAsync(ctx, p.Lock("x"))
		w.awaitWaiters("x", 1)
		const timeout = 3 * heartbeatInterval // see Process
		left, err := w.admin.PTTL(w.ctx(), w.queueKey("x")).Result()
		w.must(err)
		if left > timeout+time.Second || left < time.Second {
			w.Errorf("the queue expires in %v, want a second after the heartbeat timeout of %v", left, timeout)
		}
		cancel()
		w.await(waits, 0)
	}
	// With each use the metadata remains for at least half of MetadataTTL: its expiry is not extended at each use.
	if !w.Real {
		time.Sleep(idle * 2 / 5)
	}
	_ = lease.Release(w.ctx())
	left, err = w.admin.PTTL(w.ctx(), w.metaKey("x")).Result()
	w.must(err)
	if left < idle/2 {
		w.Errorf("the metadata expires %v after its last use, MetadataTTL is %v", left, idle)
	}
}

// maxElapsedFromOutageStart checks that MaxElapsed is not counted from the start of the wait.
func maxElapsedFromOutageStart(w *World) {
	const giveUp = 5 * heartbeatInterval
	holder := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = giveUp })
	waits := w.lockAsync(w.ctx(), p.Lock("x"))
	w.awaitWaiters("x", 1)
	time.Sleep(5 * giveUp / 4)
	p.Net.Down()
	time.Sleep(giveUp / 2)
	p.Net.Restore()
	time.Sleep(giveUp / 2)
	w.expectNotGranted(waits)
	w.release(holder)
	r := w.await(waits, 2*time.Second)
	w.must(r.err)
	w.release(r.lease)
}

// heartbeatTimeoutHonored checks that the server considers a waiter alive for its keeper's HeartbeatTimeout and no
// longer.
func heartbeatTimeoutHonored(w *World) {
	const timeout = 20 * heartbeatInterval
	holder := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	ctx, cancel := context.WithCancel(w.ctx())
	waits := w.lockAsync(ctx, w.Process(func(o *lockkeeper.Options) { o.HeartbeatTimeout = timeout }).Lock("x"))
	w.awaitWaiters("x", 1)
	now, err := w.admin.Time(w.ctx()).Result()
	w.must(err)
	list, err := w.admin.ZRangeArgsWithScores(w.ctx(), redis.ZRangeArgs{Key: w.queueKey("x"), Start: protocol.Heartbeats, Stop: "+inf", ByScore: true}).Result()
	w.must(err)
	if len(list) != 1 {
		w.Fatalf("heartbeats: %v", list)
	}
	if left := time.UnixMilli(int64(list[0].Score) - protocol.Heartbeats).Sub(now); left > timeout || left < timeout-heartbeatInterval-w.slack() {
		w.Errorf("the heartbeat lapses in %v, want %v (%s)", left, timeout, strconv.FormatFloat(list[0].Score, 'f', 0, 64))
	}
	cancel()
	w.await(waits, 0)
	w.release(holder)
}

func inspectTimes(w *World) {
	p := w.Process()
	l, ok := p.Lock("x").(waiterLister)
	if !ok {
		return // it does not list waiters
	}
	holder := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	ctx, cancel := context.WithCancel(w.ctx())
	waits := w.lockAsync(ctx, w.Process().Lock("x"))
	w.awaitWaiters("x", 1)
	time.Sleep(2 * heartbeatInterval)
	list, err := l.Waiters(w.ctx())
	w.must(err)
	if len(list) != 1 || list[0].WaitTime < 2*heartbeatInterval || list[0].WaitTime > 2*heartbeatInterval+w.slack()+10*time.Millisecond {
		w.Errorf("waiters %+v after %v", list, 2*heartbeatInterval)
	}
	cancel()
	w.await(waits, 0)
	ended, end := context.WithCancel(w.ctx())
	end()
	_, err = l.Waiters(ended)
	w.checkError(err, context.Canceled)
	w.must(p.Close())
	_, err = l.Waiters(w.ctx())
	w.checkError(err, lockkeeper.ErrClosed)
	w.release(holder)
}

func inspectHolder(w *World) {
	p, q := w.Process(), w.Process()
	l, err := fair.New(p.Keeper, "x", nil)
	w.must(err)
	if h, held, err := l.Holder(w.ctx()); held || err != nil || h != (lockkeeper.Holder{}) {
		w.Errorf("of a free lock: %+v, %t, %v", h, held, err)
	}
	lease := w.hold(q.Lock("x", withoutRenewal, withTTL(time.Minute)))
	h, held, err := l.Holder(w.ctx())
	w.must(err)
	if left := h.ExpiresIn; !held || h.Token != lease.Token() || h.Keeper != q.ID() || h.Fence != lease.Fence() || left > time.Minute || left < time.Minute-w.slack()-5*time.Millisecond {
		w.Errorf("%+v, %t", h, held)
	}
	w.release(lease)
	w.must(p.Close())
	_, _, err = l.Holder(w.ctx())
	w.checkError(err, lockkeeper.ErrClosed)
}

// foreignHolder checks that the lease of another library excludes others until it expires. They are granted the lock
// at that moment, or, if it is deleted, at their next heartbeat, because no message is sent.
func foreignHolder(w *World) {
	key := w.P.Key("x")
	take := func() { w.must(w.admin.Set(w.ctx(), key, "their token", ttl).Err()) }
	take()
	l := w.Process(slowHeartbeats).Lock("x")
	_, err := l.TryLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	ends := time.Now().Add(ttl)
	r := w.await(w.lockAsync(w.ctx(), l), ttl+50*time.Millisecond)
	w.must(r.err)
	if late := r.at.Sub(ends); !w.Real && (late < -50*time.Millisecond || late > 50*time.Millisecond) {
		w.Errorf("it was granted the lock %v after the end of a foreign lease", late)
	}
	_, err = w.Process().Lock("x").Adopt(w.ctx(), "their token")
	w.checkError(err, lockkeeper.ErrLost)
	w.release(r.lease)

	w.must(w.admin.Set(w.ctx(), key, "their token", time.Minute).Err())
	waits := w.lockAsync(w.ctx(), w.Process().Lock("x"))
	w.awaitWaiters("x", 1)
	w.must(w.admin.Del(w.ctx(), key).Err())
	r = w.await(waits, heartbeatInterval)
	w.must(r.err)
	if v, err := w.admin.Get(w.ctx(), key).Result(); err != nil || v != r.lease.Token() {
		w.Errorf("the key is %q, %v, want the token", v, err)
	}
	w.release(r.lease)
}
