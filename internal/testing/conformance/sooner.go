package conformance

import (
	"strings"
	"time"
)

// The cases in this file are about waiters that must not be left to their next heartbeat.

// shortenedLease: whoever waits expects a long lease. When it is made a short one, and its holder crashes, they do not wait
// for their next heartbeat.
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

// keyTypeChanges: somebody writes something else into the lock's key. Whoever waits is told so, as whoever asks is, and
// leaves nothing behind.
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
			w.Errorf("it was told %v", err)
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

// clockSetAheadWhileQueued: the server's clock is set ahead by more than a heartbeat counts, and by less than what a lease has left. All who
// wait have lapsed; if they did not ask again, nobody would be there when the lock is free. If it is set ahead by more, the
// server has forgotten that they wait; then those in the process of the holder ask.
func clockSetAheadWhileQueued(w *World) {
	if w.Real {
		return // its clock is the machine's
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
			defer stop() // also when the case has failed, or the bubble would not end
			w.release(holder)
			for _, ch := range first { // they come back in order
				r := w.await(ch, 100*time.Millisecond)
				w.must(r.err)
				time.Sleep(50 * time.Millisecond)
				w.release(r.lease)
			}
			others := turns[len(first):] // they come back at their heartbeats, which two may have at once
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
