package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// Workers are processes that run this program with the hidden command demo-worker. They get commands by standard input, one per line,
// and write events to standard output, one JSON object per line. They end when their input is closed.

// event is what a worker reports: a change of its state, unless one of the last fields is set.
type event struct {
	At     time.Time      `json:"at"` // by the clock of the machine, which all processes share: they may be received in another order
	State  timeline.State `json:"state"`
	Fence  uint64         `json:"fence"`  // of the lease that it holds now, or by which it writes
	Waited time.Duration  `json:"waited"` // for the lease that it holds now
	Lost   bool           `json:"lost"`   // a lease that it has released had been lost before

	Keeper string    `json:"keeper"` // it is ready; the ID of its keeper
	Error  string    `json:"error"`  // it has failed
	Writes bool      `json:"writes"` // it writes to the stores
	Reads  int       `json:"reads"`  // it has read so many times, without a break,
	Since  time.Time `json:"since"`  // since this time

	worker *worker
	ended  bool // its process has ended
}

// open returns the lock of a kind, which is its name too.
func open(k *lockkeeper.Keeper, kind string) (lockkeeper.Locker, error) {
	switch kind {
	case "fair":
		return fair.New(k, kind, &fair.Options{TTL: fairTTL})
	case "mutex":
		return mutex.New(k, kind, &mutex.Options{TTL: 400 * time.Millisecond})
	case "rwlock":
		return rwlock.New(k, kind, &rwlock.Options{TTL: 5 * time.Second, Linger: 20 * time.Millisecond})
	default:
		l, err := ratelimit.NewConcurrent(k, kind, calls, window, atOnce, &ratelimit.ConcurrentOptions{TTL: callTTL})
		if err != nil {
			return nil, err
		}
		return l.Locker(), nil
	}
}

// WorkerCommand returns the hidden command that the demo runs in its workers.
func WorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "demo-worker ADDR KIND",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE:   func(c *cobra.Command, args []string) error { return runWorker(c.Context(), args[0], args[1]) },
	}
}

func runWorker(ctx context.Context, addr, kind string) error {
	signal.Ignore(os.Interrupt) // the demo, which gets it too, ends its workers
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	k, err := newKeeper(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }()
	if err := obey(ctx, k, kind); err != nil {
		report(event{Error: err.Error()})
	}
	return nil
}

// report writes an event for the demo.
func report(e event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	_ = json.NewEncoder(os.Stdout).Encode(e)
}

// obey obeys commands until there are no more.
func obey(ctx context.Context, k *lockkeeper.Keeper, kind string) error {
	lock, err := open(k, kind)
	if err != nil {
		return err
	}
	report(event{Keeper: k.ID()})
	var lease *lockkeeper.Lease
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		now := time.Now()
		switch commands.Text() {
		case "lock":
			report(event{State: timeline.Waiting})
			if lease, err = lock.Lock(ctx); err != nil {
				return err
			}
			report(event{State: timeline.Holding, Fence: lease.Fence(), Waited: time.Since(now)})
		case "release":
			lost := errors.Is(lease.Release(ctx), lockkeeper.ErrLost)
			report(event{State: timeline.Idle, At: now, Lost: lost}) // as of before the next worker holds the lock
		case "write": // even if the lease is lost, as a write that was on its way when the process was frozen
			report(event{Writes: true, Fence: lease.Fence()})
		case "read":
			return read(ctx, lock.(*rwlock.Lock))
		}
	}
	return nil
}

// longBreak ends a period of reads. It is shorter than a write, so that no write fits into a period.
const longBreak = 15 * time.Millisecond

// read acquires and releases leases without a pause for ever, in periods of 4 ms between which other processes can run. It reports
// each period, from within its first lease to within its last one.
func read(ctx context.Context, lock *rwlock.Lock) error {
	for {
		e := event{State: timeline.Waiting}
		for e.Reads == 0 || e.At.Sub(e.Since) < 4*time.Millisecond {
			lease, err := lock.RLock(ctx)
			if err != nil {
				return err
			}
			now := time.Now()
			if e.Reads == 0 {
				e.Since = now
			} else if now.Sub(e.At) >= longBreak {
				_ = lease.Release(ctx)
				break
			}
			e.Reads, e.At = e.Reads+1, now
			e.Lost = errors.Is(lease.Release(ctx), lockkeeper.ErrLost) || e.Lost
		}
		report(e)
		time.Sleep(4 * time.Millisecond)
	}
}
