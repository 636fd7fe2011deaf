package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// BenchmarkInstructions counts the instructions that the server executes for an operation, in thousands, by valgrind's
// callgrind. A count is the same on a machine that is busy. It takes valgrind and a few minutes:
//
//	go test -run '^$' -bench Instructions -benchtime 1000x .
//
// An operation is a lock with its release; or, under handoff, one that waits for it, the release, and the hand-off, in the
// last of them with 100,000 more waiting; or, under limit_open and limit_closed, a decision of a rate limit. Beside them are two
// PINGs, the bare commands of benchmarks.Bare, two scripts that do nothing, with as many keys, arguments and numbers in the
// answer as those of a lock have, two that lock and release, without a fence and with one, and other libraries.
func BenchmarkInstructions(b *testing.B) {
	redis.SetLogger(silence{}) // until a server answers, every connection is refused
	locks := []struct {
		name string
		new  benchmarks.New
	}{
		{"mutex", func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) { return mutex.New(k, name, nil) }},
		{"fair", func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) { return fair.New(k, name, nil) }},
		{"rwlock_read", func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
			l, err := rwlock.New(k, name, nil)
			return benchmarks.Func(l.RLock), err
		}},
		{"rwlock_write", func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) { return rwlock.New(k, name, nil) }},
		{"semaphore", func(k *lockkeeper.Keeper, name string) (benchmarks.Locker, error) {
			s, err := semaphore.New(k, name, 1, nil)
			return benchmarks.Func(s.Acquire), err
		}},
	}
	run := func(name string, open func(v *counted) func() error) {
		b.Run(name, func(b *testing.B) { instructions(b, open) })
	}
	run("pings", func(v *counted) func() error {
		rdb := v.at.rdb(v)
		return func() error { return errors.Join(rdb.Ping(ctx).Err(), rdb.Ping(ctx).Err()) }
	})
	run("bare", func(v *counted) func() error {
		take, give, err := benchmarks.Bare(ctx, v.at.rdb(v))
		must.OK(v, err)
		return func() error { return errors.Join(take("x"), give("x")) }
	})
	run("empty", func(v *counted) func() error {
		rdb := v.at.rdb(v)
		acquire, release := redis.NewScript("return 1792319239123456"), redis.NewScript("return 33")
		must.OK(v, errors.Join(acquire.Load(ctx, rdb).Err(), release.Load(ctx, rdb).Err()))
		keys := []string{"{lock:x}:fair:holders", "{lock:x}:fair:meta", "{lock:x}:fair:queue", "{lock:x}:fair:tombstones"}
		token := protocol.NewKeeperID() + protocol.NewAddress("lock:", false) + ":1:30000.30000"
		return func() error {
			return errors.Join(acquire.EvalSha(ctx, rdb, keys, token, 30000, "", 3630000).Err(),
				release.EvalSha(ctx, rdb, keys[:3], token, 3630000).Err())
		}
	})
	// What an acquisition costs as a script, and what a fence adds to that.
	for name, fence := range map[string]string{
		"scripts": "",
		"scripts_with_fence": "local t, last = redis.call('TIME'), redis.call('HGET', KEYS[2], 'seq') or 0 " +
			"redis.call('HSET', KEYS[2], 'seq', t[1] * 1000000 - last > 0 and t[1] .. t[2] or last + 1) ",
	} {
		run(name, func(v *counted) func() error {
			rdb, keys := v.at.rdb(v), []string{"x", "{x}:meta"}
			acquire := redis.NewScript("if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end " + fence + "return 1")
			release := redis.NewScript("return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])")
			must.OK(v, errors.Join(acquire.Load(ctx, rdb).Err(), release.Load(ctx, rdb).Err()))
			return func() error {
				return errors.Join(acquire.EvalSha(ctx, rdb, keys, "token", 30000).Err(), release.EvalSha(ctx, rdb, keys[:1], "token").Err())
			}
		})
	}
	for _, l := range locks {
		run(l.name, func(v *counted) func() error {
			lock := must.Get(l.new(keeper(v, v.at.rdb(v), lockkeeper.Options{}), "x"))(v)
			return func() error {
				lease, err := lock.Lock(ctx)
				return errors.Join(err, lease.Release(ctx))
			}
		})
	}
	for _, l := range libraries {
		if l.name == "redislock" || l.name == "rueidislock" {
			run(l.name, func(v *counted) func() error {
				lock := l.open(v, v.at, ttl).lock("x")
				return func() error { return once(lock) }
			})
		}
	}
	for _, l := range locks {
		if l.name != "rwlock_read" { // a reader does not wait for another
			run("handoff/"+l.name, func(v *counted) func() error { return v.handedOn(l.new) })
		}
	}
	for _, l := range limiters {
		for of, limit := range map[string]int{ // per second of the machine's time, during which the slowed server decides a few thousand times
			"open":   1_000_000,
			"closed": 50,
		} {
			run("limit_"+of+"/"+l.name, func(v *counted) func() error {
				ask := l.open(v, v.at, limit)("x")
				return func() error {
					_, err := ask(ctx)
					return err
				}
			})
		}
	}
	run("heartbeats/fair_1000", func(v *counted) func() error { return v.beats(10, 100) })
	run("handoff/fair_before_100000", func(v *counted) func() error {
		v.crowd("{lock:x}:fair:", 100_000)
		return v.handedOn(locks[1].new)
	})
}

// counted is a server under callgrind.
type counted struct {
	*testing.B
	at target
}

// crowd adds n waiters to a queue, behind all that are added later. They send nothing more.
func (v *counted) crowd(keys string, n int) {
	rdb := v.at.rdb(v)
	const behindAll, most = 8e15, 1000
	lapse := float64(protocol.Heartbeats + time.Now().Add(time.Hour).UnixMilli())
	for from := 0; from < n; from += most {
		var line []redis.Z
		for i := from; i < from+most; i++ {
			token := fmt.Sprintf("%s:%d:30000.6000", strings.Repeat("k", 22), i)
			line = append(line, redis.Z{Score: behindAll, Member: token}, redis.Z{Score: lapse, Member: "+" + token})
		}
		must.OK(v, rdb.ZAdd(ctx, keys+"queue", line...).Err())
	}
}

// beats is a heartbeat of one of so many keepers, for so many waiters of each, while somebody holds the lock.
func (v *counted) beats(keepers, waiters int) func() error {
	rdb := v.at.rdb(v)
	const hour = 3_600_000
	keys := []string{"{lock:x}:fair:holders", "{lock:x}:fair:meta", "{lock:x}:fair:queue", "{lock:x}:fair:tombstones"}
	script := redis.NewScript(lua.Fair.Heartbeat.Text)
	must.OK(v, rdb.Set(ctx, keys[0], "another", time.Hour).Err())
	var commands [][]any
	for range keepers {
		keeper := protocol.NewKeeperID() + protocol.NewAddress("lock:", false)
		join := []any{hour, protocol.HeartbeatRejoin, "", hour}
		beat := []any{hour, 0, "", hour}
		for i := range waiters {
			token := fmt.Sprintf("%s:%s:30000.6000", keeper, strconv.FormatInt(int64(1e12)+int64(i), 36))
			join, beat = append(join, token, 0), append(beat, token)
		}
		must.OK(v, script.Run(ctx, rdb, keys, join...).Err())
		commands = append(commands, beat)
	}
	turn := 0
	return func() error {
		turn++
		n, err := script.Run(ctx, rdb, keys, commands[turn%keepers]...).Slice()
		if err == nil && len(n) != 7 {
			err = fmt.Errorf("not all waited: %v", n)
		}
		return err
	}
}

// handedOn is an operation that releases a lock to another keeper, which waits for it.
func (v *counted) handedOn(n benchmarks.New) func() error {
	var locks []benchmarks.Locker
	var waiting []chan struct{}
	for range 2 {
		waits := make(chan struct{}, 1)
		k := keeper(v, v.at.rdb(v), lockkeeper.Options{Hooks: lockkeeper.Hooks{Queued: func(lockkeeper.Event) {
			select {
			case waits <- struct{}{}:
			default: // its position has changed
			}
		}}})
		locks, waiting = append(locks, must.Get(n(k, "x"))(v)), append(waiting, waits)
	}
	held := must.Get(locks[0].Lock(ctx))(v)
	turn := 0
	return func() error {
		turn = 1 - turn
		var next *lockkeeper.Lease
		got := make(chan error, 1)
		go func() {
			var err error
			next, err = locks[turn].Lock(ctx)
			got <- err
		}()
		select {
		case <-waiting[turn]:
		case err := <-got:
			return fmt.Errorf("it did not wait: %v", err)
		}
		err := errors.Join(held.Release(ctx), <-got)
		held = next
		return err
	}
}

// instructions reports what the server has executed for one operation more: b.N of them and some, less the same some.
func instructions(b *testing.B, open func(v *counted) func() error) {
	some, few := 0, 0.0
	if !benchmarks.Once() {
		some = 100
		few = executed(b, some, open)
	}
	many := executed(b, some+b.N, open)
	b.ReportMetric(0, "ns/op") // it was slowed down
	b.ReportMetric((many-few)/float64(b.N)/1000, "k-instructions/op")
}

var executedCount = regexp.MustCompile(`refs:\s+([\d,]+)`)

// executed is how many instructions a server executes from its start until it has run n operations and ends.
func executed(b *testing.B, n int, open func(v *counted) func() error) float64 {
	valgrind, err := exec.LookPath("valgrind")
	if err != nil {
		b.Skip("it takes valgrind")
	}
	port := strconv.Itoa(redistest.FreePort(b))
	cmd := exec.Command(valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null",
		redistest.RequireBinary(b), "--port", port, "--bind", "127.0.0.1", "--save", "", "--hz", "1", "--dynamic-hz", "no")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must.OK(b, redistest.StartProcess(cmd))
	ended := false
	b.Cleanup(func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, DialerRetries: 1})
	defer func() { _ = rdb.Close() }()
	for deadline := time.Now().Add(30 * time.Second); rdb.Ping(ctx).Err() != nil; time.Sleep(50 * time.Millisecond) {
		must.That(b, !time.Now().After(deadline), "the server does not answer")
	}
	op := open(&counted{b, target{redis: "redis://127.0.0.1:" + port}})
	for range n {
		must.OK(b, op())
	}
	_ = rdb.ShutdownNoSave(ctx).Err() // sooner than by a signal, which the server looks at once a second
	_ = cmd.Wait()
	ended = true
	m := executedCount.FindStringSubmatch(out.String())
	must.That(b, m != nil, "no count in the output of callgrind:\n%s", out.String())
	return must.Get(strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64))(b)
}
