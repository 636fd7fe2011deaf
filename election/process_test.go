package election_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/election"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

const (
	candidateAddr = "ELECTION_CANDIDATE" // the server's address, in the environment of a process that is a candidate
	processTTL    = 2 * time.Second
)

// candidate is a process that campaigns until its standard input is closed. It prints "leads FENCE" at the start of each term and
// "stepped down" at its end. A line on its standard input is work, which it does only if it leads: it prints "did" or "refused".
func candidate(address string) {
	rdb := redis.NewClient(&redis.Options{Addr: address})
	k, err1 := lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatInterval: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	m, err2 := mutex.New(k, "boss", &mutex.Options{TTL: processTTL})
	e, err3 := election.New(m, &election.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := errors.Join(err1, err2, err3); err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			if e.Leading() {
				fmt.Println("did", in.Text())
			} else {
				fmt.Println("refused", in.Text())
			}
		}
	}()
	err := e.Run(ctx, func(ctx context.Context, fence uint64) error {
		fmt.Println("leads", fence)
		<-ctx.Done()
		fmt.Println("stepped down")
		return nil
	})
	if err := errors.Join(err, k.Close()); err != nil {
		panic(err)
	}
	fmt.Println("closed")
}

// leads waits until a process leads, and returns its fence.
func leads(t *testing.T, c *redistest.Child) uint64 {
	t.Helper()
	return must.Get(strconv.ParseUint(strings.TrimPrefix(c.WaitForLine("leads "), "leads "), 10, 64))(t)
}

// asks asks a process to work, and waits until it did or refused.
func asks(t *testing.T, c *redistest.Child, work, answer string) {
	t.Helper()
	c.WriteLine(work)
	line := c.WaitForLine("")
	check.That(t, line == answer+" "+work, "%q after %q", line, work)
}

// TestFrozenLeaderDoesNothingAfterwards checks that a leader that was frozen for longer than its lease refuses work that waited
// for it meanwhile, even before its timers have fired, and becomes a candidate again, who replaces a leader that is killed.
func TestFrozenLeaderDoesNothingAfterwards(t *testing.T) {
	redistest.RequireBinary(t)
	s := redistest.Start(t)
	one := redistest.StartChild(t, candidateAddr+"="+s.Addr)
	fence := leads(t, one)
	two := redistest.StartChild(t, candidateAddr+"="+s.Addr)
	waits := func() { // until one of them does
		for rdb := s.Client(); rdb.ZCount(t.Context(), "{lock:boss}:mutex:queue", "-inf", protocol.BehindWaiters).Val() != 1; {
			time.Sleep(5 * time.Millisecond)
		}
	}
	waits()
	asks(t, one, "a", "did")
	asks(t, two, "b", "refused")
	one.Signal(syscall.SIGSTOP)
	next := leads(t, two)
	check.That(t, next > fence, "fence %d after %d", next, fence)
	one.WriteLine("stale")
	one.Signal(syscall.SIGCONT)
	for seen := map[string]bool{}; len(seen) < 2; {
		line := one.WaitForLine("")
		if line != "refused stale" && line != "stepped down" || seen[line] {
			t.Fatalf("the former leader: %q", line)
		}
		seen[line] = true
	}
	asks(t, two, "c", "did")
	waits()
	two.Signal(syscall.SIGKILL)
	last := leads(t, one)
	check.That(t, last > next, "fence %d after %d", last, next)
	asks(t, one, "d", "did")
	one.Stop()
	one.WaitForLine("closed")
}

func TestMain(m *testing.M) {
	quiet.Redis()
	if address := os.Getenv(candidateAddr); address != "" {
		candidate(address)
		return
	}
	// go-redis checks once a second whether a pool that it dials for has been closed.
	dialing := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	goleak.VerifyTestMain(m, redistest.IgnoreStarter(), dialing)
}
