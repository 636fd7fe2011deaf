package otellockkeeper_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/otellockkeeper"
)

// TestObserve compares the metrics of a keeper with what it does, while one caller waits for another and the server becomes unreachable.
func TestObserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, s := newTelemetry(), lockkeepertest.New(t)
		holder, waiter := s.Keeper(t, nil), s.Keeper(t, nil)
		stop := must(otellockkeeper.Observe(waiter, o.opts...))
		lease := must(must(mutex.New(holder, "x", &mutex.Options{TTL: time.Hour})).Lock(t.Context()))
		ctx, giveUp := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = must(mutex.New(waiter, "x", nil)).Lock(ctx)
		}()
		expect := func(when string, want map[string]string) {
			t.Helper()
			synctest.Wait()
			values, units := o.metrics(t)
			for _, name := range []string{"commands.unsent", "pipelines.in_flight", "server.silence", "channels.wanted", "channels.unsubscribed"} {
				if _, is := units[name]; !is {
					t.Errorf("%s: no %s", when, name)
				}
				if got := values[name+"{}"]; got != want[name] {
					t.Errorf("%s: %s is %q, want %q", when, name, got, want[name])
				}
			}
		}
		expect("a waiter", map[string]string{"channels.wanted": "1"})

		s.Unreachable()
		time.Sleep(5 * time.Second)
		if values, _ := o.metrics(t); values["server.silence{}"] == "" {
			t.Errorf("the server cannot be reached: %v", values)
		}

		s.Restore()
		time.Sleep(time.Minute + time.Second)
		if values, _ := o.metrics(t); values["channels.silence{}"] == "" {
			t.Errorf("nothing has come on the subscription for a while: %v", values)
		}
		expect("it can again", map[string]string{"channels.wanted": "1"})

		giveUp()
		<-done
		must(0, lease.Release(t.Context()))
		must(0, stop())
		if _, units := o.metrics(t); len(units) != 0 {
			t.Errorf("reported after stop: %v", units)
		}
		if _, err := otellockkeeper.Observe(nil); err == nil {
			t.Error("no error for a keeper that is nil")
		}
	})
}
