// Package demo implements the command demo, in which processes contend for locks on an embedded server.
package demo

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

const (
	demoTTL              = 2 * time.Second
	demoHeartbeatTimeout = 1500 * time.Millisecond
)

// Command returns the command demo.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch processes contend for locks on an embedded server",
		Long: `Watch processes contend for locks on a server that is embedded in the demo. Nothing
needs to be installed. The demo takes about seventeen seconds. On a terminal it draws
the state of each process, otherwise it prints one line per event.

1. A fair lock. Six processes contend for it and acquire it in the order of their
   requests. One process is killed (SIGKILL) while it holds the lock; the next one
   acquires the lock when the lease of 2s expires. Then the first process of the queue
   is killed, which does not delay the others, and the first process of the queue is
   frozen (SIGSTOP), which delays them by at most the heartbeat timeout of 1.5s.

2. A read-write lock. Four processes read without a pause, so that there is always a
   reader. A fifth process writes now and then: it acquires the lock as soon as the
   readers that came before it have released it.

3. A rate limit. Six processes call an API that permits 4 calls at once and 20 in any
   second. Two of them make bulk calls, which count as two. One process is killed
   during a call; its permits are available again when its lease expires.

After each part the demo prints what it has measured, for example whether two processes
ever held a lock at the same time, and whether the fences increased. If a guarantee was
violated, the exit code is 1.`,
		Example: "  lockkeeper demo\n  lockkeeper demo | head -20",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("demo takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(*cobra.Command, []string) error { return demo(os.Stdout) },
	}
	return c
}

// scenario is a part of the demo.
type scenario interface {
	handle(w *worker, e event, stopping bool) // handles an event of a worker
	stateText() string                        // the state of the scenario, for the terminal
	summarize() (ok bool)                     // prints the summary; false if a guarantee was violated
}

func demo(out *os.File) error {
	server := miniredis.NewMiniRedis()
	if err := server.Start(); err != nil {
		return err
	}
	defer server.Close()
	server.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = rdb.Close() }()
	k, err := demoKeeper(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }()
	s := &screen{out: out, tty: isTerminal(out), start: time.Now()}
	first, err := newQueue(s, k)
	if err != nil {
		return err
	}
	second, err := newReaders(s, k)
	if err != nil {
		return err
	}
	third, err := newCalls(s, k, rdb)
	if err != nil {
		return err
	}
	s.printf("six processes contend for the fair lock %q with a TTL of %v", fairName, demoTTL)
	if err := s.run(first, first.workers, server.Addr(), 8*time.Second); err != nil {
		return err
	}
	ok := first.summarize()
	fmt.Fprintln(out)
	s.printf("four processes read under the read-write lock %q without a pause, a fifth one writes now and then", readersName)
	if err := s.run(second, second.workers, server.Addr(), 3500*time.Millisecond); err != nil {
		return err
	}
	ok = second.summarize() && ok
	fmt.Fprintln(out)
	s.printf("six processes call the API %q, which permits %d calls at once and %d in any second", apiName, apiAtOnce, apiMany)
	if err := s.run(third, third.workers, server.Addr(), 5500*time.Millisecond); err != nil {
		return err
	}
	if !third.summarize() || !ok {
		return &exit.Error{Code: 1, Err: fmt.Errorf("the demo failed: a guarantee was violated, or a fault could not be injected")}
	}
	return nil
}

// demoKeeper returns the keeper that each process of the demo uses.
func demoKeeper(rdb *redis.Client) (*lockkeeper.Keeper, error) {
	return lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatTimeout: demoHeartbeatTimeout})
}

// run starts the workers, shows the scenario for some time, stops the workers and waits until the last one has ended.
func (s *screen) run(p scenario, workers []*worker, addr string, length time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	events := make(chan workerEvent)
	for _, w := range workers {
		if err := w.start(self, addr, events); err != nil {
			return err
		}
		defer func() { _ = w.cmd.Process.Kill() }()
	}
	end := time.After(length)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	stopping := false
	for alive := len(workers); alive > 0; {
		select {
		case e := <-events:
			if e.State == "" {
				alive--
				continue
			}
			e.worker.update(e.event)
			if e.Error != "" {
				s.printf("%s: %s", e.worker.id, e.Error)
			}
			p.handle(e.worker, e.event, stopping)
		case <-end:
			stopping = true
			for _, w := range workers {
				process.Resume(w.cmd.Process)
				_ = w.stdin.Close()
			}
		case <-tick.C:
			s.draw(p)
		}
	}
	s.draw(p)
	s.drawn = 0
	return nil
}

// workerIDs asks the server for holders or waiters and returns the ids of their workers, or the error as the only element.
func workerIDs[T any](workers []*worker, query func(context.Context) ([]T, error), keeperID func(T) string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	list, err := query(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	var ids []string
	for _, x := range list {
		for _, w := range workers {
			if w.keeper == keeperID(x) {
				ids = append(ids, w.id)
			}
		}
	}
	return ids
}

// rounded rounds a measured duration for the output.
func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
