package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/retain"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/lua"
)

func (s *fixture) retaining(name string) *Retaining {
	s.Helper()
	l, err := s.lock(name, func(spec *Spec) { spec.Scripts, spec.LocalQueue = lua.RWLock, false }).Retaining()
	s.must(err)
	return l
}

// read acquires a read lease.
func (s *fixture) read(l *Retaining) lifecycle.Handle {
	s.Helper()
	h, err := l.Acquire(context.Background(), true)
	s.must(err)
	return h
}

// TestLeaseEndsWhileItIsOpened checks that nobody is admitted by a retained lease that ends in the moment in which its first reader
// learns of it, and that it is released when that reader leaves.
func TestLeaseEndsWhileItIsOpened(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.retaining("x")
		s.must(s.read(l).Release(context.Background())) // it subscribes
		synctest.Wait()
		r := l.find()
		x := r.begin()
		h, err := l.lock.acquireLease(context.Background(), Terms{Flags: protocol.FlagRead + protocol.FlagRetained, retention: x}, true)
		s.must(err)

		h.Mu.Lock()
		cancel := h.endLocked(server.ErrLost)
		h.Mu.Unlock()
		first := x.open(h, false)
		cancel()
		if r.enter(context.Background()) != nil || r.current.Load() != nil {
			t.Error("a reader was admitted by a lease that has ended")
		}
		if _, ok, _ := x.Enter(); ok {
			t.Error("a reader that knew the retention already was admitted")
		}
		if err := first.Release(context.Background()); err == nil {
			t.Error("the loss is not reported")
		}
		time.Sleep(time.Second)
		if s.mini.Exists(l.lock.KeyOf(server.LockKey)) {
			t.Error("the lease is not released with the last reader")
		}
		h.forget()
	})
}

// TestRetainedNamesAreBounded checks that the least recently used name is given back when there are too many.
func TestRetainedNamesAreBounded(t *testing.T) {
	inBubble(t, func(s *fixture) {
		s.retainers = retain.NewNames[*Retainer](3)
		read := func(name string) *Retaining {
			l := s.retaining(name)
			s.must(s.read(l).Release(context.Background()))
			return l
		}
		retained := func(name string) bool {
			synctest.Wait()
			return s.mini.Exists("{lock:" + name + "}:rwlock:holders")
		}
		read("subscribes")
		synctest.Wait()                                     // until then nothing is retained
		for _, name := range []string{"a", "b", "c", "a"} { // "subscribes" leaves first
			read(name)
		}
		for _, name := range []string{"a", "b", "c"} {
			if !retained(name) {
				t.Errorf("%s is not retained", name)
			}
		}
		b := s.read(s.retaining("b"))
		read("d")
		if retained("c") || !retained("a") || !retained("b") || !retained("d") {
			t.Error("the least recently used name, c, is retained, or another is not")
		}
		read("e")
		read("f")
		read("g")
		if !retained("b") {
			t.Error("a lease was given back with a reader inside")
		}
		s.must(b.Release(context.Background()))
		if retained("b") {
			t.Error("a name that left while a reader was inside is retained")
		}
	})
}

// TestReleaseAfterExtendToLess checks that a caller whose lease was granted inside, and extended to less, learns at its release that
// the lease ended while the process was frozen.
func TestReleaseAfterExtendToLess(t *testing.T) {
	for what, change := range map[string]func(*Spec){
		"read": func(spec *Spec) { spec.Scripts, spec.LocalQueue = lua.RWLock, false },
		"turn": func(*Spec) {},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(s *fixture) {
				l, err := s.lock("x", change, func(spec *Spec) { spec.TTL = retain.MaxTTL }).Retaining()
				s.must(err)
				s.must(s.read(l).Release(context.Background())) // it subscribes
				synctest.Wait()
				s.must(s.read(l).Release(context.Background()))
				h := s.read(l).(*LocalLease)
				s.must(h.Extend(context.Background(), retain.MaxTTL/5))
				s.freeze(h.retention.lease)
				time.Sleep(retain.MaxTTL / 4)
				if h.retention.Certain() {
					t.Error("the process takes the lease to be certain after its deadline")
				}
				if err := h.Release(context.Background()); !errors.Is(err, server.ErrLost) {
					t.Errorf("Release: %v", err)
				}
			})
		})
	}
}

// TestRenewalConfirmsSubscriptionOnWhichItWasSent checks that a renewal which is answered on a later subscription than that on which it
// was sent does not say that no recall was lost: one may have been between its run and the later subscription.
func TestRenewalConfirmsSubscriptionOnWhichItWasSent(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.retaining("x")
		s.must(s.read(l).Release(context.Background())) // it subscribes
		synctest.Wait()
		h := s.read(l)
		enters := func() bool {
			inside := l.find().enter(context.Background())
			if inside == nil {
				return false
			}
			s.must(inside.Release(context.Background()))
			return true
		}
		if !enters() {
			t.Fatal("no lease is retained")
		}
		epoch := s.Subscriber.RetainSubscribed(l.lock.Channel)
		const way = 50 * time.Millisecond
		s.net.DelayReplies(way)
		for s.net.ResetCount(); s.net.Scripts() == 0; { // until a renewal leaves
			time.Sleep(time.Millisecond)
		}
		epoch.Add(2)                         // the subscription is lost, and there is another one
		time.Sleep(2*way + time.Millisecond) // the server does not know the script at first
		if enters() {
			t.Error("a reader is admitted although a recall may have been lost")
		}
		s.net.DelayReplies(0)
		time.Sleep(2 * ttl / 3) // another renewal
		if !enters() {
			t.Error("not admitted after a renewal on the new subscription")
		}
		s.must(h.Release(context.Background()))
	})
}
