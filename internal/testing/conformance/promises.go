package conformance

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
)

// promises are cases for statements in the documentation that no other case covers.
var promises = []Case{
	{Name: "05_ended_or_invalid_calls_send_nothing", Test: nothingSent},
	{Name: "11_ttl_default_and_bounds", Test: ttlBounds},
	{Name: "13_adopt_extends_to_full_ttl", Test: adoptExtendsToTTL},
	{Name: "22_unsent_extend_changes_nothing", Test: unsentExtend},
	{Name: "54_close_retries_releases", Test: closeRetriesReleases},
	{Name: "54_close_reports_loss", Test: closeReportsLoss},
	{Name: "56_unlimited_retries_outlast_outage", Embedded: true, Test: unlimitedRetries},
	{Name: "58_do_reports_loss_and_honors_context", Test: doReportsLoss},
	{Name: "contexts_end_before_release_is_sent", Test: contextsEndBeforeRelease},
	{Name: "metadata_of_held_lease_is_kept", Embedded: true, Test: metadataKept},
	{Name: "keys_expire_as_documented", Test: keysExpire},
}

var queuedPromises = []Case{
	{Name: "33_max_elapsed_counts_from_outage_start", Test: maxElapsedFromOutageStart},
	{Name: "33_heartbeat_counts_until_timeout", Test: heartbeatTimeoutHonored},
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
		check.That(w, len(sent) != 0, "%s: nothing was sent", what)
		for len(sent) > 0 {
			check.That(w, <-sent, "%s: the release was sent, and the lease's contexts have not ended", what)
		}
		for _, c := range []context.Context{ctx, bound, child} {
			check.That(w, errors.Is(context.Cause(c), lockkeeper.ErrReleased), "%s: cause %v", what, context.Cause(c))
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
		check.Is(w, p.Close(), nil, "%s", what)
		restore.Stop()
		w.checkError(await(w, waits, 0).err, lockkeeper.ErrClosed)
		left := w.holders("x")
		check.That(w, len(left) == 0, "%s: after Close the lock is held by %v", what, left)
		if !w.P.MajorityLock {
			n := w.admin.ZCount(w.ctx(), w.queueKey("busy"), "-inf", protocol.BehindWaiters).Val()
			check.That(w, n == 0, "%s: after Close %d wait", what, n)
		}
		w.release(other)
	}
	w.checkOnlyTombstones()
}

func closeReportsLoss(w *World) {
	p := w.Process()
	w.hold(p.Lock("x", withTTL(time.Minute)))
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	w.checkError(p.Close(), lockkeeper.ErrLost)
}

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
	for _, d := range []time.Duration{0, -1, time.Millisecond, 1000 * 24 * time.Hour, 3 * ttl} { // the last exceeds MaxLifetime
		w.checkError(held.Extend(w.ctx(), d), lockkeeper.ErrInvalid)
	}
	w.checkError(errorOf(l.Adopt(w.ctx(), "")), lockkeeper.ErrInvalid)
	w.settle()
	check.That(w, p.Net.Scripts() == 0, "%d scripts were sent", p.Net.Scripts())
	w.release(held)
	w.checkOnlyTombstones()
}

func ttlBounds(w *World) {
	const least, most = 10 * time.Millisecond, 365 * 24 * time.Hour
	p := w.Process()
	for d, fits := range map[time.Duration]bool{least - 1: false, least: true, most: true, most + 1: false} {
		l, err := w.P.New(p.Keeper, "x", Options{TTL: d})
		check.That(w, fits == (err == nil), "TTL %v: %v", d, err)
		if !fits {
			w.checkError(err, lockkeeper.ErrInvalid)
			continue
		}
		if d == most || !w.Real { // on a loaded machine the shortest would be lost
			w.release(w.hold(l))
		}
	}
	lease := w.hold(must.Get(w.P.New(p.Keeper, "y", Options{}))(w))
	check.Between(w, left(lease), 25*time.Second, 30*time.Second, "its holder relies on it by default")
	w.checkKeyExpiry("y", 30*time.Second)
	w.must(lease.Extend(w.ctx(), most))
	check.Between(w, left(lease), most*98/100, most, "its holder relies on the extended lease")
	w.checkError(lease.Extend(w.ctx(), most+1), lockkeeper.ErrInvalid)
	w.release(lease)
}

// checkKeyExpiry checks the expiry of the lock's key, which is that of its only lease.
func (w *World) checkKeyExpiry(name string, want time.Duration) {
	w.Helper()
	left := must.Get(w.admin.PTTL(w.ctx(), w.P.Key(name)).Result())(w)
	check.That(w, left <= want && left >= want-w.slack()-5*time.Millisecond, "the lock's key expires in %v, want %v", left, want)
}

func adoptExtendsToTTL(w *World) {
	first := w.hold(w.Process().Lock("x", withoutRenewal))
	lease := must.Get(w.Process().Lock("x", withoutRenewal, withTTL(time.Minute)).Adopt(w.ctx(), first.Token()))(w)
	check.Between(w, left(lease), 55*time.Second, time.Minute, "its holder relies on it")
	w.checkKeyExpiry("x", time.Minute)
	w.release(lease)
}

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
	w.checkError(lease.Extend(w.ctx(), 10*time.Second), lockkeeper.ErrUnavailable)
	check.That(w, time.Since(start) <= 10*time.Second+w.slack(), "it lasted %v", time.Since(start))
	check.That(w, lease.Deadline() == before, "its holder relies on it for %v less", before.Sub(lease.Deadline()))
	p.Net.Restore()
	w.release(lease)
}

// unlimitedRetries checks that with a negative MaxElapsed only the context limits the wait during an outage.
func unlimitedRetries(w *World) {
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = -1 })
	p.Crash()
	waits := w.lockAsync(w.ctx(), p.Lock("x"))
	time.Sleep(time.Minute)
	w.expectNotGranted(waits)
	p.Net.Restore()
	w.release(w.awaitGrant(waits, 5*time.Second).lease)
}

// doReportsLoss checks that Do reports a loss that its function has not noticed, and that a server which does not
// reply does not block it.
func doReportsLoss(w *World) {
	p := w.Process()
	w.checkError(p.Lock("x").Do(w.ctx(), func(ctx context.Context, _ uint64) error {
		w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
		<-ctx.Done()
		w.checkError(context.Cause(ctx), lockkeeper.ErrLost)
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
	check.That(w, time.Since(start) <= time.Second+w.slack(), "Do returned %v after its context had ended", time.Since(start))
}

func metadataKept(w *World) {
	p := w.Process(func(o *lockkeeper.Options) { o.MetadataTTL = time.Minute })
	lease := w.hold(p.Lock("x", withTTL(10*time.Second)))
	for range 20 {
		time.Sleep(15 * time.Second)
		w.must(lease.Err())
		left := must.Get(w.admin.PTTL(w.ctx(), w.metaKey("x")).Result())(w)
		must.That(w, left > 0, "the metadata of a name in use was deleted")
	}
	w.release(lease)
}

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
	left := must.Get(w.admin.PTTL(w.ctx(), w.metaKey("x")).Result())(w)
	want := idle + time.Minute + 2*w.P.Window
	d := left - want
	check.That(w, d <= 5*time.Millisecond && d >= -w.slack()-5*time.Millisecond,
		"the metadata expires in %v, want MetadataTTL, the ttl and two windows, %v", left, want)
	if !w.P.MajorityLock {
		ctx, cancel := context.WithCancel(w.ctx())
		waits := w.acquireAsync(ctx, 1, p.Lock("x").Lock)
		const timeout = 3 * heartbeatInterval // see Process
		left := must.Get(w.admin.PTTL(w.ctx(), w.queueKey("x")).Result())(w)
		check.That(w, left <= timeout+time.Second && left >= time.Second,
			"the queue expires in %v, want a second after the heartbeat timeout of %v", left, timeout)
		cancel()
		await(w, waits, 0)
	}
	// With each use the metadata remains for at least half of MetadataTTL: its expiry is not extended at each use.
	if !w.Real {
		time.Sleep(idle * 2 / 5)
	}
	_ = lease.Release(w.ctx())
	left = must.Get(w.admin.PTTL(w.ctx(), w.metaKey("x")).Result())(w)
	check.That(w, left >= idle/2, "the metadata expires %v after its last use, MetadataTTL is %v", left, idle)
}

func maxElapsedFromOutageStart(w *World) {
	const giveUp = 5 * heartbeatInterval
	holder := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	p := w.Process(func(o *lockkeeper.Options) { o.Retry.MaxElapsed = giveUp })
	waits := w.acquireAsync(w.ctx(), 1, p.Lock("x").Lock)
	time.Sleep(5 * giveUp / 4)
	p.Net.Down()
	time.Sleep(giveUp / 2)
	p.Net.Restore()
	time.Sleep(giveUp / 2)
	w.expectNotGranted(waits)
	w.release(holder)
	w.release(w.awaitGrant(waits, 2*time.Second).lease)
}

// heartbeatTimeoutHonored checks that the server considers a waiter alive for its keeper's HeartbeatTimeout and no
// longer.
func heartbeatTimeoutHonored(w *World) {
	const timeout = 20 * heartbeatInterval
	holder := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	ctx, cancel := context.WithCancel(w.ctx())
	waits := w.acquireAsync(ctx, 1, w.Process(func(o *lockkeeper.Options) { o.HeartbeatTimeout = timeout }).Lock("x").Lock)
	now := w.serverTime()
	list := must.Get(w.admin.ZRangeArgsWithScores(w.ctx(), redis.ZRangeArgs{Key: w.queueKey("x"), Start: int64(protocol.Heartbeats), Stop: "+inf", ByScore: true}).Result())(w)
	must.That(w, len(list) == 1, "heartbeats: %v", list)
	lapses := time.UnixMilli(int64(list[0].Score) - protocol.Heartbeats).Sub(now)
	check.Between(w, lapses, timeout-heartbeatInterval-w.slack(), timeout, "the heartbeat lapses")
	cancel()
	await(w, waits, 0)
	w.release(holder)
}

// foreignHolder checks that the lease of another library excludes others until it expires. They are granted the lock
// at that moment, or, if it is deleted, at their next heartbeat, because no message is sent.
func foreignHolder(w *World) {
	key := w.P.Key("x")
	take := func() { w.must(w.admin.Set(w.ctx(), key, "their token", ttl).Err()) }
	take()
	l := w.Process(slowHeartbeats).Lock("x")
	w.checkError(errorOf(l.TryLock(w.ctx())), lockkeeper.ErrNotAcquired)
	ends := time.Now().Add(ttl)
	r := w.awaitGrant(w.lockAsync(w.ctx(), l), ttl+50*time.Millisecond)
	w.inTime(r.at.Sub(ends), -50*time.Millisecond, 50*time.Millisecond, "granted after the end of a foreign lease")
	w.checkError(errorOf(w.Process().Lock("x").Adopt(w.ctx(), "their token")), lockkeeper.ErrLost)
	w.release(r.lease)

	w.must(w.admin.Set(w.ctx(), key, "their token", time.Minute).Err())
	waits := w.acquireAsync(w.ctx(), 1, w.Process().Lock("x").Lock)
	w.must(w.admin.Del(w.ctx(), key).Err())
	r = w.awaitGrant(waits, heartbeatInterval)
	v, err := w.admin.Get(w.ctx(), key).Result()
	check.That(w, err == nil && v == r.lease.Token(), "the key is %q, %v, want the token", v, err)
	w.release(r.lease)
}
