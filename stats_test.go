package lockkeeper_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
)

// TestStats compares what a keeper says of itself with what it does: with a holder and a waiter, without messages, with a server that does
// not answer, and closed.
func TestStats(t *testing.T) {
	embedded.Run(t, func(s *embedded.Server) {
		net := s.Network()
		rdb := redis.NewClient(net.Options(20 * time.Second))
		defer rdb.Close()
		k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}))(t)
		is := func(want lockkeeper.Stats, when string) {
			t.Helper()
			got := k.Stats()
			check.That(t, got.SubscriptionSilence <= 5*time.Second, "%s: %+v", when, got)
			got.SubscriptionSilence = 0
			check.That(t, got == want, "%s: %+v, want %+v", when, got, want)
		}
		is(lockkeeper.Stats{}, "a new keeper")
		l := must.Get(fair.New(k, "x", &fair.Options{TTL: time.Hour}))(t)

		lease := must.Get(l.Lock(background))(t)
		synctest.Wait()
		got := k.Stats()
		check.That(t, got.Leases == 1 && got.Requests == 0 && got.Waiting == 0 && got.InFlight == 0 && got.Silence == 0, "a holder: %+v", got)

		ctx, giveUp := context.WithCancel(background)
		defer giveUp()
		waited := make(chan error, 1)
		go func() {
			_, err := l.Lock(ctx)
			waited <- err
		}()
		synctest.Wait()
		is(lockkeeper.Stats{Leases: 1, Requests: 1, Waiting: 1, Channels: 1}, "a holder and a waiter")
		time.Sleep(3 * time.Second)
		got = k.Stats()
		check.That(t, got.SubscriptionSilence == 3*time.Second, "after 3 s without a message: %+v", got)

		net.Blackhole()
		net.CutSubscriptions()
		time.Sleep(10 * time.Second)
		got = k.Stats()
		check.That(t, got.Unsubscribed == 1 && got.InFlight > 0 && got.Silence > 5*time.Second && got.Silence <= 10*time.Second,
			"a server that is silent: %+v", got)

		net.Restore()
		time.Sleep(time.Minute)
		is(lockkeeper.Stats{Leases: 1, Requests: 1, Waiting: 1, Channels: 1}, "it answers again")

		giveUp()
		check.Is(t, <-waited, lockkeeper.ErrNotAcquired, "the wait")
		must.Report(t, lease.Release(background))
		synctest.Wait()
		got = k.Stats()
		check.That(t, got.Leases == 0 && got.Requests == 0 && got.Waiting == 0, "nobody: %+v", got)
		must.Report(t, k.Close())
		got = k.Stats()
		check.That(t, got.Requests == 0 && got.Leases == 0 && got.Unsent == 0 && got.InFlight == 0, "closed: %+v", got)

		other := s.Network() // of a keeper whose last caller has given up
		idle := redis.NewClient(other.Options(time.Second))
		defer idle.Close()
		without := must.Get(lockkeeper.New(idle, nil))(t)
		other.Down()
		_, err := must.Get(fair.New(without, "y", nil))(t).TryLock(background)
		check.Is(t, err, lockkeeper.ErrUnavailable, "a try without a server")
		time.Sleep(10 * time.Second)
		check.That(t, without.Stats() == lockkeeper.Stats{}, "nobody needs the server: %+v", without.Stats())
		must.Report(t, without.Close())
	})
}
