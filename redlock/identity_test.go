package redlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/redlock"
	"github.com/redis/go-redis/v9"
)

// identities makes the servers report run_ids, given as small numbers; 0: the server does not report one.
func (w *world) identities(of ...int64) []atomic.Int64 {
	ids := make([]atomic.Int64, len(w.servers))
	for i, m := range w.servers {
		ids[i].Store(of[i])
		m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
			if id := ids[i].Load(); command == "INFO" && id > 0 {
				c.WriteBulk(fmt.Sprintf("# Server\r\nredis_version:7.0.15\r\nrun_id:%040x\r\ntcp_port:6379\r\n", id))
				return true
			}
			return false
		})
	}
	return ids
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

func TestKeepersOfSameServerRejected(t *testing.T) {
	onServers(t, 5, func(w *world) {
		w.identities(1, 2, 3, 4, 2)
		p := w.process()
		sameServerRejected(t, p.lock(), "keepers 2 and 5 of 5 use the same server")
		w.clean()
	})
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
			lease, err := l.TryLock(w.Context())
			w.must(err)
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
		ids := w.identities(1, 2, 3)
		p := w.process()
		l := p.lock()
		w.connect(l)
		time.Sleep(90 * time.Second)
		ids[0].Store(2)
		ids[1].Store(1)
		for range 3 {
			w.connect(l)
			time.Sleep(30 * time.Second)
		}
		ids[2].Store(2)
		time.Sleep(time.Minute)
		w.connect(l) // the server is queried again
		sameServerRejected(t, l, "keepers 1 and 3 of 3")
		ids[2].Store(3)
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
	if err := s.Client().Do(t.Context(), "acl", "setuser", "plain", "on", ">secret", "~*", "&*", "+@all", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil)) // one handler, whose mutex guards the buffer
	var ks []*lockkeeper.Keeper
	for i := range 3 {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr, Username: "plain", Password: "secret", DB: i})
		t.Cleanup(func() { _ = rdb.Close() })
		k, err := lockkeeper.New(rdb, &lockkeeper.Options{Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = k.Close() })
		ks = append(ks, k)
	}
	l, err := redlock.New(ks, "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	round(t, l)
	round(t, l)
	if n := strings.Count(log.String(), "does not report its run_id"); n != 3 {
		t.Errorf("logged %d times for three keepers:\n%s", n, &log)
	}
}
