package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// The workers of the demo are processes that run this program with the hidden command demo-worker until their standard input
// is closed. A worker writes an event whenever its state changes, as one JSON object per line. The workers of the acts get
// commands, one per line.

// event is a change of the state of a worker.
type event struct {
	State    string        `json:"state"`
	At       time.Time     `json:"at"`               // by the clock of the machine, which all processes share: they may be learned of in another order
	Keeper   string        `json:"keeper,omitempty"` // the keeper's ID, in stateStarting
	Fence    uint64        `json:"fence,omitempty"`
	Duration time.Duration `json:"duration,omitempty"` // in stateHolding of the wait, in stateReleasing of the hold
	// In stateHolding, from the protected resource, which is kept at the server:
	Inside     string `json:"inside,omitempty"`     // a worker that used the resource and must not have
	Concurrent int    `json:"concurrent,omitempty"` // workers that use the resource; permits of the calls, if it is the API
	LastFence  uint64 `json:"last_fence,omitempty"` // the largest fence that the worker's fence must exceed
	Error      string `json:"error,omitempty"`

	// Of the acts:
	Lost     bool          `json:"lost,omitempty"`     // in stateReleasing: the lease was lost before
	Reads    int           `json:"reads,omitempty"`    // in stateReading: within Duration, before Waited
	Waited   time.Duration `json:"waited,omitempty"`   // in stateReading: until now
	Overlaps int           `json:"overlaps,omitempty"` // in stateReleasing or stateReading: readers during a write
	Refused  bool          `json:"refused,omitempty"`  // in stateWrote: the store that checks fences refused the write
}

// States of a worker. It does not report that it was killed or frozen.
const (
	stateStarting  = "starting"
	stateWaiting   = "waiting"
	stateHolding   = "holding"
	stateReleasing = "releasing"
	stateIdle      = "idle"
	stateKilled    = "killed"
	stateFrozen    = "frozen"
	stateReading   = "reading" // in an act: has read by itself since the previous event
	stateWrote     = "wrote"   // in an act: has written to the stores
)

// worker is a process of the demo.
type worker struct {
	id     string
	role   string
	shared string // file of the memory that workers of an act share, if they do
	keeper string
	cmd    *exec.Cmd
	stdin  io.WriteCloser // takes the commands; closing it stops the worker
	state  string
	since  time.Time
	fence  uint64
	leases int
}

// workerEvent is an event of a worker. An event without a state means that the process has ended.
type workerEvent struct {
	worker *worker
	event
}

// start starts the process of the worker.
func (w *worker) start(self, addr string, events chan<- workerEvent) error {
	w.state, w.since = stateStarting, time.Now()
	w.cmd = exec.Command(self, "demo-worker", "--addr", addr, "--id", w.id, "--role", w.role, "--shared", w.shared)
	w.cmd.Stderr = os.Stderr
	process.KillWithParent(w.cmd)
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	go func() {
		for sc := bufio.NewScanner(out); sc.Scan(); {
			var e event
			if json.Unmarshal(sc.Bytes(), &e) == nil && e.State != "" {
				events <- workerEvent{w, e}
			}
		}
		_ = w.cmd.Wait()
		events <- workerEvent{worker: w}
	}()
	return nil
}

// update applies an event to the state of the worker.
func (w *worker) update(e event) {
	if e.Keeper != "" {
		w.keeper = e.Keeper
	}
	w.state, w.since = e.State, e.At
	if e.State == stateHolding {
		w.fence = e.Fence
		w.leases++
	}
}

// role is what a worker does in a loop.
type role struct {
	name      string // of the lock
	exclusive bool   // no other worker may use the resource at the same time
	permits   int    // of each call, if the resource is the API; otherwise 0
	do        func(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error
	hold      interval
	idle      interval
}

// roles are the values of --role.
var roles = map[string]func(*lockkeeper.Keeper) (role, error){
	"fair": func(k *lockkeeper.Keeper) (role, error) {
		l, err := demoFair(k)
		return role{fairName, true, 0, l.Do, interval{40, 120}, interval{10, 60}}, err
	},
	"read": func(k *lockkeeper.Keeper) (role, error) {
		l, err := demoReaders(k)
		return role{readersName, false, 0, l.DoRead, interval{100, 300}, interval{}}, err
	},
	"write": func(k *lockkeeper.Keeper) (role, error) {
		l, err := demoReaders(k)
		return role{readersName, true, 0, l.DoWrite, interval{50, 100}, interval{300, 600}}, err
	},
	"call":      func(k *lockkeeper.Keeper) (role, error) { return caller(k, 1, interval{50, 150}) },
	"bulk-call": func(k *lockkeeper.Keeper) (role, error) { return caller(k, bulkPermits, interval{200, 300}) },
}

// caller calls the API in a loop, as often as the limits permit.
func caller(k *lockkeeper.Keeper, permits int, hold interval) (role, error) {
	s, err := demoAPI(k)
	do := func(ctx context.Context, fn func(context.Context, uint64) error) error {
		return s.DoN(ctx, permits, fn)
	}
	return role{apiName, false, permits, do, hold, interval{}}, err
}

// The protected resource has a hash of the workers that use it, with whether each is exclusive, and a hash with the largest
// fence of all and of exclusive workers. enter returns a worker that must not be there, how many workers use the resource, and
// the fence that the fence of the worker must exceed.
var (
	enter = redis.NewScript(`
		local id, fence, exclusive = ARGV[1], ARGV[2], ARGV[3]
		local wrong, all = '', redis.call('HGETALL', KEYS[1])
		for i = 1, #all, 2 do
			if exclusive == '1' or all[i + 1] == '1' then
				wrong = all[i]
				redis.call('HDEL', KEYS[1], wrong)
			end
		end
		redis.call('HSET', KEYS[1], id, exclusive)
		local last = redis.call('HMGET', KEYS[2], 'all', 'exclusive')
		if tonumber(fence) > tonumber(last[1] or 0) then redis.call('HSET', KEYS[2], 'all', fence) end
		if exclusive == '1' then redis.call('HSET', KEYS[2], 'exclusive', fence) end
		return {wrong, tostring(redis.call('HLEN', KEYS[1])), exclusive == '1' and last[1] or last[2] or '0'}`)
	leave = redis.NewScript(`return redis.call('HDEL', KEYS[1], ARGV[1])`)
)

// The API has a hash of the workers that are in a call, with their permits, and a list of all calls: the time of the call, the
// fence, which is the time at which the call was permitted, both in µs, and the permits. enterAPI returns the permits of the
// calls in progress.
var enterAPI = redis.NewScript(`
	local id, fence, permits = ARGV[1], ARGV[2], ARGV[3]
	local now = redis.call('TIME')
	redis.call('HSET', KEYS[1], id, permits)
	redis.call('RPUSH', KEYS[2], string.format('%.0f', now[1] * 1000000 + now[2]) .. ' ' .. fence .. ' ' .. permits)
	local sum = 0
	for _, n in ipairs(redis.call('HVALS', KEYS[1])) do sum = sum + n end
	return sum`)

// WorkerCommand returns the hidden command that the demo runs in its workers.
func WorkerCommand() *cobra.Command {
	var addr string
	var p part
	c := &cobra.Command{
		Use:    "demo-worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(c.Context())
			defer cancel()
			commands := make(chan string, 16)
			p.commands = commands
			go func() { // the demo closes standard input to stop the worker
				for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
					select {
					case commands <- sc.Text():
					case <-ctx.Done():
					}
				}
				cancel()
			}()
			return work(ctx, addr, &p)
		},
	}
	c.Flags().StringVar(&addr, "addr", "", "address of the server")
	c.Flags().StringVar(&p.id, "id", "", "id of the worker")
	c.Flags().StringVar(&p.role, "role", "", "role of the worker")
	c.Flags().StringVar(&p.shared, "shared", "", "file of the memory that workers share")
	return c
}

// part is the part of a worker in the demo.
type part struct {
	id, role, shared string
	commands         <-chan string
	rdb              *redis.Client
	keeper           *lockkeeper.Keeper
}

// report writes an event for the demo.
func (*part) report(e event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	_ = json.NewEncoder(os.Stdout).Encode(e)
}

// await waits for a command, and returns "" if ctx ends first.
func (p *part) await(ctx context.Context) string {
	select {
	case c := <-p.commands:
		return c
	case <-ctx.Done():
		return ""
	}
}

// work plays the part of a worker until ctx ends.
func work(ctx context.Context, addr string, p *part) (err error) {
	p.rdb = redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = p.rdb.Close() }()
	build, long := roles[p.role]
	play, known := parts[p.role]
	if !long && !known {
		return exit.Usagef("unknown --role %q", p.role)
	}
	timeout := actHeartbeatTimeout
	if long {
		timeout = demoHeartbeatTimeout
	}
	if p.keeper, err = demoKeeper(p.rdb, timeout); err != nil {
		return err
	}
	defer func() { _ = p.keeper.Close() }()
	if long {
		r, err := build(p.keeper)
		if err != nil {
			return err
		}
		p.report(event{State: stateStarting, Keeper: p.keeper.ID()})
		return p.loop(ctx, r)
	}
	p.report(event{State: stateStarting, Keeper: p.keeper.ID()})
	p.await(ctx) // the start of the act
	err = play(ctx, p)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		p.report(event{State: stateIdle, Error: err.Error()})
	}
	return err
}

// loop acquires the lock of a role again and again.
func (p *part) loop(ctx context.Context, r role) error {
	report, rdb, id := p.report, p.rdb, p.id
	for ctx.Err() == nil {
		report(event{State: stateWaiting})
		requested := time.Now()
		err := r.do(ctx, func(ctx context.Context, fence uint64) error {
			acquired := time.Now()
			e := event{State: stateHolding, Fence: fence, Duration: acquired.Sub(requested)}
			if err := r.enter(ctx, rdb, id, &e); err != nil {
				return err
			}
			report(e)
			r.hold.sleep(ctx)
			err := r.leave(context.WithoutCancel(ctx), rdb, id)
			report(event{State: stateReleasing, Duration: time.Since(acquired)})
			return err
		})
		if err != nil && ctx.Err() == nil {
			report(event{State: stateIdle, Error: err.Error()})
			return err
		}
		report(event{State: stateIdle})
		r.idle.sleep(ctx)
	}
	return nil
}

// enter begins to use the protected resource, and sets the fields of e that come from it.
func (r role) enter(ctx context.Context, rdb *redis.Client, id string, e *event) (err error) {
	if r.permits > 0 {
		e.Concurrent, err = enterAPI.Run(ctx, rdb, []string{"demo:inside:" + r.name, "demo:calls:" + r.name}, id, e.Fence, r.permits).Int()
		return err
	}
	reply, err := enter.Run(ctx, rdb, []string{"demo:inside:" + r.name, "demo:fences:" + r.name}, id, e.Fence, r.exclusive).StringSlice()
	if err != nil {
		return err
	}
	e.Inside = reply[0]
	_, err = fmt.Sscan(reply[1]+" "+reply[2], &e.Concurrent, &e.LastFence)
	return err
}

// leave ends the use of the protected resource.
func (r role) leave(ctx context.Context, rdb *redis.Client, id string) error {
	return leave.Run(ctx, rdb, []string{"demo:inside:" + r.name}, id).Err()
}

// interval is a range of durations in milliseconds.
type interval struct{ min, max int }

// sleep waits for a random duration of the interval, or until ctx ends.
func (i interval) sleep(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(i.min+rand.IntN(i.max-i.min+1)) * time.Millisecond):
	}
}
