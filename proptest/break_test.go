package proptest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"pgregory.net/rapid"
)

// This file is about requests that somebody ends with Break.

// breakSomebody breaks a lease or a waiter, by the keeper of a process that runs.
func (w *world) breakSomebody(r *rapid.T) {
	p := draw(r, w.in(running), "process")
	v := w.view()
	var tokens []string
	for token := range v.leases {
		tokens = append(tokens, token)
	}
	for _, y := range v.queue {
		tokens = append(tokens, y.token)
	}
	w.mu.Lock()
	tokens = slices.DeleteFunc(tokens, func(token string) bool {
		q := w.requestLocked(token)
		return q == nil || q.broken
	})
	w.mu.Unlock()
	slices.Sort(tokens)
	w.breakToken(p, draw(r, tokens, "token"))
}

// breakToken breaks what a token has, by the keeper of the process.
func (w *world) breakToken(p *process, token string) {
	w.mu.Lock()
	for _, q := range w.requests { // also those that have adopted it
		if q.first() == w.requestLocked(token) {
			q.broken = true
			w.usesLocked(q, breaking)
		}
	}
	w.history.unknownLeases[token] = true
	w.noteLocked("process %d breaks %s", p.id, w.tokenName(token))
	w.mu.Unlock()
	w.actors.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		b, err := admin.Break(ctx, p.Keeper, lockkeeper.Kind(w.kind.scripts().Kind), name, &admin.BreakOptions{Token: token, Reason: "it is stuck", By: "ops"})
		w.mu.Lock()
		defer w.mu.Unlock()
		w.noteLocked("%s is broken: %+v, %v", w.tokenName(token), b, err)
	})
}

// brokenLocked notes that break.lua has run. The caller holds the mutex.
func (w *world) brokenLocked(s *step) {
	_, held := s.before.leases[s.token]
	_, stays := s.after.leases[s.token]
	_, stood := s.before.position(s.token)
	_, stands := s.after.position(s.token)
	if stays || stands {
		w.breaksLocked(ends, "%s is broken and stays", w.tokenName(s.token))
	}
	if !held && !stood || !w.breakNoted(s.token) {
		return // it had nothing: a queue, for example, that had expired since the script before
	}
	if held {
		w.tally["a lease is broken"]++
	} else {
		w.tally["a waiter is broken"]++
	}
	for _, token := range w.kind.owed(w, s.after) {
		if held && w.connected(s.after, token) {
			w.breaksLocked(progress, "%s is not granted the lock by the break of %s", w.tokenName(token), w.tokenName(s.token))
		}
	}
	w.history.brokenAt[s.token] = time.Now()
	if q := w.requestLocked(s.token); q != nil && w.subscribed(s.token) && q.p.neverDegraded() && w.lag == 0 {
		q.told = time.Now()
	}
}

// breakNoted reports whether the server has a note for the keeper that the token was broken, which is left if it had something.
func (w *world) breakNoted(token string) bool {
	members, _ := w.server.mini.DB(0).SortedSet(w.history.keys.Tombstones)
	for m := range members {
		if strings.HasPrefix(m, token+" ") {
			return true
		}
	}
	return false
}

// subscribed reports whether the keeper of a token receives messages.
func (w *world) subscribed(token string) bool {
	t := w.terms(token)
	channel := "lock:wake:" + t.keeper
	return !t.foreign && w.server.mini.PubSubNumSub(channel)[channel] > 0
}

// checkBrokenLocked checks that who was told of a break has ended the lease or the call. The caller holds the mutex.
func (w *world) checkBrokenLocked() {
	for _, q := range w.requests {
		if q.told.IsZero() || !q.told.Before(time.Now()) || !q.p.neverDegraded() {
			continue
		}
		if !q.returned || q.believesHeld() {
			w.breaksLocked(told, "%v, %v ago", q, time.Since(q.told))
		}
	}
}
