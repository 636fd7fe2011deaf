package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// childRole, in the environment, makes the program a process that holds locks or waits for them: it has what the role is
// as JSON.
const childRole = "LOCKKEEPER_BENCH_CHILD"

// role is what a child does.
type role struct {
	Library     string
	Redis, Etcd string
	TTL         time.Duration
	Names       []string
	Reads       bool // it reads each name once, with Linger, instead of locking it
	Linger      time.Duration
}

// child locks all names, prints "held" when it has them all, and runs until its standard input ends.
func child(text string) {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var r role
	check(json.Unmarshal([]byte(text), &r))
	if r.Reads {
		check(play(func(s *stage) {
			readOnce(s, r)
			fmt.Println("held")
			_, _ = io.Copy(io.Discard, os.Stdin)
		}))
		return
	}
	i := slices.IndexFunc(libraries, func(l library) bool { return l.name == r.Library })
	check(play(func(s *stage) {
		c := libraries[i].open(s, target{redis: r.Redis, etcd: r.Etcd}, r.TTL)
		var wg sync.WaitGroup
		for _, name := range r.Names {
			l := c.lock(name)
			wg.Go(func() {
				_, err := l(ctx)
				check(err)
			})
		}
		go func() {
			wg.Wait()
			fmt.Println("held")
		}()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}))
}

// spawn starts a child that asks for these names. Kill ends it by SIGKILL and waits for it.
func (b *bench) spawn(s *stage, l library, ttl time.Duration, names []string) (held <-chan error, kill func()) {
	held, kill, _ = start(s, role{Library: l.name, Redis: b.at.redis, Etcd: b.at.etcd, TTL: ttl, Names: names})
	return held, kill
}

// start starts a child. Held tells when it has printed that it is ready. Freeze stops it, and returns when it stands still.
func start(s *stage, r role) (held <-chan error, kill, freeze func()) {
	self, err := os.Executable()
	s.must(err)
	text, err := json.Marshal(r)
	s.must(err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childRole+"="+string(text))
	cmd.Stderr = os.Stderr
	_, err = cmd.StdinPipe()
	s.must(err)
	out, err := cmd.StdoutPipe()
	s.must(err)
	s.must(redistest.StartProcess(cmd))
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	s.Cleanup(kill)
	done := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(out).ReadString('\n')
		if err == nil && line != "held\n" {
			err = fmt.Errorf("a child said %q", line)
		}
		done <- err
	}()
	freeze = func() {
		s.must(cmd.Process.Signal(syscall.SIGSTOP))
		time.Sleep(20 * time.Millisecond) // the signal is delivered in its own time
	}
	return done, kill, freeze
}

// settle is the time for a waiter to join the queue where the server cannot report it.
const settle = 300 * time.Millisecond

// inLine waits until count waiters are in the queue of each name.
func (b *bench) inLine(s *stage, c client, names []string, count int) {
	if c.inLine == nil {
		time.Sleep(settle)
		return
	}
	for _, name := range names {
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
			n, err := c.inLine(ctx, name)
			s.must(err)
			if n >= count {
				break
			}
			if time.Now().After(deadline) {
				s.Fatalf("%d of %d wait", n, count)
			}
		}
	}
}

// arrival is when a waiter held its lock.
type arrival struct {
	i   int
	at  time.Time
	err error
}

// waiters asks for each name through a client of its own, and reports when each was acquired.
func (b *bench) waiters(s *stage, l library, names []string) <-chan arrival {
	arrived := make(chan arrival, len(names))
	for i, name := range names {
		lock := l.open(s, b.at, ttl).lock(name)
		go func() {
			release, err := lock(ctx)
			arrived <- arrival{i, time.Now(), err}
			if err == nil {
				_ = release()
			}
		}()
	}
	return arrived
}

// crash is processes that are killed by SIGKILL, each with locks on several names, and a client that waits for each name.
// Their leases last 1 s, and 2 s with etcd, which has no shorter ones.
//
//	ms/after-lease      in crash/holder, from the end of the lease, as the server saw it, to the waiter running
//	ms/after-lease-max  the longest of the round
//	ms/behind-killed    in crash/waiter, a hand-off if the waiter in front was killed just before
//	ms/handoff          the same hand-off if there was no other waiter
//	ms/extra            the difference
func crash(b *bench) {
	lease := func(l library) time.Duration {
		if l.etcd {
			return 2 * time.Second
		}
		return time.Second
	}
	sides := b.present(libraries)
	n, count := pick(b, 3, 1), pick(b, 8, 3)
	newNames := func() []string {
		names := make([]string, count)
		for i := range names {
			names[i] = b.name()
		}
		return names
	}
	rounds(n, len(sides), func(i int) {
		const of = "crash/holder"
		l := sides[i]
		b.turn(of, l.name, func(s *stage) {
			names := newNames()
			look := l.open(s, b.at, lease(l))
			held, kill := b.spawn(s, l, lease(l), names)
			s.must(<-held)
			arrived := b.waiters(s, l, names)
			b.inLine(s, look, names, 1)
			kill()
			ends := make([]time.Time, count)
			errs := make([]error, count)
			var wg sync.WaitGroup
			for i, name := range names {
				wg.Go(func() {
					left, err := look.left(ctx, name)
					ends[i], errs[i] = time.Now().Add(left), err
				})
			}
			wg.Wait()
			var after []float64
			for range names {
				a := <-arrived
				s.must(a.err)
				s.must(errs[a.i])
				after = append(after, float64(a.at.Sub(ends[a.i]))/1e6)
			}
			b.results.add(of, l.name, "ms/after-lease", "ms", benchmarks.Median(after))
			b.results.add(of, l.name, "ms/after-lease-max", "ms", slices.Max(after))
		})
	})
	rounds(n, len(sides), func(i int) {
		const of = "crash/waiter"
		l := sides[i]
		b.turn(of, l.name, func(s *stage) {
			handoffs := func(killed bool) float64 {
				names := newNames()
				look := l.open(s, b.at, ttl)
				releases := make([]release, count)
				for i, name := range names {
					var err error
					releases[i], err = look.lock(name)(ctx)
					s.must(err)
				}
				front, kill := 0, func() {}
				if killed {
					_, kill = b.spawn(s, l, lease(l), names)
					front = 1
					b.inLine(s, look, names, front)
				}
				arrived := b.waiters(s, l, names)
				b.inLine(s, look, names, front+1)
				kill()
				began := make([]time.Time, count)
				for i, release := range releases {
					began[i] = time.Now()
					go func() { _ = release() }()
				}
				var took []float64
				for range names {
					a := <-arrived
					s.must(a.err)
					took = append(took, float64(a.at.Sub(began[a.i]))/1e6)
				}
				return benchmarks.Median(took)
			}
			alone, behind := handoffs(false), handoffs(true)
			b.results.add(of, l.name, "ms/behind-killed", "ms", behind)
			b.results.add(of, l.name, "ms/handoff", "ms", alone)
			b.results.add(of, l.name, "ms/extra", "ms", behind-alone)
		})
	})
}
