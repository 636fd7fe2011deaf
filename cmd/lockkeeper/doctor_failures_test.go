package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/redis/go-redis/v9"
)

func TestDoctorTimeoutWhenUnresponsive(t *testing.T) {
	t.Parallel()
	locked, _ := goodServer(t)
	set(t, locked, "requirepass", "secret")
	frozen, frozenURL := goodServer(t)
	frozen.Freeze()
	loading, loadingURL := goodServer(t)
	do(t, loading, "debug", "populate", 100_000)
	set(t, loading, "loading-process-events-interval-bytes", "1024")
	set(t, loading, "key-load-delay", "3000") // µs for each of them: it loads for as long as the test lasts
	go loading.Client().Do(t.Context(), "debug", "reload")
	eventually(t, "it is loading", func() bool { return redis.IsLoadingError(loading.Client().Get(ctx, "x").Err()) })
	busy, busyURL := goodServer(t, "--busy-reply-threshold", "10")
	go busy.Client().Eval(ctx, "while true do end", nil)
	eventually(t, "it is busy", func() bool { return redis.HasErrorPrefix(busy.Client().Get(ctx, "x").Err(), "BUSY") })
	for name, c := range map[string]struct{ url, says string }{
		"refused":                  {"redis://127.0.0.1:1", "refused"},
		"wrong_password":           {"redis://:wrong@" + locked.Addr, "password"},
		"no_password":              {"redis://" + locked.Addr, "password"},
		"frozen":                   {frozenURL, "no answer within 1s"},
		"loading":                  {loadingURL, "LOADING"},
		"busy":                     {busyURL, "BUSY"},
		"no_sentinel":              {"redis+sentinel://127.0.0.1:1?master_name=main", "check the URL"},
		"no_cluster":               {"redis+cluster://127.0.0.1:1", "refused"},
		"cluster_without_password": {"redis+cluster://" + locked.Addr, "NOAUTH"},
	} {
		t.Run(name, func(t *testing.T) {
			examine(t, 69, c.url, "--timeout", "2s").want("connection", "error", c.says)
		})
	}
	c := command(t, "doctor", "--redis", "redis://:wrong@"+locked.Addr).ends(69)
	check.That(t, !strings.Contains(c.out.String()+c.err.String(), "wrong@"), "the password was shown")
}

func TestInterruptedDoctorAndBenchCleanUp(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	do(t, s, "acl", "setuser", "default", "-publish") // so that a hand-off takes until the heartbeat
	for _, args := range []string{"doctor", "bench --duration 5m"} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			c := command(t, append(strings.Fields(args), "--redis", url)...).starts()
			eventually(t, args+" has a lock", func() bool { return s.Client().DBSize(ctx).Val() > 0 })
			c.isEndedBy(sig)
			check.That(t, c.out.Len() == 0, "%v: a report was written: %q", sig, c.out.String())
			wantNoKeys(t, s.Client())
		}
	}
}

func TestDoctorTimeoutWhenServerFreezes(t *testing.T) {
	t.Parallel()
	s, url := goodServer(t)
	do(t, s, "acl", "setuser", "default", "-publish") // so that a hand-off takes until the heartbeat: the server freezes before the end
	// TIME is the first command of the check clock, which comes after the check version.
	watch := s.Client()
	go func() {
		for watch.InfoMap(ctx, "commandstats").Item("Commandstats", "cmdstat_time") == "" {
			time.Sleep(time.Millisecond)
		}
		s.Freeze()
	}()
	r := examine(t, 2, url, "--timeout", "2s")
	r.want("version", "ok")
	r.want("lock", "error")
}
