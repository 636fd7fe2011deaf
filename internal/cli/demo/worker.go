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

// The demo's workers are processes: this program again, told to work until it is stopped. Each says on its standard
// output what it does, a JSON object a line.

// event is what a worker says.
type event struct {
	State  string        `json:"state"`            // starts, waits, holds, leaves, left
	Keeper string        `json:"keeper,omitempty"` // when it starts: how the server knows it
	Fence  uint64        `json:"fence,omitempty"`
	Took   time.Duration `json:"took,omitempty"` // when it holds: the wait; when it leaves: its stay
	// What the protected resource saw when the worker came in, at the server and so in its order.
	Inside    string `json:"inside,omitempty"`     // a worker that was still inside and should not have been
	Together  int    `json:"together,omitempty"`   // how many are inside now; in calls, by what they count
	LastFence uint64 `json:"last_fence,omitempty"` // the largest that the worker's own must exceed
	Error     string `json:"error,omitempty"`
}

// worker is one process of the demo, as the demo sees it.
type worker struct {
	id     string
	role   string
	keeper string
	cmd    *exec.Cmd
	in     io.Closer
	state  string
	since  time.Time
	fence  uint64
	leases int
}

// told is an event with the worker that told it; an event without a state says that the worker has ended.
type told struct {
	w *worker
	e event
}

// begin starts the worker's process.
func (w *worker) begin(self, addr string, events chan<- told) error {
	w.state, w.since = "starts", time.Now()
	w.cmd = exec.Command(self, "demo-worker", "--addr", addr, "--id", w.id, "--role", w.role)
	w.cmd.Stderr = os.Stderr
	process.KillWithParent(w.cmd)
	var err error
	if w.in, err = w.cmd.StdinPipe(); err != nil {
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
				events <- told{w, e}
			}
		}
		_ = w.cmd.Wait()
		events <- told{w: w}
	}()
	return nil
}

// note takes over what the worker tells of itself.
func (w *worker) note(e event) {
	if e.Keeper != "" {
		w.keeper = e.Keeper
	}
	w.state, w.since = e.State, time.Now()
	if e.State == "holds" {
		w.fence = e.Fence
		w.leases++
	}
}

// role is what a worker does, over and over.
type role struct {
	name  string // of the lock
	alone bool   // nobody else may be inside
	calls int    // not 0: it calls the API, and so much is what each call counts
	do    func(ctx context.Context, fn func(ctx context.Context, fence uint64) error) error
	stay  span
	rest  span
}

// roles is all that workers can be.
var roles = map[string]func(*lockkeeper.Keeper) (role, error){
	"stand-in-line": func(k *lockkeeper.Keeper) (role, error) {
		l, err := demoLine(k)
		return role{lineName, true, 0, l.Do, span{40, 120}, span{10, 60}}, err
	},
	"read": func(k *lockkeeper.Keeper) (role, error) {
		l, err := demoReaders(k)
		return role{readersName, false, 0, l.DoRead, span{100, 300}, span{}}, err
	},
	"write": func(k *lockkeeper.Keeper) (role, error) {
		l, err := demoReaders(k)
		return role{readersName, true, 0, l.DoWrite, span{50, 100}, span{300, 600}}, err
	},
	"call":         func(k *lockkeeper.Keeper) (role, error) { return caller(k, 1, span{50, 150}) },
	"call-in-bulk": func(k *lockkeeper.Keeper) (role, error) { return caller(k, bulk, span{200, 300}) },
}

// caller calls the API without a pause, as far as it is permitted.
func caller(k *lockkeeper.Keeper, permits int, stay span) (role, error) {
	s, err := demoAPI(k)
	do := func(ctx context.Context, fn func(context.Context, uint64) error) error { return s.Do(ctx, permits, fn) }
	return role{apiName, false, permits, do, stay, span{}}, err
}

// The protected resource: who is inside, by whether alone; the largest fence that came in, and the largest of those who
// must be alone. Whoever comes in gets to know who is there that should not be.
var (
	enter = redis.NewScript(`
		local id, fence, alone = ARGV[1], ARGV[2], ARGV[3]
		local wrong, all = '', redis.call('HGETALL', KEYS[1])
		for i = 1, #all, 2 do
			if alone == '1' or all[i + 1] == '1' then
				wrong = all[i]
				redis.call('HDEL', KEYS[1], wrong)
			end
		end
		redis.call('HSET', KEYS[1], id, alone)
		local last = redis.call('HMGET', KEYS[2], 'all', 'alone')
		if tonumber(fence) > tonumber(last[1] or 0) then redis.call('HSET', KEYS[2], 'all', fence) end
		if alone == '1' then redis.call('HSET', KEYS[2], 'alone', fence) end
		return {wrong, tostring(redis.call('HLEN', KEYS[1])), alone == '1' and last[1] or last[2] or '0'}`)
	depart = redis.NewScript(`return redis.call('HDEL', KEYS[1], ARGV[1])`)
)

// The API: who is in a call, by what that counts; and all calls, each with when it came, its fence, which is when it was
// permitted, in µs, and what it counts. It answers how much is in calls now.
var enterAPI = redis.NewScript(`
	local id, fence, counts = ARGV[1], ARGV[2], ARGV[3]
	local now = redis.call('TIME')
	redis.call('HSET', KEYS[1], id, counts)
	redis.call('RPUSH', KEYS[2], string.format('%.0f', now[1] * 1000000 + now[2]) .. ' ' .. fence .. ' ' .. counts)
	local sum = 0
	for _, n in ipairs(redis.call('HVALS', KEYS[1])) do sum = sum + n end
	return sum`)

func WorkerCommand() *cobra.Command {
	var addr, id, does string
	c := &cobra.Command{
		Use:    "demo-worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(c.Context())
			defer cancel()
			go func() { // the parent closes our input to stop us
				_, _ = os.Stdin.Read(make([]byte, 1))
				cancel()
			}()
			return work(ctx, addr, id, does)
		},
	}
	c.Flags().StringVar(&addr, "addr", "", "address of the server")
	c.Flags().StringVar(&id, "id", "", "name of the worker")
	c.Flags().StringVar(&does, "role", "", "what the worker does")
	return c
}

func work(ctx context.Context, addr, id, does string) error {
	say := func(e event) { _ = json.NewEncoder(os.Stdout).Encode(e) }
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = rdb.Close() }()
	k, err := demoKeeper(rdb)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }()
	build, known := roles[does]
	if !known {
		return exit.Usagef("--role %q is unknown", does)
	}
	r, err := build(k)
	if err != nil {
		return err
	}
	say(event{State: "starts", Keeper: k.ID()})
	for ctx.Err() == nil {
		say(event{State: "waits"})
		came := time.Now()
		err := r.do(ctx, func(ctx context.Context, fence uint64) error {
			in := time.Now()
			e := event{State: "holds", Fence: fence, Took: in.Sub(came)}
			if err := r.enter(ctx, rdb, id, &e); err != nil {
				return err
			}
			say(e)
			r.stay.pause(ctx)
			err := r.depart(context.WithoutCancel(ctx), rdb, id)
			say(event{State: "leaves", Took: time.Since(in)})
			return err
		})
		if err != nil && ctx.Err() == nil {
			say(event{State: "left", Error: err.Error()})
			return err
		}
		say(event{State: "left"})
		r.rest.pause(ctx)
	}
	return nil
}

// enter goes into the protected resource, and notes what it saw.
func (r role) enter(ctx context.Context, rdb *redis.Client, id string, e *event) (err error) {
	if r.calls > 0 {
		e.Together, err = enterAPI.Run(ctx, rdb, []string{"demo:inside:" + r.name, "demo:calls:" + r.name}, id, e.Fence, r.calls).Int()
		return err
	}
	saw, err := enter.Run(ctx, rdb, []string{"demo:inside:" + r.name, "demo:fences:" + r.name}, id, e.Fence, r.alone).StringSlice()
	if err != nil {
		return err
	}
	e.Inside = saw[0]
	_, err = fmt.Sscan(saw[1]+" "+saw[2], &e.Together, &e.LastFence)
	return err
}

func (r role) depart(ctx context.Context, rdb *redis.Client, id string) error {
	return depart.Run(ctx, rdb, []string{"demo:inside:" + r.name}, id).Err()
}

// span is between how many and how many milliseconds something takes.
type span struct{ least, most int }

// pause waits for some time of the span, or until ctx ends.
func (s span) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(s.least+rand.IntN(s.most-s.least+1)) * time.Millisecond):
	}
}
