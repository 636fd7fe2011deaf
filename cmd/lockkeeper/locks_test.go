package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// keeperOf returns a keeper with the owner label.
func keeperOf(t *testing.T, rdb *redis.Client, owner string) *lockkeeper.Keeper {
	t.Helper()
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Owner: owner}))(t)
	t.Cleanup(func() { _ = k.Close() })
	return k
}

// scene is a server with locks of several kinds:
//   - the fair lock jobs:report is held by web-1, and web-2 and web-3 wait for it, in this order
//   - the read-write lock catalogue is held by two readers, and a writer and a reader wait for it
//   - the semaphore encoders has 3 permits, of which 2 are held; a waiter needs 2
//   - the mutex "odd\x1b[31m name" is held
//   - the mutex foreign is held by another library without an expiry
type scene struct {
	url    string
	rdb    *redis.Client
	leases map[string]*lockkeeper.Lease
	ended  map[string]chan error // of the waiting calls
}

func newScene(t *testing.T) *scene {
	t.Helper()
	server := redistest.Start(t)
	s := &scene{url: "redis://" + server.Addr, rdb: redistest.Connect(server), leases: map[string]*lockkeeper.Lease{}, ended: map[string]chan error{}}
	web1, web2, web3 := keeperOf(t, s.rdb, "web-1:10 report"), keeperOf(t, s.rdb, "web-2:20 report"), keeperOf(t, s.rdb, "web-3:30 report")
	fairOf := func(k *lockkeeper.Keeper) lockkeeper.Locker {
		return must.Get(fair.New(k, "jobs:report", nil))(t)
	}
	s.hold(t, "report", fairOf(web1))
	s.queue(t, "report-2", fairOf(web2), "{lock:jobs:report}:fair:queue", 1)
	s.queue(t, "report-3", fairOf(web3), "{lock:jobs:report}:fair:queue", 2)

	rw := func(k *lockkeeper.Keeper) *rwlock.Lock {
		return must.Get(rwlock.New(k, "catalogue", nil))(t)
	}
	s.hold(t, "reader-1", rw(web1).RLocker())
	s.hold(t, "reader-2", rw(web2).RLocker())
	s.queue(t, "writer", rw(web3), "{lock:catalogue}:rwlock:queue", 1)
	s.queue(t, "reader-3", rw(web1).RLocker(), "{lock:catalogue}:rwlock:queue", 2)

	sem := must.Get(semaphore.New(web1, "encoders", 3, nil))(t)
	s.hold(t, "encoder", must.Get(sem.LockerN(2))(t))
	s.queue(t, "encoder-2", must.Get(sem.LockerN(2))(t), "{lock:encoders}:semaphore:queue", 1)

	s.hold(t, "odd", must.Get(mutex.New(web1, "odd\x1b[31m name", nil))(t))
	s.rdb.Set(ctx, "lock:foreign", "token of another library", 0)
	t.Cleanup(func() {
		for _, lease := range s.leases {
			_ = lease.Release(ctx)
		}
	})
	return s
}

// hold acquires a lock.
func (s *scene) hold(t *testing.T, id string, l lockkeeper.Locker) {
	t.Helper()
	s.leases[id] = must.Get(l.TryLock(ctx))(t)
}

// queue begins to wait for a lock, and returns when its queue has n waiters.
func (s *scene) queue(t *testing.T, id string, l lockkeeper.Locker, key string, n int64) {
	t.Helper()
	ended := make(chan error, 1)
	s.ended[id] = ended
	go func() {
		_, err := l.Lock(ctx)
		ended <- err
	}()
	eventually(t, id+" waits", func() bool { return s.rdb.ZCount(ctx, key, "-inf", protocol.BehindWaiters).Val() == n })
}

// list runs ls --json, and returns what it lists, in order, and the names.
func (s *scene) list(t *testing.T, args ...string) (entries []output.Entry, names string) {
	t.Helper()
	c := command(t, append([]string{"ls", "--json", "--redis", s.url}, args...)...).ends(0)
	for line := range strings.Lines(c.out.String()) {
		var e output.Entry
		must.OK(t, json.Unmarshal([]byte(line), &e))
		entries = append(entries, e)
		names += " " + e.Name
	}
	return entries, names
}

func TestLs(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	got := map[string]string{}
	entries, _ := s.list(t)
	for _, e := range entries {
		got[e.Name] = fmt.Sprintf("%s, %d hold, %d wait, never expires: %t", e.Kind, e.Holders, e.Waiters, e.ExpiresInMS == -1)
	}
	if want := map[string]string{
		"jobs:report":      "fair, 1 hold, 2 wait, never expires: false",
		"catalogue":        "rwlock, 2 hold, 2 wait, never expires: false",
		"encoders":         "semaphore, 1 hold, 1 wait, never expires: false",
		"odd\x1b[31m name": "mutex, 1 hold, 0 wait, never expires: false",
		"foreign":          "mutex, 1 hold, 0 wait, never expires: true",
	}; !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for args, want := range map[string]string{
		"--sort name":                                " catalogue encoders foreign jobs:report odd\x1b[31m name",
		"--sort waiters --limit 1 --kind fair":       " jobs:report",
		"--sort name --kind fair --kind semaphore":   " encoders jobs:report",
		"j?b[r-t]:*":                                 " jobs:report",
		"--waiting-longer 1h":                        "",
		"--sort kind --limit 1 --waiting-longer 1ns": " jobs:report",
	} {
		_, got := s.list(t, strings.Fields(args)...)
		check.That(t, got == want, "ls %s: %q, want %q", args, got, want)
	}
	if e, _ := s.list(t, "--limit", "3"); len(e) != 3 {
		t.Errorf("%d of 3 locks", len(e))
	}
	c := command(t, "ls", "--redis", s.url, "--sort", "waiters", "--kind", "fair", "--kind", "mutex").ends(0)
	if !strings.HasPrefix(c.out.String(), output.EntryHeader+"\nfair             1        2 ") || strings.Count(c.out.String(), "\n") != 4 {
		t.Errorf("%s", c.out.String())
	}
	c.prints("  jobs:report\n", "mutex            1        0       never             -  foreign\n", `-  "odd\x1b[31m name"`)
	c = command(t, "ls", "--redis", s.url, "nothing*").ends(0)
	check.That(t, c.out.Len()+c.err.Len() == 0, "%s%s", c.out.String(), c.err.String()) // the hint is for terminals
}

// show runs show --json.
func (s *scene) show(t *testing.T, args ...string) (i output.Inspection) {
	t.Helper()
	command(t, append([]string{"show", "--json", "--redis", s.url}, args...)...).ends(0).decode(&i)
	return i
}

func TestShow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i, lease := s.show(t, "jobs:report"), s.leases["report"]
	if i.Kind != "fair" || i.Name != "jobs:report" || i.Fence != lease.Fence() || len(i.Holders) != 1 || len(i.Waiters) != 2 {
		t.Fatalf("%+v", i)
	}
	h := i.Holders[0]
	if h.Token != lease.Token() || h.Fence != lease.Fence() || h.Owner != "web-1:10 report" || h.ExpiresInMS <= 0 || time.Since(*h.Since).Abs() > time.Hour {
		t.Errorf("%+v", h)
	}
	w := i.Waiters
	if w[0].Owner != "web-2:20 report" || w[1].Owner != "web-3:30 report" || !w[0].Alive || w[1].BlockedBy != "the holder, 1 waiter ahead" {
		t.Errorf("%+v", w)
	}
	i = s.show(t, "catalogue")
	if len(i.Holders) != 2 || i.Holders[0].Mode != "read" || i.Waiters[0].Mode != "write" || i.Waiters[0].BlockedBy != "2 readers" {
		t.Errorf("%+v", i)
	}
	i = s.show(t, "encoders", "--kind", "semaphore")
	check.That(t, i.Limits != nil && i.Limits.Limit == 3 && i.Limits.Used == 2 && i.Holders[0].Permits == 2, "%+v %+v", i, i.Limits)
	if i = s.show(t, "foreign"); i.Holders[0].Keeper != "" || i.Holders[0].ExpiresInMS != -1 {
		t.Errorf("%+v", i)
	}
	command(t, "show", "--redis", s.url, "odd\x1b[31m name").ends(0).prints(`mutex "odd\x1b[31m name": 1 holder, 0 waiters, last fence `)
	s.rdb.Set(ctx, "lock:jobs:report", "a mutex of the same name", time.Minute)
	command(t, "show", "--redis", s.url, "jobs:report").ends(exit.Usage, "2 kinds", "mutex, fair", "--kind")
	if i := s.show(t, "jobs:report", "--kind", "mutex"); len(i.Waiters) != 0 {
		t.Errorf("%+v", i)
	}
	command(t, "show", "--redis", s.url, "nothing\x1b").ends(exit.NotFound, `no lock "nothing\x1b"`)
}

func TestTopPrintsOneView(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := command(t, "top", "--redis", s.url, "--rows", "2").ends(0)
	c.prints(s.url+", prefix lock:\n", ": 5 locks, 6 holders, 5 waiters\n", "\nand 3 more\n")
	n := strings.Count(c.out.String(), "\n")
	check.That(t, n == 7, "%d lines: %s", n, c.out.String())
	var v struct {
		Time                    time.Time
		TookMS                  *int64 `json:"took_ms"`
		Locks, Holders, Waiters int
		Top                     []output.Entry
	}
	c = command(t, "top", "--redis", s.url, "--once", "--json", "--sort", "name", "--rows", "1").ends(0)
	c.decode(&v)
	if v.Time.IsZero() || v.TookMS == nil || v.Locks != 5 || v.Holders != 6 || v.Waiters != 5 || v.Top[0].Name != "catalogue" {
		t.Errorf("%s", c.out.String())
	}
	c = command(t, "top", "--redis", s.url, "--json")
	c.Stdout = nil
	d := json.NewDecoder(must.Get(c.StdoutPipe())(t))
	c.starts()
	for range 2 { // one per look
		must.OK(t, d.Decode(&v))
	}
	c.isEndedBy(syscall.SIGINT)
}

func TestWait(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	wait := func(args ...string) *testCommand {
		return command(t, append([]string{"wait", "--redis", s.url}, args...)...)
	}
	wait("nobody").ends(0)
	wait("foreign", "--timeout", "0").ends(exit.NotAcquired, "foreign is not free: mutex with 0 waiters, held by another library")
	wait("jobs:report", "--timeout", "0").ends(exit.NotAcquired, "jobs:report is not free: fair with 2 waiters, held by web-1:10 report")
	wait("catalogue", "--kind", "mutex", "--timeout", "0").ends(0)
	wait("catalogue", "--timeout", "100ms").ends(exit.NotAcquired, "held by", "and 1 more")
	var r struct {
		Name     string
		Free     *bool
		WaitedMS *int64 `json:"waited_ms"`
		Locks    []output.Inspection
	}
	c := wait("encoders", "--timeout", "0", "--json").ends(exit.NotAcquired)
	c.decode(&r)
	if r.Name != "encoders" || *r.Free || r.WaitedMS == nil || len(r.Locks) != 1 || len(r.Locks[0].Waiters) != 1 {
		t.Errorf("%s", c.out.String())
	}
	c = wait("odd\x1b[31m name", "--for", "idle", "--json").starts()
	must.OK(t, s.leases["odd"].Release(ctx))
	c.waits(0).decode(&r)
	check.That(t, *r.Free && len(r.Locks) == 0, "%s", c.out.String())
}

// A server that hangs, or that is not there, ends each command with 69 in bounded time.
func TestCommandsEndIfServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	frozen := redistest.Start(t)
	frozen.Freeze()
	var all sync.WaitGroup
	for _, url := range []string{"redis://" + frozen.Addr, "redis://127.0.0.1:1"} {
		for _, args := range []string{
			"bench --duration 1s", "ls", "ls --sort name", "top", "show x", "wait x", "wait --timeout 0 x",
			"break x --all --yes --reason y --timeout 2s",
			"run --wait 700ms x -- true", "run --wait 700ms --kind fair x -- true",
			"run --wait 700ms --kind redlock --redis URL --redis redis://127.0.0.1:2 --redis redis://127.0.0.1:3 x -- true",
		} {
			c := command(t, strings.Fields(strings.ReplaceAll(args, "URL", url))...)
			c.Env = append(c.Env, "REDIS_URL="+url)
			start := time.Now()
			c.starts()
			all.Go(func() { // they all only wait
				_ = c.Wait()
				c.waits(exit.Unreachable)
				d := time.Since(start)
				check.That(t, d <= 25*time.Second, "%v took %v", c.Args[1:], d)
				check.That(t, c.out.Len() == 0 && c.err.Len() != 0, "%v: %s%s", c.Args[1:], c.out.String(), c.err.String())
			})
		}
	}
	all.Wait()
}

// A waiting command ends at once when it is interrupted, also if the server hangs.
func TestInterruptEndsCommands(t *testing.T) {
	t.Parallel()
	frozen := redistest.Start(t)
	frozen.Freeze()
	for _, args := range []string{"ls", "top --json", "show x", "wait x", "break x --all --yes --reason y"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			c := command(t, append(strings.Fields(args), "--redis", "redis://"+frozen.Addr)...).starts()
			time.Sleep(300 * time.Millisecond) // nothing tells that it has sent its request; before that, the same is expected
			start := time.Now()
			c.signals(syscall.SIGTERM)
			_ = c.Wait()
			code := c.ProcessState.ExitCode()
			check.That(t, code == 128+int(syscall.SIGTERM) || code == -1, "exit code %d\n%s", code, c.err.String())
			d := time.Since(start)
			check.That(t, d <= 8*time.Second, "it took %v", d)
		})
	}
}

func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	complete := func(url, args string) string {
		t.Helper()
		args, typed, _ := strings.Cut(args, "|")
		c := command(t, append(append([]string{"__complete"}, strings.Fields(args)...), typed)...)
		c.Env = append(c.Env, "REDIS_URL="+url)
		return c.ends(0).out.String()
	}
	for args, want := range map[string]string{
		"show|":                             "catalogue\trwlock\nencoders\tsemaphore\nforeign\tmutex\njobs:report\tfair\n",
		"show|jo":                           "jobs:report\tfair\n",
		"break|jo":                          "jobs:report\tfair\n",
		"wait|jo":                           "jobs:report\tfair\n",
		"show --kind fair|":                 "jobs:report\tfair\n",
		"show --kind|":                      "mutex\nfair\nrwlock\nsemaphore\nredlock\nonce\nratelimit\n",
		"show x|":                           "", // one name only
		"show --redis redis://127.0.0.1:1|": "",
	} {
		got := complete(s.url, args)
		check.That(t, got == want+":4\n", "%s: %q, want %q", args, got, want)
	}
	frozen := redistest.Start(t)
	frozen.Freeze()
	start := time.Now()
	if got := complete("redis://"+frozen.Addr, "show|"); got != ":4\n" || time.Since(start) > 5*time.Second {
		t.Errorf("completion of a server that hangs: %q after %v", got, time.Since(start))
	}
	for i := range 300 {
		s.rdb.Set(ctx, fmt.Sprintf("lock:many:%d", i), "x", time.Minute)
	}
	eventually(t, "200 of 300 names are completed", func() bool { // of those that are found in time
		return strings.Count(complete(s.url, "show|many:"), "\n") == 201
	})
}
