package keeper

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// TestWaitError checks what a wait ends with: what calls with other names have found of the server counts, and what is about one name does not.
func TestWaitError(t *testing.T) {
	wait := func(s *fixture, name string) (end func() error) {
		ctx, cancel := context.WithCancel(s.Context())
		ended := make(chan error)
		go func() {
			_, err := s.lock(name).Acquire(ctx, Terms{})
			ended <- err
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		return func() error { cancel(); return <-ended }
	}
	try := func(s *fixture, name string) error {
		_, err := s.lock(name).Try(s.Context(), Terms{})
		time.Sleep(time.Millisecond)
		return err
	}
	contention := func(s *fixture, err error) {
		s.Helper()
		check.That(s, errors.Is(err, server.ErrNotAcquired) && !errors.Is(err, server.ErrUnavailable),
			"the error is not contention: %v", err)
	}
	outage := func(s *fixture, err error) {
		s.Helper()
		check.That(s, errors.Is(err, server.ErrUnavailable) && !errors.Is(err, server.ErrNotAcquired),
			"the error is not an outage: %v", err)
	}
	subtest(t, "a call with another name has failed", func(s *fixture) {
		s.hold("x")
		end := wait(s, "x")
		s.net.Down()
		outage(s, try(s, "y"))
		outage(s, end())
	})
	subtest(t, "a call with another name is unanswered", func(s *fixture) {
		s.hold("x")
		end := wait(s, "x")
		s.net.Blackhole()
		other := wait(s, "y")
		time.Sleep(server.SilenceTimeout)
		outage(s, end())
		outage(s, other())
	})
	subtest(t, "the key of another name has a wrong type", func(s *fixture) {
		must.Get(s.mini.Lpush("lock:y", "theirs"))(s)
		s.hold("x")
		end := wait(s, "x")
		err := try(s, "y")
		check.That(s, err != nil && !errors.Is(err, server.ErrUnavailable), "%v", err)
		contention(s, end())
	})
	subtest(t, "others are answered, and this one is not", func(s *fixture) {
		s.hold("x")
		s.net.Break("lock:y", 1, faultnet.SwallowReply)
		end := wait(s, "y")
		s.must(try(s, "z"))
		outage(s, end())
	})
	subtest(t, "others are answered, and the call of this one has failed", func(s *fixture) {
		s.hold("x")
		s.net.Break("lock:y", 1, faultnet.CutReply)
		end := wait(s, "y")
		s.must(try(s, "z"))
		err := end()
		outage(s, err)
		check.That(s, !errors.Is(err, server.ErrNoAnswer), "the error does not say why: %v", err)
	})
	for what, unanswered := range map[string]time.Duration{"at once": 0, "late": server.SilenceTimeout} {
		subtest(t, "others are answered, and this one is not, whose turn has come "+what, func(s *fixture) {
			s.hold("x")
			first, second := wait(s, "x"), wait(s, "x")
			s.net.Break("lock:x", 2, faultnet.SwallowReply) // the release of the first, and the request of the second
			contention(s, first())
			time.Sleep(unanswered)
			synctest.Wait() // the request of the second is sent, and so not in one batch with this
			s.must(try(s, "z"))
			if err := second(); unanswered == 0 {
				contention(s, err)
			} else {
				outage(s, err)
			}
		})
	}
}
