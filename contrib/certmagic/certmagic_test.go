package certmagic_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	cm "github.com/caddyserver/certmagic"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/contrib/certmagic"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func newLocker(t *testing.T, s *lockkeepertest.Server, o *certmagic.Options) *certmagic.Locker {
	t.Helper()
	l, err := certmagic.New(s.Keeper(t, nil), o)
	must(t, err)
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func requireError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func requireTryLock(t *testing.T, l *certmagic.Locker, want bool) {
	t.Helper()
	if got, err := l.TryLock(t.Context(), "x"); got != want || err != nil {
		t.Errorf("TryLock: %t, %v; want %t", got, err, want)
	}
}

// TestStorageExcludesProcesses: a real storage of certmagic, shared by two processes, each with two goroutines.
func TestStorageExcludesProcesses(t *testing.T) {
	s := lockkeepertest.New(t)
	files := &cm.FileStorage{Path: t.TempDir()}
	storages := []cm.Storage{certmagic.Wrap(files, newLocker(t, s, nil)), certmagic.Wrap(files, newLocker(t, s, nil))}
	must(t, files.Store(t.Context(), "serial", nil))
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			storage := storages[i%2]
			for range 10 {
				if err := storage.Lock(t.Context(), "issue_cert_example.com"); err != nil {
					t.Error(err)
					return
				}
				b, err := storage.Load(t.Context(), "serial")
				err = errors.Join(err, storage.Store(t.Context(), "serial", append(b, 'x')))
				ended, cancel := context.WithCancel(t.Context())
				cancel()
				if err := errors.Join(err, storage.Unlock(ended, "issue_cert_example.com")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if b, err := files.Load(t.Context(), "serial"); len(b) != 40 || err != nil {
		t.Errorf("%d of 40 updates, %v", len(b), err)
	}
	s.RequireFree(t, "certmagic:issue_cert_example.com")
}

func TestHolderKeepsOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		a, b := newLocker(t, s, nil), newLocker(t, s, nil)
		requireTryLock(t, a, true)
		requireTryLock(t, b, false)
		requireTryLock(t, a, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		requireError(t, "Lock of another process", b.Lock(ctx, "x"), context.DeadlineExceeded)
		synctest.Wait() // its request has left the queue
		if err := b.Unlock(t.Context(), "x"); err == nil {
			t.Error("another process could unlock it")
		}
		must(t, a.RenewLockLease(t.Context(), "x", time.Minute))
		must(t, a.Unlock(t.Context(), "x"))
		if err := a.RenewLockLease(t.Context(), "x", time.Minute); err == nil {
			t.Error("a lease was renewed after Unlock")
		}
		requireTryLock(t, b, true)
		must(t, b.Unlock(t.Context(), "x"))
		s.Unreachable()
		locked, err := a.TryLock(t.Context(), "x")
		requireError(t, "TryLock in an outage", err, lockkeeper.ErrUnavailable)
		if locked {
			t.Error("it was locked in an outage")
		}
		s.Restore()
	})
}

func TestLossIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		var log bytes.Buffer
		l := newLocker(t, s, &certmagic.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		must(t, l.Lock(t.Context(), "x"))
		time.Sleep(time.Hour) // it is renewed
		must(t, l.RenewLockLease(t.Context(), "x", time.Minute))
		s.LoseLease(t, "certmagic:x")
		time.Sleep(time.Minute)
		synctest.Wait()
		if !strings.Contains(log.String(), "lost") || !strings.Contains(log.String(), "name=x") {
			t.Errorf("log %q", log.String())
		}
		requireError(t, "renewal", l.RenewLockLease(t.Context(), "x", time.Minute), lockkeeper.ErrLost)
		requireError(t, "Unlock", l.Unlock(t.Context(), "x"), lockkeeper.ErrLost)
	})
}

// TestEndsTogether: while one caller holds the lock and another one of the same process waits for it, the steps happen in this order.
func TestEndsTogether(t *testing.T) {
	signal := errors.New("signal received")
	for _, c := range []struct {
		steps  string
		unlock error   // of the holder
		lock   []error // all that the error of who waits matches; none: it has the lock
		next   error   // of TryLock in the end
	}{
		{"unlock", nil, nil, nil},
		{"lose unlock", lockkeeper.ErrLost, nil, nil},
		{"lose later unlock", lockkeeper.ErrLost, nil, nil},
		{"cancel unlock", nil, []error{context.Canceled}, nil},
		{"lose cancel unlock", lockkeeper.ErrLost, []error{context.Canceled}, nil},
		{"lose later cancel unlock", lockkeeper.ErrLost, []error{context.Canceled, signal, lockkeeper.ErrNotAcquired}, nil},
		{"unlock later cancel", nil, nil, nil},
		{"lose unlock later cancel", lockkeeper.ErrLost, nil, nil},
		{"close unlock", nil, []error{lockkeeper.ErrClosed}, lockkeeper.ErrClosed},
		{"lose close unlock", nil, []error{lockkeeper.ErrClosed}, lockkeeper.ErrClosed},
		{"lose later close unlock", lockkeeper.ErrLost, []error{lockkeeper.ErrClosed}, lockkeeper.ErrClosed},
		{"outage unlock", lockkeeper.ErrUnavailable, nil, nil},
	} {
		t.Run(c.steps, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := lockkeepertest.New(t)
				k := s.Keeper(t, nil)
				l, err := certmagic.New(k, nil)
				must(t, err)
				must(t, l.Lock(t.Context(), "x"))
				ctx, cancel := context.WithCancelCause(t.Context())
				waits := make(chan error, 1)
				go func() { waits <- l.Lock(ctx, "x") }()
				s.RequireWaiting(t, "certmagic:x", 1)
				step := map[string]func(){
					"lose":   func() { s.LoseLease(t, "certmagic:x") },
					"later":  func() { time.Sleep(time.Minute); requireTryLock(t, l, false) },
					"cancel": func() { cancel(signal) },
					"close":  func() { _ = k.Close() },
					"outage": func() { s.Unreachable(); time.AfterFunc(10*time.Second, s.Restore) },
					"unlock": func() { requireError(t, "Unlock", l.Unlock(t.Context(), "x"), c.unlock) },
				}
				for _, name := range strings.Fields(c.steps) {
					step[name]()
				}
				err = <-waits
				if (err == nil) != (len(c.lock) == 0) {
					t.Errorf("who waited: %v", err)
				}
				for _, want := range c.lock {
					requireError(t, "who waited", err, want)
				}
				if err == nil {
					requireTryLock(t, l, false)
					must(t, l.Unlock(t.Context(), "x"))
				}
				locked, err := l.TryLock(t.Context(), "x")
				requireError(t, "TryLock", err, c.next)
				if locked {
					must(t, l.Unlock(t.Context(), "x"))
				}
				s.RequireFree(t, "certmagic:x")
			})
		})
	}
}

func TestOptionsChecked(t *testing.T) {
	k := lockkeepertest.New(t).Keeper(t, nil)
	for _, o := range []certmagic.Options{{TTL: time.Millisecond}, {Prefix: "}"}} {
		_, err := certmagic.New(k, &o)
		requireError(t, "New", err, lockkeeper.ErrInvalid)
	}
	l := newLocker(t, lockkeepertest.New(t), nil)
	requireError(t, "Lock", l.Lock(t.Context(), "}"), lockkeeper.ErrInvalid)
	_, err := l.TryLock(t.Context(), "}")
	requireError(t, "TryLock", err, lockkeeper.ErrInvalid)
}
