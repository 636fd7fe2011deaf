package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

// identities makes the servers report run_ids, given as small numbers; 0: the server does not report one.
func (w *world) identities(of ...int64) {
	for i, id := range of {
		w.ids[i].Store(id)
	}
}

// sameServerRejected checks that every method that acquires returns an error that names the keepers of one server.
func sameServerRejected(t *testing.T, l *redlock.Lock, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for what, get := range map[string]func() (*lockkeeper.Lease, error){
		"Lock":    func() (*lockkeeper.Lease, error) { return l.Lock(ctx) },
		"TryLock": func() (*lockkeeper.Lease, error) { return l.TryLock(ctx) },
		"Adopt":   func() (*lockkeeper.Lease, error) { return l.Adopt(ctx, "token") },
		"Do": func() (*lockkeeper.Lease, error) {
			return nil, l.Do(ctx, func(context.Context, uint64) error { return nil })
		},
	} {
		lease, err := get()
		if lease != nil || !errors.Is(err, lockkeeper.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
}

// TestServersWithoutIDAccepted: servers that do not report a run_id are not compared, which is logged once per keeper.
func TestServersWithoutIDAccepted(t *testing.T) {
	onServers(t, 3, func(w *world) {
		w.identities(0, 0, 7)
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil)) // one handler, whose mutex guards the buffer
		p := w.process(func(o *lockkeeper.Options) { o.Logger = logger })
		for range 3 {
			w.connect(p.lock())
			time.Sleep(2 * time.Minute)
		}
		if n := strings.Count(log.String(), "does not report its run_id"); n != 2 {
			w.Errorf("logged %d times for two servers:\n%s", n, &log)
		}
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
		w.connect(l) // the server is queried again
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
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	locks := func(addrs ...string) *redlock.Lock {
		t.Helper()
		l, end, err := dial(addrs, redlock.Options{TTL: long})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
		return l
	}
	sameServerRejected(t, locks(s.Addr, "localhost:"+port, s.Addr), "keepers 1 and 2 of 3 use the same server")
	sameServerRejected(t, locks(s.Addr, other.Addr, "localhost:"+port), "keepers 1 and 3 of 3 use the same server")
	if n := s.Client().DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	round(t, locks(s.Addr, other.Addr, "127.0.0.1:1"))
}

// TestRealServersWithoutInfoPermission: the lock works, and what cannot be detected is logged.
func TestRealServersWithoutInfoPermission(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	must.OK(t, s.Client().Do(t.Context(), "acl", "setuser", "plain", "on", ">secret", "~*", "&*", "+@all", "-info").Err())
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil)) // one handler, whose mutex guards the buffer
	var ks []*lockkeeper.Keeper
	for i := range 3 {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "plain", Password: "secret", DB: i})
		t.Cleanup(func() { _ = rdb.Close() })
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Logger: logger}))(t)
		t.Cleanup(func() { _ = k.Close() })
		ks = append(ks, k)
	}
	l := must.Get(redlock.New(ks, "x", nil))(t)
	round(t, l)
	round(t, l)
	if n := strings.Count(log.String(), "does not report its run_id"); n != 3 {
		t.Errorf("logged %d times for three keepers:\n%s", n, &log)
	}
}
