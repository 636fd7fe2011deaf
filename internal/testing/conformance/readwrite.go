package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// ReadWrite are the cases of the read-write lock alone.
var ReadWrite = []Case{
	{Name: "29_read_after_write_has_larger_fence", Test: readFences},
	{Name: "36_readers_share_writer_excludes", Test: readersShareWriterExcludes},
	{Name: "37_readers_queue_behind_waiting_writer", Test: readersQueueBehindWriter},
	{Name: "38_crashed_waiting_writer_blocks_nobody", Test: waitingWriterCrashes},
	{Name: "38_unresponsive_writer_blocks_for_heartbeat_timeout", Test: waitingWriterUnresponsive},
	{Name: "39_only_crashed_readers_lease_expires", Test: readerCrashes},
	{Name: "39_reader_crashes_then_others_release", Test: readerCrashesOthersRelease},
	{Name: "40_writer_admitted_after_earlier_readers", Test: writerAdmitted},
	{Name: "41_readers_admitted_after_writer_streak", Test: writerStreak},
	{Name: "42_second_upgrade_fails_immediately", Test: upgradeConflict},
	{Name: "42_disconnected_upgrade_yields_to_another", Test: disconnectedUpgrade},
	{Name: "42_upgrade_notified_of_crashed_reader", Test: upgradeAfterReaderCrash},
	{Name: "42_upgrade_can_be_retried_immediately", Test: upgradeRetry},
	{Name: "42_upgrade_precedes_writers_and_keeps_lease", Test: upgradePrecedesWriters},
	{Name: "42_upgrade_of_only_reader_does_not_wait", Test: upgradeOnlyReader},
	{Name: "42_failed_upgrade_changes_nothing", Test: failedUpgrade},
	{Name: "43_downgrade_has_no_gap_and_admits_readers", Test: downgrade},
	{Name: "43_cancelled_conversion_undone_or_lost", Test: cancelledConversion(true)},
	{Name: "43_cancelled_downgrade_undone_or_lost", Test: cancelledConversion(false)},
	{Name: "43_cancelled_conversion_keeps_lease", Test: cancelledConversionKeepsLease},
	{Name: "43_in_doubt_conversion_keeps_lease", Test: conversionInDoubt(true)},
	{Name: "43_in_doubt_downgrade_keeps_lease", Test: conversionInDoubt(false)},
	{Name: "61_conversion_outage_is_not_contention", Alone: true, Test: outageDuringConversion},
	{Name: "conversion_is_not_a_loss", Test: conversionIsNotALoss},
	{Name: "inspect_readers_and_writers", Test: inspectReaders},
	{Name: "invalid_leases_and_streaks_rejected", Test: invalidConversions},
	{Name: "invalid_conversions_refused", Test: conversionRefused},
	{Name: "default_writer_streak", Test: defaultWriterStreak},
}

// rw returns the read-write lock of a process.
func (p *Process) rw(name string, streak ...int) *rwlock.Lock {
	p.w.Helper()
	o := &rwlock.Options{TTL: ttl}
	if len(streak) > 0 {
		o.MaxWriterStreak = streak[0]
	}
	l, err := rwlock.New(p.Keeper, name, o)
	p.w.must(err)
	return l
}

type acquire = func(context.Context) (*lockkeeper.Lease, error)

// mustAcquire acquires a lease or ends the test.
func (w *World) mustAcquire(f acquire) *lockkeeper.Lease {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx(), 20*time.Second)
	defer cancel()
	lease, err := f(ctx)
	w.must(err)
	return lease
}

// acquireAsync starts an acquisition in the background and returns when n waiters are in the queue.
func (w *World) acquireAsync(ctx context.Context, n int64, f acquire) chan result {
	w.Helper()
	ch := make(chan result, 1)
	go func() {
		lease, err := f(ctx)
		ch <- result{lease, err, time.Now()}
	}()
	w.awaitWaiters("x", n)
	return ch
}

func readFences(w *World) {
	l := w.Process().rw("x")
	last := uint64(0)
	for i := range 6 {
		f := l.RLock
		if i%2 == 0 {
			f = l.Lock
		}
		lease := w.mustAcquire(f)
		if lease.Fence() <= last {
			w.Errorf("fence %d after %d", lease.Fence(), last)
		}
		last = lease.Fence()
		w.release(lease)
	}
}

func readersShareWriterExcludes(w *World) {
	ps := []*Process{w.Process(), w.Process(), w.Process()}
	var leases []*lockkeeper.Lease
	for i := range 12 {
		leases = append(leases, w.mustAcquire(ps[i%3].rw("x").RLock))
	}
	_, err := ps[0].rw("x").TryLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	writer := w.acquireAsync(w.ctx(), 1, ps[0].rw("x").Lock)
	for _, l := range leases {
		w.expectNotGranted(writer)
		w.release(l)
	}
	lease := w.expectGranted(writer)
	_, err = ps[1].rw("x").TryRLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	w.release(lease)
	w.release(w.mustAcquire(ps[1].rw("x").TryRLock))
	w.checkClean()
}

func readersQueueBehindWriter(w *World) {
	l := w.Process().rw("x")
	first := w.mustAcquire(l.RLock)
	_, err := w.Process().rw("x").TryLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	w.release(w.mustAcquire(l.TryRLock)) // the refused try left no queue entry

	ctx, cancel := context.WithCancel(w.ctx())
	writer := w.acquireAsync(ctx, 1, w.Process().rw("x").Lock)
	_, err = l.TryRLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	reader := w.acquireAsync(w.ctx(), 2, w.Process().rw("x").RLock)
	time.Sleep(2 * heartbeatInterval)
	w.expectNotGranted(reader)
	cancel() // without the writer they need not wait
	w.checkError(w.await(writer, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	w.release(w.expectGranted(reader))
	w.release(first)
	w.checkClean()
}

func waitingWriterCrashes(w *World) {
	l := w.Process().rw("x")
	first := w.mustAcquire(l.RLock)
	dead := w.Process()
	w.acquireAsync(w.ctx(), 1, dead.rw("x").Lock)
	dead.Crash()
	w.eventually("the heartbeat to lapse", func() bool {
		n, err := w.admin.PubSubNumSub(w.ctx(), "lock:wake:"+dead.ID()).Result()
		return err == nil && n["lock:wake:"+dead.ID()] == 0
	})
	w.release(w.mustAcquire(l.TryRLock))
	w.release(first)
}

func waitingWriterUnresponsive(w *World) {
	l := w.Process().rw("x")
	first := w.mustAcquire(l.RLock)
	frozen := w.Process()
	w.acquireAsync(w.ctx(), 1, frozen.rw("x").Lock)
	frozen.Net.Blackhole() // its subscription remains
	start := time.Now()
	reader := make(chan result, 1)
	go func() {
		lease, err := w.Process().rw("x").RLock(w.ctx())
		reader <- result{lease, err, time.Now()}
	}()
	r := w.await(reader, 3*heartbeatInterval+heartbeatInterval)
	w.must(r.err)
	if d := r.at.Sub(start); d > 4*heartbeatInterval+w.slack() {
		w.Errorf("readers waited %v", d)
	}
	w.release(r.lease)
	w.release(first)
}

func readerCrashes(w *World) {
	a, b := w.Process(), w.Process()
	dead, alive := w.mustAcquire(a.rw("x").RLock), w.mustAcquire(b.rw("x").RLock)
	at := time.Now()
	writer := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").Lock)
	a.Crash()
	time.Sleep(ttl / 2)
	w.must(alive.Err())
	w.release(alive)
	r := w.await(writer, ttl+50*time.Millisecond)
	w.must(r.err)
	if d := r.at.Sub(at); !w.Real && (d < ttl/2 || d > ttl+50*time.Millisecond) {
		w.Errorf("the writer was granted the lock after %v, the crashed reader's ttl is %v", d, ttl)
	}
	w.release(r.lease)
	w.awaitLoss(dead, 0)
}

// readerCrashesOthersRelease checks that a writer, which expects the longest of the read leases, does not wait until
// its next heartbeat when that lease is released and only the shorter lease of a crashed reader is left.
func readerCrashesOthersRelease(w *World) {
	a, b := w.Process(), w.Process()
	long := func(p *Process) *rwlock.Lock {
		l, err := rwlock.New(p.Keeper, "x", &rwlock.Options{TTL: time.Minute})
		w.must(err)
		return l
	}
	dead, alive := w.mustAcquire(a.rw("x").RLock), w.mustAcquire(long(b).RLock)
	writer := w.acquireAsync(w.ctx(), 1, w.Process(slowHeartbeats).rw("x").Lock)
	a.Crash()
	w.release(alive)
	r := w.await(writer, ttl+50*time.Millisecond)
	w.must(r.err)
	w.checkFenceRises(dead, r.lease)
	w.release(r.lease)
	w.checkClean()
}

func writerAdmitted(w *World) {
	before := []*lockkeeper.Lease{w.mustAcquire(w.Process().rw("x").RLock), w.mustAcquire(w.Process().rw("x").RLock)}
	writer := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").Lock)
	var after []chan result
	for i := range 5 {
		after = append(after, w.acquireAsync(w.ctx(), int64(2+i), w.Process().rw("x").RLock))
	}
	second := w.acquireAsync(w.ctx(), 7, w.Process().rw("x").Lock)
	w.release(before[0])
	w.expectNotGranted(writer)
	w.release(before[1])
	lease := w.expectGranted(writer)
	w.release(lease)
	w.release(w.expectGranted(second)) // consecutive writers
	for _, ch := range after {
		w.release(w.expectGranted(ch))
	}
	w.checkClean()
}

func writerStreak(w *World) {
	for streak, want := range map[int]string{1: "wrwwww", 2: "wwrwww", -1: "wwwwwr", 16: "wwwwwr"} {
		first := w.mustAcquire(w.Process().rw("x", streak).Lock)
		order := make(chan string, 6)
		turn := func(what string, f acquire) {
			lease, err := f(w.ctx())
			if err != nil {
				w.Error(err)
			}
			order <- what
			_ = lease.Release(w.ctx())
		}
		l := w.Process().rw("x", streak)
		go turn("r", l.RLock)
		w.awaitWaiters("x", 1)
		for i := range 5 {
			go turn("w", w.Process().rw("x", streak).Lock)
			w.awaitWaiters("x", int64(2+i))
		}
		w.release(first)
		var got strings.Builder
		for range 6 {
			got.WriteString(<-order)
		}
		if got.String() != want {
			w.Errorf("with MaxWriterStreak %d they were served as %s, want %s", streak, got.String(), want)
		}
		w.checkClean()
	}
}

func upgradeConflict(w *World) {
	a, b := w.Process().rw("x"), w.Process().rw("x")
	ra, rb := w.mustAcquire(a.RLock), w.mustAcquire(b.RLock)
	ch := w.acquireAsync(w.ctx(), 1, func(ctx context.Context) (*lockkeeper.Lease, error) { return a.Upgrade(ctx, ra) })
	_, err := b.Upgrade(w.ctx(), rb)
	w.checkError(err, rwlock.ErrUpgradeConflict)
	w.must(rb.Err())
	w.expectNotGranted(ch)
	w.release(rb)
	lease := w.expectGranted(ch)
	w.checkError(ra.Err(), lockkeeper.ErrReleased)
	w.release(ra) // it has no effect
	_, err = b.TryRLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	w.release(lease)
	w.checkClean()
}

// disconnectedUpgrade checks that an upgrade that was cut off and another one that has begun meanwhile do not wait
// for each other.
func disconnectedUpgrade(w *World) {
	long := func(p *Process) *rwlock.Lock {
		l, err := rwlock.New(p.Keeper, "x", &rwlock.Options{TTL: time.Minute})
		w.must(err)
		return l
	}
	pa, pb := w.Process(), w.Process()
	a, b := long(pa), long(pb)
	ra, rb := w.mustAcquire(a.RLock), w.mustAcquire(b.RLock)
	first := w.acquireAsync(w.ctx(), 1, func(ctx context.Context) (*lockkeeper.Lease, error) { return a.Upgrade(ctx, ra) })
	pa.Crash()
	time.Sleep(4 * heartbeatInterval) // until its heartbeat lapses
	second := make(chan result, 1)
	go func() {
		lease, err := b.Upgrade(w.ctx(), rb)
		second <- result{lease, err, time.Now()}
	}()
	w.eventually("the other upgrade to wait", func() bool {
		list, err := b.Waiters(w.ctx())
		return err == nil && len(list) > 0 && list[len(list)-1].Keeper == pb.ID()
	})
	pa.Net.Restore()
	w.checkError(w.await(first, 2*time.Second).err, rwlock.ErrUpgradeConflict)
	w.must(ra.Err())
	w.expectNotGranted(second)
	w.release(ra)
	w.release(w.expectGranted(second))
	w.checkClean()
}

// upgradeAfterReaderCrash lets the other reader's lease expire between two heartbeats, while the upgrade's own lease
// is renewed.
func upgradeAfterReaderCrash(w *World) {
	slow := w.Process(func(o *lockkeeper.Options) { o.HeartbeatInterval, o.HeartbeatTimeout = 20*ttl, 60*ttl })
	a := slow.rw("x")
	ra := w.mustAcquire(a.RLock)
	dead := w.Process()
	w.mustAcquire(dead.rw("x").RLock)
	dead.Crash()
	up := w.acquireAsync(w.ctx(), 1, func(ctx context.Context) (*lockkeeper.Lease, error) { return a.Upgrade(ctx, ra) })
	r := w.await(up, ttl+50*time.Millisecond)
	w.must(r.err)
	w.release(r.lease)
}

func upgradeRetry(w *World) {
	a := w.Process().rw("x")
	ra, rb := w.mustAcquire(a.RLock), w.mustAcquire(w.Process().rw("x").RLock)
	for range 20 {
		ctx, cancel := context.WithCancel(w.ctx())
		ch := make(chan result, 1)
		go func() {
			lease, err := a.Upgrade(ctx, ra)
			ch <- result{lease, err, time.Now()}
		}()
		w.eventually("the upgrade to wait", func() bool {
			w.expectNotGranted(ch)
			list, err := a.Waiters(w.ctx())
			return err == nil && len(list) > 0
		})
		if !w.Real {
			synctest.Wait() // until the reply that it waits has arrived
		}
		cancel()
		w.checkError(w.await(ch, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	}
	up := make(chan result, 1)
	go func() {
		lease, err := a.Upgrade(w.ctx(), ra)
		up <- result{lease, err, time.Now()}
	}()
	time.Sleep(heartbeatInterval)
	w.expectNotGranted(up)
	w.release(rb)
	w.release(w.expectGranted(up))
	w.checkOnlyTombstones() // of requests that were given up while under way
}

func upgradePrecedesWriters(w *World) {
	a := w.Process().rw("x")
	ra, rb := w.mustAcquire(a.RLock), w.mustAcquire(w.Process().rw("x").RLock)
	ctx := ra.Context(w.ctx())
	writer := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").Lock)
	up := w.acquireAsync(w.ctx(), 2, func(ctx context.Context) (*lockkeeper.Lease, error) { return a.Upgrade(ctx, ra) })
	time.Sleep(3 * ttl)
	w.must(ra.Err())
	w.expectNotGranted(up)
	w.release(rb)
	lease := w.expectGranted(up)
	w.expectNotGranted(writer)
	if lease.Fence() <= ra.Fence() {
		w.Errorf("fence %d after %d", lease.Fence(), ra.Fence())
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, lockkeeper.ErrReleased) {
		w.Errorf("the cause of the read lease's contexts is %v", cause)
	}
	w.release(lease)
	w.release(w.expectGranted(writer))
	w.checkClean()
}

func upgradeOnlyReader(w *World) {
	a := w.Process().rw("x")
	lease, err := a.Upgrade(w.ctx(), w.mustAcquire(a.RLock))
	w.must(err)
	time.Sleep(2 * ttl)
	w.must(lease.Err())
	w.release(lease)
	w.checkClean()
}

func failedUpgrade(w *World) {
	a := w.Process().rw("x")
	ra, rb := w.mustAcquire(a.RLock), w.mustAcquire(w.Process().rw("x").RLock)
	ctx, cancel := context.WithCancel(w.ctx())
	up := w.acquireAsync(ctx, 1, func(ctx context.Context) (*lockkeeper.Lease, error) { return a.Upgrade(ctx, ra) })
	cancel()
	w.checkError(w.await(up, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	w.awaitWaiters("x", 0)
	time.Sleep(2 * ttl)
	w.must(ra.Err())
	w.release(w.mustAcquire(a.TryRLock))

	// If the read lease is deleted while the upgrade waits, there is nothing to upgrade.
	up = w.acquireAsync(w.ctx(), 1, func(ctx context.Context) (*lockkeeper.Lease, error) { return a.Upgrade(ctx, ra) })
	w.must(w.admin.ZRem(w.ctx(), w.P.Key("x"), ra.Token()).Err())
	w.checkError(w.await(up, 2*ttl).err, lockkeeper.ErrLost)
	w.checkError(ra.Err(), lockkeeper.ErrLost)
	_, err := a.Upgrade(w.ctx(), ra)
	w.checkError(err, lockkeeper.ErrLost)
	w.release(rb)
	_, err = a.Upgrade(w.ctx(), rb)
	if err == nil {
		w.Error("a lease of another keeper was upgraded")
	}

	// The lease is released while the upgrade waits.
	ra, rb = w.mustAcquire(a.RLock), w.mustAcquire(w.Process().rw("x").RLock)
	up = w.acquireAsync(w.ctx(), 1, func(ctx context.Context) (*lockkeeper.Lease, error) { return a.Upgrade(ctx, ra) })
	w.release(ra)
	w.checkError(w.await(up, 0).err, lockkeeper.ErrReleased)
	w.release(rb)
	w.checkClean()
}

func downgrade(w *World) {
	a := w.Process().rw("x")
	write := w.mustAcquire(a.Lock)
	ctx := write.Context(w.ctx())
	reader := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").RLock)
	writer := w.acquireAsync(w.ctx(), 2, w.Process().rw("x").Lock)
	late := w.acquireAsync(w.ctx(), 3, w.Process().rw("x").RLock)
	read, err := a.Downgrade(w.ctx(), write)
	w.must(err)
	<-ctx.Done()
	w.checkError(write.Err(), lockkeeper.ErrReleased)
	if read.Fence() <= write.Fence() {
		w.Errorf("fence %d after %d", read.Fence(), write.Fence())
	}
	w.expectNotGranted(writer) // it waits, and therefore readers wait behind it
	w.expectNotGranted(reader)
	w.release(read)
	w.release(w.expectGranted(writer))
	w.release(w.expectGranted(reader))
	w.release(w.expectGranted(late))

	// Without a writer in the queue the downgrade admits readers.
	write = w.mustAcquire(a.Lock)
	reader = w.acquireAsync(w.ctx(), 1, w.Process().rw("x").RLock)
	late = w.acquireAsync(w.ctx(), 2, w.Process().rw("x").RLock)
	read, err = a.Downgrade(w.ctx(), write)
	w.must(err)
	w.release(w.expectGranted(reader))
	w.release(w.expectGranted(late))
	time.Sleep(2 * ttl)
	w.must(read.Err())
	_, err = w.Process().rw("x").TryLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	again, err := a.Upgrade(w.ctx(), read)
	w.must(err)
	w.release(again)

	// A lease that has ended.
	write = w.mustAcquire(a.Lock)
	w.must(w.admin.Del(w.ctx(), w.P.Key("x")).Err())
	_, err = a.Downgrade(w.ctx(), write)
	w.checkError(err, lockkeeper.ErrLost)
	w.checkError(write.Err(), lockkeeper.ErrLost)
	w.checkClean()
}

// conversionIsNotALoss checks that a renewal that the server refuses because of a conversion under way does not
// report a loss.
func conversionIsNotALoss(w *World) {
	var lost atomic.Int32
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Lost = func(lockkeeper.Event) { lost.Add(1) }
	})
	l, err := rwlock.New(p.Keeper, "x", &rwlock.Options{TTL: 30 * time.Millisecond})
	w.must(err)
	if w.Real { // a loaded machine may lose such a short lease
		l = p.rw("x")
	}
	lease := w.mustAcquire(l.RLock)
	for i := range 60 {
		f := l.Upgrade
		if i%2 == 1 {
			f = l.Downgrade
		}
		lease, err = f(w.ctx(), lease)
		w.must(err)
		time.Sleep(time.Duration(i%7) * 3 * time.Millisecond)
	}
	w.release(lease)
	if n := lost.Load(); n != 0 {
		w.Errorf("%d leases were reported lost", n)
	}
	w.checkClean()
}

func inspectReaders(w *World) {
	p := w.Process()
	l := p.rw("x")
	a, b := w.mustAcquire(l.RLock), w.mustAcquire(l.RLock)
	ctx, cancel := context.WithCancel(w.ctx())
	write := w.acquireAsync(ctx, 1, l.Lock)
	read := w.acquireAsync(ctx, 2, l.RLock)
	up := w.acquireAsync(ctx, 3, func(ctx context.Context) (*lockkeeper.Lease, error) { return l.Upgrade(ctx, a) })
	holders, err := l.Holders(w.ctx())
	w.must(err)
	for _, h := range holders {
		if h.Writes || h.Keeper != p.ID() || h.ExpiresIn <= 0 || h.ExpiresIn > ttl || h.Fence != a.Fence() && h.Fence != b.Fence() {
			w.Errorf("holder %+v", h)
		}
	}
	waiters, err := l.Waiters(w.ctx())
	w.must(err)
	if len(holders) != 2 || len(waiters) != 3 || !waiters[0].Writes || !waiters[1].Writes || waiters[2].Writes {
		w.Errorf("holders %+v, waiters %+v", holders, waiters)
	}
	for _, x := range waiters {
		if x.WaitTime > 10*time.Second {
			w.Errorf("waiter %+v", x)
		}
	}
	cancel()
	for _, ch := range []chan result{write, read, up} {
		w.checkError(w.await(ch, 0).err, lockkeeper.ErrNotAcquired, context.Canceled)
	}
	w.release(a)
	w.release(b)
	w.awaitWaiters("x", 0) // so that the next is granted by a reply: a message may overtake one, which can leave a tombstone
	lease := w.mustAcquire(l.Lock)
	holders, err = l.Holders(w.ctx())
	w.must(err)
	if len(holders) != 1 || !holders[0].Writes {
		w.Errorf("holders %+v", holders)
	}
	w.release(lease)
	w.checkClean()
}

func invalidConversions(w *World) {
	p := w.Process()
	l := p.rw("x")
	read := w.mustAcquire(l.RLock)
	_, err := l.Downgrade(w.ctx(), read)
	w.checkError(err, lockkeeper.ErrInvalid)
	_, err = p.rw("y").Upgrade(w.ctx(), read)
	w.checkError(err, lockkeeper.ErrInvalid)
	write := w.mustAcquire(p.rw("y").Lock)
	_, err = p.rw("y").Upgrade(w.ctx(), write)
	w.checkError(err, lockkeeper.ErrInvalid)
	_, err = l.Upgrade(w.ctx(), nil)
	w.checkError(err, lockkeeper.ErrReleased)
	w.release(read)
	w.release(write)
	_, err = l.Upgrade(w.ctx(), read)
	w.checkError(err, lockkeeper.ErrReleased)
	_, err = rwlock.New(p.Keeper, "x", &rwlock.Options{MaxWriterStreak: 1_000_001})
	w.checkError(err, lockkeeper.ErrInvalid)
	if !strings.Contains(err.Error(), "MaxWriterStreak 1000001") {
		w.Errorf("the error does not name it: %v", err)
	}
}

// conversion is a lease and its conversion under way.
type conversion struct {
	p                   *Process
	l                   *rwlock.Lock
	up                  bool
	original, converted *lockkeeper.Lease
	err                 error
}

// cancelConversion cancels a conversion under way during a fault of the network that lasts for a while.
func (w *World) cancelConversion(up bool, what string, fault faultnet.Fault, lasts time.Duration) *conversion {
	w.Helper()
	c := &conversion{p: w.Process(), up: up}
	var err error
	c.l, err = rwlock.New(c.p.Keeper, "x", &rwlock.Options{TTL: 20 * ttl})
	w.must(err)
	take, convert := c.l.Lock, c.l.Downgrade
	if up {
		take, convert = c.l.RLock, c.l.Upgrade
	}
	c.original = w.mustAcquire(take)
	w.release(w.mustAcquire(c.p.rw("y").TryLock)) // opens connections and loads scripts
	c.p.Net.Break(what, 1<<30, fault)
	restore := time.AfterFunc(lasts, c.p.Net.Restore)
	w.Cleanup(func() { restore.Stop() })
	ctx, cancel := context.WithTimeout(w.ctx(), ttl/6)
	defer cancel()
	began := time.Now()
	c.converted, c.err = convert(ctx, c.original)
	if took := time.Since(began); took > ttl/6+time.Second+w.slack() {
		w.Errorf("it returned after %v", took)
	}
	return c
}

// checkExcludes checks that the lease excludes writers, and readers or not, for longer than its ttl, and that it can
// be released.
func (w *World) checkExcludes(lease *lockkeeper.Lease, readers bool) {
	w.Helper()
	if !w.Real {
		time.Sleep(50 * ttl)
	}
	w.must(lease.Err())
	if left := time.Until(lease.Deadline()); left < ttl {
		w.Errorf("its holder relies on it for %v", left)
	}
	other := w.Process().rw("x")
	_, err := other.TryLock(w.ctx())
	w.checkError(err, lockkeeper.ErrNotAcquired)
	r, err := other.TryRLock(w.ctx())
	if readers {
		w.checkError(err, lockkeeper.ErrNotAcquired)
	} else {
		w.must(err)
		w.release(r)
	}
	ctx := lease.Context(w.ctx())
	w.release(lease)
	<-ctx.Done()
	w.checkError(lease.Err(), lockkeeper.ErrReleased)
	w.release(w.mustAcquire(other.TryLock))
}

// cancelledConversionKeepsLease checks a cancelled conversion whose outcome becomes known in time. If the server did
// it, the new lease is returned; if not, the original one remains held.
func cancelledConversionKeepsLease(w *World) {
	for _, up := range []bool{true, false} {
		c := w.cancelConversion(up, lua.RWLock.Acquire.SHA, faultnet.SwallowReply, time.Minute)
		if c.err != nil {
			w.Fatalf("upgrade %v: %v", up, c.err)
		}
		w.checkError(c.original.Err(), lockkeeper.ErrReleased)
		if c.converted.Fence() <= c.original.Fence() {
			w.Errorf("fence %d after %d", c.converted.Fence(), c.original.Fence())
		}
		w.checkExcludes(c.converted, up)

		c = w.cancelConversion(up, lua.RWLock.Acquire.SHA, faultnet.LoseRequest, time.Minute)
		if c.converted != nil {
			w.Errorf("upgrade %v: the lease is not at the server", up)
		}
		if !errors.Is(c.err, context.DeadlineExceeded) || errors.Is(c.err, lockkeeper.ErrLost) {
			w.Errorf("upgrade %v: %v", up, c.err)
		}
		w.checkExcludes(c.original, !up)
	}
	w.checkOnlyTombstones()
}

// conversionInDoubt checks a conversion whose outcome is unknown when the call returns. The read lease, which is
// held in any case, remains.
func conversionInDoubt(up bool) func(*World) {
	return func(w *World) {
		for _, fault := range []faultnet.Fault{faultnet.LoseRequest, faultnet.SwallowReply} {
			c := w.cancelConversion(up, "evalsha", fault, 2*time.Second)
			held := c.original
			if up {
				if c.converted != nil || !errors.Is(c.err, context.DeadlineExceeded) || errors.Is(c.err, lockkeeper.ErrLost) {
					w.Errorf("upgrade, fault %v: %v, %v", fault, c.converted.Token(), c.err)
				}
			} else {
				w.must(c.err)
				w.checkError(c.original.Err(), lockkeeper.ErrReleased)
				held = c.converted
			}
			w.must(held.Err())
			w.eventually("the outcome to be known", func() bool {
				_, known := c.p.leases(w)[held.Token()]
				return known && held.Err() == nil
			})
			done := fault == faultnet.SwallowReply
			if up && done {
				// The server has a write lease, which a new request gets at once.
				lease, err := c.l.Upgrade(w.ctx(), held)
				w.must(err)
				if lease.Token() == c.original.Token() && lease.Fence() == c.original.Fence() {
					w.Error("the read lease was returned")
				}
				w.checkError(held.Err(), lockkeeper.ErrReleased)
				held = lease
			}
			w.checkExcludes(held, up == done)
		}
		w.checkOnlyTombstones()
	}
}

// leases returns the tokens of the lock's leases at the server.
func (p *Process) leases(w *World) map[string]bool {
	w.Helper()
	list, err := p.rw("x").Holders(w.ctx())
	all := map[string]bool{}
	for _, h := range list {
		all[h.Token] = err == nil
	}
	return all
}

// cancelledConversion checks that after a cancelled conversion the lease is as before if the server did not do it,
// and is reported lost if nothing is known of it when it expires.
func cancelledConversion(up bool) func(*World) {
	return func(w *World) {
		for _, fault := range []faultnet.Fault{faultnet.LoseRequest, faultnet.SwallowReply} {
			p := w.Process()
			l := p.rw("x")
			take, convert := l.Lock, l.Downgrade
			if up {
				take, convert = l.RLock, l.Upgrade
			}
			lease := w.mustAcquire(take)
			other := w.acquireAsync(w.ctx(), 1, w.Process().rw("x").Lock)
			p.Net.Break("evalsha", 1<<30, fault)
			lasts := ttl / 4
			if fault == faultnet.SwallowReply {
				lasts = 2 * ttl
			}
			time.AfterFunc(lasts, p.Net.Restore)
			ctx, cancel := context.WithTimeout(w.ctx(), ttl/6)
			defer cancel()
			got, err := convert(ctx, lease)
			if got == nil && !errors.Is(err, context.DeadlineExceeded) {
				w.Errorf("upgrade %v, fault %v: %v", up, fault, err)
			}
			if got != nil { // a read lease, whatever the server has done
				w.checkError(lease.Err(), lockkeeper.ErrReleased)
				lease = got
			}
			if fault == faultnet.LoseRequest {
				time.Sleep(2 * ttl)
				w.must(lease.Err())
				w.expectNotGranted(other)
				w.release(lease)
			} else {
				w.awaitLoss(lease, ttl)
			}
			w.release(w.await(other, time.Minute).lease)
		}
		w.checkOnlyTombstones()
	}
}

// conversionRefused checks conversions of a lease that has ended, of another keeper's, and of one that is being
// converted.
func conversionRefused(w *World) {
	var mu sync.Mutex
	var reported []string
	p := w.Process(func(o *lockkeeper.Options) {
		o.Hooks.Released = func(e lockkeeper.Event) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, e.Token)
		}
	})
	l, other := p.rw("x"), w.Process().rw("x")
	_, err := l.Downgrade(w.ctx(), nil)
	w.checkError(err, lockkeeper.ErrReleased)
	write := w.mustAcquire(l.Lock)
	_, err = other.Downgrade(w.ctx(), write)
	w.checkError(err, lockkeeper.ErrInvalid)
	read, err := l.Downgrade(w.ctx(), write)
	w.must(err)
	_, err = l.Downgrade(w.ctx(), write)
	w.checkError(err, lockkeeper.ErrReleased)
	_, err = other.Upgrade(w.ctx(), read)
	w.checkError(err, lockkeeper.ErrInvalid)

	second := w.mustAcquire(other.RLock)
	up := w.acquireAsync(w.ctx(), 1, func(ctx context.Context) (*lockkeeper.Lease, error) { return l.Upgrade(ctx, read) })
	_, err = l.Upgrade(w.ctx(), read)
	w.checkError(err, lockkeeper.ErrInvalid)
	w.release(second)
	last := w.expectGranted(up)
	w.release(last)
	mu.Lock()
	defer mu.Unlock()
	if want := []string{write.Token(), read.Token(), last.Token()}; !slices.Equal(reported, want) {
		w.Errorf("Released was called for %q, want %q", reported, want)
	}
	w.checkClean()
}

// defaultWriterStreak checks how many writers may precede waiting readers by default.
func defaultWriterStreak(w *World) {
	const most = 16
	lock := func() *rwlock.Lock {
		l, err := rwlock.New(w.Process().Keeper, "x", &rwlock.Options{TTL: time.Minute})
		w.must(err)
		return l
	}
	first := w.mustAcquire(lock().Lock)
	reader := w.acquireAsync(w.ctx(), 1, lock().RLock)
	l := lock()
	var writers []chan result
	for i := range most + 2 {
		writers = append(writers, w.acquireAsync(w.ctx(), int64(2+i), l.Lock))
	}
	w.release(first)
	for _, ch := range writers[:most] {
		w.expectNotGranted(reader)
		w.release(w.expectGranted(ch))
	}
	w.release(w.expectGranted(reader))
	for _, ch := range writers[most:] {
		w.release(w.expectGranted(ch))
	}
}
