package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
)

// denied is the identity of a server that refuses to report one.
const denied = -1

// identities makes the servers report run_ids, given as small numbers; 0: the server does not report one.
func (w *world) identities(of ...int64) {
	for i, id := range of {
		w.ids[i].Store(id)
	}
}

// sameServerRejected checks that every method that acquires returns an error that names the keepers of one server.
func sameServerRejected(t *testing.T, l *redlock.Lock, want string) {
	t.Helper()
	ctx := must.Within(t, 10*time.Second)
	_, byLock := l.Lock(ctx)
	_, byTry := l.TryLock(ctx)
	_, byAdopt := l.Adopt(ctx, "token")
	byDo := l.Do(ctx, func(context.Context, uint64) error { return nil })
	for what, err := range map[string]error{"Lock": byLock, "TryLock": byTry, "Adopt": byAdopt, "Do": byDo} {
		check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), want), "%s: %v, want %q", what, err, want)
	}
}

// TestServersWithoutIDAccepted: servers that do not report a run_id, or deny INFO, are not compared, which is logged once per keeper.
func TestServersWithoutIDAccepted(t *testing.T) {
	onServers(t, 3, func(w *world) {
		w.identities(0, denied, 7)
		var log quiet.Buffer
		p := w.process(func(o *lockkeeper.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		for range 3 {
			w.connect(p.lock())
			time.Sleep(2 * time.Minute)
		}
		n := strings.Count(log.String(), "does not report its run_id")
		check.That(w, n == 2, "logged %d times for two servers:\n%s", n, log.String())
	})
}

// TestUnresponsiveServerIsAwaitedOnce: later calls do not wait for its run_id, which is queried in the background.
func TestUnresponsiveServerIsAwaitedOnce(t *testing.T) {
	onServers(t, 3, func(w *world) {
		w.identities(1, 2, 2)
		p := w.process()
		p.nets[2].Down()
		l := p.lock()
		for i := range 3 {
			begin := time.Now()
			lease := must.Get(l.TryLock(w.Context()))(w)
			if took := time.Since(begin); i == 0 && took > limit || i > 0 && took > time.Millisecond {
				w.Errorf("lock %d took %v", i+1, took)
			}
			w.must(lease.Release(w.Context()))
		}
		p.nets[2].Restore()
		time.Sleep(2 * time.Second)
		if lease, err := l.TryLock(w.Context()); err == nil { // the server is queried again, unless that has been done just now
			w.must(lease.Release(w.Context()))
		}
		synctest.Wait()
		sameServerRejected(t, l, "keepers 2 and 3 of 3")
	})
}

// TestServerChangeDetected: a failover or a changed DNS name can lead two keepers to one server, which is noticed within a
// minute. Two servers that have swapped places, or one that was replaced, are accepted.
func TestServerChangeDetected(t *testing.T) {
	onServers(t, 3, func(w *world) {
		w.identities(1, 2, 3)
		p := w.process()
		l := p.lock()
		w.connect(l)
		time.Sleep(90 * time.Second)
		w.identities(2, 1, 3)
		for range 3 {
			w.connect(l)
			time.Sleep(30 * time.Second)
		}
		w.identities(2, 1, 2)
		time.Sleep(time.Minute)
		w.connect(l) // the server is queried again
		sameServerRejected(t, l, "keepers 1 and 3 of 3")
		w.identities(2, 1, 3)
		w.connect(l)
	})
}

// TestRealServersSameServerRejected: whatever address the server is reached by.
func TestRealServersSameServerRejected(t *testing.T) {
	t.Parallel()
	s, other := redistest.Start(t), redistest.Start(t)
	byName := fmt.Sprint("localhost:", s.Port)
	locks := func(addrs ...string) *redlock.Lock { return newLock(t, addrs, redlock.Options{TTL: long}) }
	sameServerRejected(t, locks(s.Addr, byName, s.Addr), "keepers 1 and 2 of 3 use the same server")
	sameServerRejected(t, locks(s.Addr, other.Addr, byName), "keepers 1 and 3 of 3 use the same server")
	n := s.Client().DBSize(t.Context()).Val()
	check.That(t, n == 0, "%d keys are left", n)
	round(t, locks(s.Addr, other.Addr, "127.0.0.1:1"))
}
