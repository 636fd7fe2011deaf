package conformance

import (
	"strings"
	"time"
)

// The cases in this file are about waiters that must not wait until their next heartbeat.

// shortenedLease checks that waiters behind a long lease do not wait until their next heartbeat if the lease is
// shortened and its holder crashes.
func shortenedLease(w *World) {
	p := w.Process()
	lease := w.hold(p.Lock("x", withoutRenewal, withTTL(time.Minute)))
	ch := w.lockAsync(w.ctx(), w.Process(slowHeartbeats).Lock("x"))
	w.awaitWaiters("x", 1)
	w.must(lease.Extend(w.ctx(), ttl))
	p.Crash()
	r := w.await(ch, ttl+50*time.Millisecond)
	w.must(r.err)
	w.checkFenceRises(lease, r.lease)
	w.release(r.lease)
}

// keyTypeChanges writes a value of another type to the lock's key. Both waiters and new callers get an error and
// leave nothing behind.
func keyTypeChanges(w *World) {
	first := w.hold(w.Process().Lock("x", withTTL(time.Minute)))
	a, b := w.Process().Lock("x"), w.Process().Lock("x")
	turns := []chan result{w.lockAsync(w.ctx(), a), w.lockAsync(w.ctx(), b)}
	w.awaitWaiters("x", 2)
	key := w.P.Key("x")
	w.must(w.admin.Del(w.ctx(), key).Err())
	w.must(w.admin.LPush(w.ctx(), key, "theirs").Err())
	isToldOf := func(err error) {
		w.Helper()
		if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
			w.Errorf("its error is %v", err)
		}
	}
	for _, ch := range turns {
		r := w.await(ch, 2*heartbeatInterval)
		w.checkError(r.err)
		isToldOf(r.err)
	}
	w.awaitWaiters("x", 0)
	isToldOf(first.Release(w.ctx()))
	w.must(w.admin.Del(w.ctx(), key).Err())
	w.checkFree(a)
	w.checkFree(b)
	w.checkClean()
}

// clockSetAheadWhileQueued sets the server's clock forward by more than the heartbeat timeout and less than the rest
// of the lease. All waiters have lapsed and must rejoin, or nobody would be there when the lock is free. If it is
// set forward by more, the queue has expired, and the waiters in the holder's process ask.
func clockSetAheadWhileQueued(w *World) {
	if w.Real {
		return // a real server uses the clock of the machine
	}
	offset := time.Duration(0)
	for name, ahead := range map[string]time.Duration{"x": 3*time.Minute + 500*time.Millisecond, "y": 7 * time.Minute} {
		p := w.Process(slowHeartbeats)
		holder := w.hold(p.Lock(name, withTTL(time.Hour)))
		turns := []chan result{w.lockAsync(w.ctx(), p.Lock(name))}
		w.awaitWaiters(name, 1)
		for i := range 3 {
			turns = append(turns, w.lockAsync(w.ctx(), w.Process(slowHeartbeats).Lock(name)))
			w.awaitWaiters(name, int64(i+2))
		}
		first := turns[:1]
		if name == "x" {
			first = turns
		}
		offset += ahead
		stop := w.shiftClock(offset)
		func() {
			defer stop() // also if the case fails, or the bubble would not end
			w.release(holder)
			for _, ch := range first { // they rejoin in order
				r := w.await(ch, 100*time.Millisecond)
				w.must(r.err)
				time.Sleep(50 * time.Millisecond)
				w.release(r.lease)
			}
			others := turns[len(first):] // they rejoin at their heartbeats, which two may send at once
			back := make(chan result, len(others))
			for _, ch := range others {
				go func() { back <- <-ch }()
			}
			for range others {
				r := w.await(back, time.Minute+heartbeatInterval)
				w.must(r.err)
				w.release(r.lease)
			}
		}()
		w.mini.SetTime(time.Time{})
		offset = 0
	}
}
