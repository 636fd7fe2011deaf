// Package demo implements the command demo, in which processes contend for locks on an embedded server.
package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// Exit codes of the demo.
const (
	exitViolated    = 1
	exitIncomplete  = 2
	exitInterrupted = 130 // as of a program that SIGINT ended
)

// Command returns the command demo.
func Command() *cobra.Command {
	var plain, inFull bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "Watch processes contend for locks on an embedded server",
		Long: `Watch processes contend for locks on a server that is embedded in the demo. Nothing
needs to be installed. The demo has four acts and takes less than ten seconds on an idle
machine. On a terminal it draws one lane for each process, otherwise it prints what
happens, about 20 lines.

1. A fair lock. Five processes take turns. One is killed (SIGKILL) while it holds the
   lock, and one is frozen (SIGSTOP) while it waits; the others go on in order.

2. The fence. A process is frozen while it holds the lock, and writes late, when another
   process has the lock. A store that does not check fences accepts the write; a store
   that does refuses it.

3. A read-write lock. Three processes read as fast as they can, by leases that they
   retain in memory. A fourth one writes now and then.

4. A rate limit. Four processes call an API within a limit per window of time and a
   limit of calls at once. One is killed during a call.

Fences are numbered in the order in which they were granted: +1, +2 and so on. After each
act the demo says what it has measured. NO_COLOR turns colors off.

With --long it runs for about seventeen seconds, with more processes and faults and bulk
calls to the API, and prints every event and a table after each part. On Windows, which
cannot freeze processes, it always does.

Exit codes: 1 a guarantee was violated, or with --long a fault could not be injected;
2 the machine was too slow for an act, so that nothing can be said; 130 interrupted.`,
		Example: "  lockkeeper demo\n  lockkeeper demo --plain\n  lockkeeper demo --long",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("demo takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			if inFull || runtime.GOOS == "windows" {
				return long(os.Stdout)
			}
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			_, err := Play(ctx, os.Stdout, plain)
			return err
		},
	}
	c.Flags().BoolVar(&plain, "plain", false, "print lines instead of drawing; the default unless standard output is a terminal")
	c.Flags().BoolVar(&inFull, "long", false, "more processes and faults, and every event, in about seventeen seconds")
	c.MarkFlagsMutuallyExclusive("plain", "long")
	return c
}

// Play performs all acts and shows them on out, until ctx ends. It returns what happened in each, also with an error.
func Play(ctx context.Context, out *os.File, plain bool) ([]*timeline.Act, error) {
	server, err := newServer(actHeartbeatTimeout)
	if err != nil {
		return nil, err
	}
	defer server.close()
	var d display = &plainDisplay{out}
	if !plain && isTerminal(out) {
		d = newTerminalDisplay(out)
	}
	all, err := playAll(ctx, server, d)
	if err == nil {
		err = outcome(all)
	}
	if ctx.Err() != nil {
		return all, &exit.Error{Code: exitInterrupted}
	}
	return all, err
}

// outcome returns the error of the worst outcome.
func outcome(all []*timeline.Act) error {
	var worst error
	for i, a := range all {
		switch a.Outcome {
		case timeline.Violated:
			return &exit.Error{Code: exitViolated, Err: fmt.Errorf("act %d of the demo failed: a guarantee was violated", i+1)}
		case timeline.Kept:
		default:
			worst = &exit.Error{Code: exitIncomplete, Err: errors.New("the machine was too slow for the demo")}
		}
	}
	return worst
}

// server is the embedded server, with a client and a keeper of the demo itself.
type server struct {
	*miniredis.Miniredis
	addr   string
	rdb    *redis.Client
	keeper *lockkeeper.Keeper
}

func newServer(heartbeatTimeout time.Duration) (*server, error) {
	m := miniredis.NewMiniRedis()
	if err := m.Start(); err != nil {
		return nil, err
	}
	m.ClockTTL(true)
	s := &server{Miniredis: m, addr: m.Addr(), rdb: redis.NewClient(&redis.Options{Addr: m.Addr()})}
	var err error
	if s.keeper, err = demoKeeper(s.rdb, heartbeatTimeout); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *server) close() {
	if s.keeper != nil {
		_ = s.keeper.Close()
	}
	_ = s.rdb.Close()
	s.Miniredis.Close()
}

// demoKeeper returns the keeper that each process of the demo uses.
func demoKeeper(rdb *redis.Client, heartbeatTimeout time.Duration) (*lockkeeper.Keeper, error) {
	return lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatTimeout: heartbeatTimeout})
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
