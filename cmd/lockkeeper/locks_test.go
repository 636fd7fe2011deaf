package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
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
	s := &scene{url: "redis://" + server.Addr, rdb: server.Client(), leases: map[string]*lockkeeper.Lease{}, ended: map[string]chan error{}}
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

// entry is a line of ls --json.
type entry struct {
	Kind, Name    string
	Holders       int
	Waiters       int
	ExpiresInMS   int64 `json:"expires_in_ms"`
	LongestWaitMS int64 `json:"longest_wait_ms"`
}

// list runs ls --json, and returns what it lists, in order.
func (s *scene) list(t *testing.T, args ...string) (entries []entry) {
	t.Helper()
	c := command(t, append([]string{"ls", "--json", "--redis", s.url}, args...)...)
	c.ends(0)
	for line := range strings.Lines(c.out.String()) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		entries = append(entries, e)
	}
	return entries
}

func names(entries []entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Name)
	}
	return all
}

func TestLs(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, e := range s.list(t) {
		want := map[string]entry{
			"jobs:report": {Kind: "fair", Holders: 1, Waiters: 2}, "catalogue": {Kind: "rwlock", Holders: 2, Waiters: 2},
			"encoders": {Kind: "semaphore", Holders: 1, Waiters: 1}, "odd\x1b[31m name": {Kind: "mutex", Holders: 1},
			"foreign": {Kind: "mutex", Holders: 1, ExpiresInMS: -1},
		}[e.Name]
		if e.Kind != want.Kind || e.Holders != want.Holders || e.Waiters != want.Waiters || want.ExpiresInMS < 0 != (e.ExpiresInMS == -1) || e.ExpiresInMS > 30_000 {
			t.Errorf("%+v", e)
		}
	}
	for args, want := range map[string]string{
		"--sort name":                                "catalogue encoders foreign jobs:report odd\x1b[31m name",
		"--sort name --limit 2":                      "catalogue encoders",
		"--sort waiters --limit 1 --kind fair":       "jobs:report",
		"--kind fair --kind semaphore --sort name":   "encoders jobs:report",
		"j?b[r-t]:*":                                 "jobs:report",
		"--sort holders --limit 1":                   "catalogue",
		"--waiting-longer 1h":                        "",
		"nothing*":                                   "",
		"--kind redlock nothing":                     "",
		"--sort kind --limit 1 --waiting-longer 1ns": "jobs:report",
	} {
		if got := strings.Join(names(s.list(t, strings.Fields(args)...)), " "); got != want {
			t.Errorf("ls %s: %q, want %q", args, got, want)
		}
	}
	if n := len(s.list(t, "--limit", "3")); n != 3 {
		t.Errorf("%d of 3 locks", n)
	}
	c := command(t, "ls", "--redis", s.url, "--sort", "waiters", "--kind", "fair", "--kind", "mutex")
	c.ends(0)
	lines := strings.Split(c.out.String(), "\n")
	if len(lines) != 5 || lines[0] != "KIND       HOLDERS  WAITERS  EXPIRES IN  LONGEST WAIT  NAME" || !strings.HasPrefix(lines[1], "fair             1        2 ") || !strings.HasSuffix(lines[1], "  jobs:report") ||
		!strings.HasSuffix(c.out.String(), "mutex            1        0") && !strings.Contains(c.out.String(), `-  "odd\x1b[31m name"`) || strings.Contains(c.out.String(), "\x1b") {
		t.Errorf("%s", c.out.String())
	}
	c.prints("mutex            1        0       never             -  foreign\n")
	c = command(t, "ls", "--redis", s.url, "nothing*")
	c.ends(0)
	if c.out.Len()+c.err.Len() > 0 { // the hint is for terminals
		t.Errorf("%s%s", c.out.String(), c.err.String())
	}
}

func TestLsSeesOnlyItsPrefix(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := command(t, "run", "--redis", s.url, "--prefix", "other:", "x", "--", "sh", "-c", `exec "$LOCKKEEPER" ls --redis "$URL" --prefix other:`)
	c.Env = append(c.Env, "LOCKKEEPER="+c.Path, "URL="+s.url)
	c.ends(0)
	if !strings.HasSuffix(c.out.String(), "  x\n") || strings.Count(c.out.String(), "\n") != 2 {
		t.Error(c.out.String())
	}
}

// inspection is the output of show --json.
type inspection struct {
	Kind, Name string
	Fence      uint64
	Holders    []struct {
		Token, Keeper, Owner, Mode string
		Since                      time.Time
		Fence                      uint64
		ExpiresInMS                int64 `json:"expires_in_ms"`
		Permits                    int
	}
	Waiters []struct {
		Token, Keeper, Owner, Mode string
		WaitMS                     int64 `json:"wait_ms"`
		Alive                      bool
		Permits                    int
		BlockedBy                  string `json:"blocked_by"`
	}
	Limits *struct{ Limit, Used int }
}

// show runs show --json.
func (s *scene) show(t *testing.T, args ...string) (i inspection) {
	t.Helper()
	c := command(t, append([]string{"show", "--json", "--redis", s.url}, args...)...)
	c.ends(0)
	c.decode(&i)
	return i
}

func TestShow(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	i := s.show(t, "jobs:report")
	if i.Kind != "fair" || i.Name != "jobs:report" || len(i.Holders) != 1 || len(i.Waiters) != 2 {
		t.Fatalf("%+v", i)
	}
	h, lease := i.Holders[0], s.leases["report"]
	if h.Token != lease.Token() || h.Fence != lease.Fence() || i.Fence != h.Fence || h.Owner != "web-1:10 report" || h.ExpiresInMS <= 0 || time.Since(h.Since).Abs() > time.Hour {
		t.Errorf("%+v", h)
	}
	if w := i.Waiters; w[0].Owner != "web-2:20 report" || w[1].Owner != "web-3:30 report" || !w[0].Alive || w[0].BlockedBy != "the holder" || w[1].BlockedBy != "the holder, 1 waiter ahead" {
		t.Errorf("%+v", w)
	}
	i = s.show(t, "catalogue")
	if i.Kind != "rwlock" || len(i.Holders) != 2 || i.Holders[0].Mode != "read" || len(i.Waiters) != 2 || i.Waiters[0].Mode != "write" ||
		i.Waiters[0].BlockedBy != "2 readers" || i.Waiters[1].BlockedBy != "1 writer ahead" {
		t.Errorf("%+v", i)
	}
	i = s.show(t, "encoders", "--kind", "semaphore")
	if i.Limits == nil || i.Limits.Limit != 3 || i.Limits.Used != 2 || i.Holders[0].Permits != 2 || i.Waiters[0].BlockedBy != "the limit: it needs 2, 1 of 3 free" {
		t.Errorf("%+v %+v", i, i.Limits)
	}
	i = s.show(t, "foreign")
	if i.Kind != "mutex" || i.Holders[0].Keeper != "" || i.Holders[0].ExpiresInMS != -1 {
		t.Errorf("%+v", i)
	}
	c := command(t, "show", "--redis", s.url, "odd\x1b[31m name")
	c.ends(0)
	if !strings.HasPrefix(c.out.String(), `mutex "odd\x1b[31m name": 1 holder, 0 waiters, last fence `) || strings.Contains(c.out.String(), "\x1b") {
		t.Error(c.out.String())
	}
	s.rdb.Set(ctx, "lock:jobs:report", "a mutex of the same name", time.Minute)
	command(t, "show", "--redis", s.url, "jobs:report").ends(64, "2 kinds", "mutex, fair", "--kind")
	if i := s.show(t, "jobs:report", "--kind", "mutex"); len(i.Waiters) != 0 {
		t.Errorf("%+v", i)
	}
	command(t, "show", "--redis", s.url, "nothing\x1b").ends(1, `no lock "nothing\x1b"`)
	command(t, "show", "--redis", s.url, "--kind", "once", "catalogue").ends(1, "no once catalogue")
}

func TestTopPrintsOneView(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := command(t, "top", "--redis", s.url, "--rows", "2")
	c.ends(0)
	lines := strings.Split(c.out.String(), "\n")
	if lines[0] != s.url+", prefix lock:" || !strings.HasSuffix(lines[1], ": 5 locks, 6 holders, 5 waiters") || len(lines) != 8 || lines[6] != "and 3 more" {
		t.Errorf("%s", c.out.String())
	}
	c = command(t, "top", "--redis", s.url, "--once", "--json", "--sort", "name", "--rows", "1")
	c.ends(0)
	var v struct {
		Time                    time.Time
		TookMS                  *int64 `json:"took_ms"`
		Locks, Holders, Waiters int
		Top                     []entry
	}
	c.decode(&v)
	if v.Time.IsZero() || v.TookMS == nil || v.Locks != 5 || v.Holders != 6 || v.Waiters != 5 || !slices.Equal(names(v.Top), []string{"catalogue"}) {
		t.Errorf("%s", c.out.String())
	}
	c = command(t, "top", "--redis", s.url, "--json")
	c.Stdout = nil
	out := must.Get(c.StdoutPipe())(t)
	c.starts()
	d := json.NewDecoder(out)
	for range 2 { // one per look
		if err := d.Decode(&v); err != nil || v.Locks != 5 {
			t.Errorf("%v: %+v", err, v)
		}
	}
	c.signals(syscall.SIGINT)
	c.waits(128 + int(syscall.SIGINT))
}

func TestWait(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	wait := func(args ...string) *testCommand {
		return command(t, append([]string{"wait", "--redis", s.url}, args...)...)
	}
	wait("nobody").ends(0)
	wait("jobs:report", "--timeout", "0").ends(75, "jobs:report is not free: fair with 2 waiters, held by web-1:10 report")
	wait("catalogue", "--kind", "mutex", "--timeout", "0").ends(0)
	wait("catalogue", "--timeout", "100ms").ends(75, "held by", "and 1 more")
	c := wait("encoders", "--timeout", "0", "--json")
	c.ends(75)
	var r struct {
		Name     string
		Free     *bool
		WaitedMS *int64 `json:"waited_ms"`
		Locks    []inspection
	}
	if err := json.Unmarshal(c.out.Bytes(), &r); err != nil || r.Name != "encoders" || *r.Free || r.WaitedMS == nil || len(r.Locks) != 1 || len(r.Locks[0].Waiters) != 1 {
		t.Errorf("%v: %s", err, c.out.String())
	}
	c = wait("odd\x1b[31m name", "--for", "idle", "--json")
	c.starts()
	must.OK(t, s.leases["odd"].Release(ctx))
	c.waits(0)
	if err := json.Unmarshal(c.out.Bytes(), &r); err != nil || !*r.Free || len(r.Locks) != 0 {
		t.Errorf("%v: %s", err, c.out.String())
	}
	c = wait("foreign")
	c.Stderr = nil
	errs := must.Get(c.StderrPipe())(t)
	c.starts()
	notice, err := bufio.NewReader(errs).ReadString('\n')
	if err != nil || !strings.HasPrefix(notice, "lockkeeper: waiting for foreign for 1.") || !strings.HasSuffix(notice, ": mutex with 0 waiters, held by another library\n") {
		t.Errorf("%v: %q", err, notice)
	}
	c.signals(syscall.SIGINT)
	c.waits(128 + int(syscall.SIGINT))
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	for _, c := range []struct {
		args string
		says string
	}{
		{"ls a b", "2 patterns, want one at most; quote a pattern"},
		{"ls --kind walk", `--kind "walk" is not one of: mutex, fair`},
		{"ls --sort size", `--sort "size" is not one of: expiry, holders`},
		{"ls --limit -1", "--limit -1 is negative"},
		{"ls --waiting-longer -1s", "--waiting-longer -1s is negative"},
		{"ls --no", "unknown flag: --no; see lockkeeper ls --help"},
		{"ls --redis redis://x --redis redis://y", "--redis is given 2 times: this command uses one deployment"},
		{"top a b", "2 patterns"},
		{"top --interval 100ms", "--interval 100ms is shorter than 1s"},
		{"top --rows 0", "--rows 0 is not between 1 and 1000"},
		{"top --sort size", `--sort "size" is not one of`},
		{"top --kind walk", `--kind "walk" is not one of`},
		{"show", "NAME is missing; usage: lockkeeper show [flags] NAME"},
		{"show a b", "2 names, want one"},
		{"show --kind walk a", `--kind "walk" is not one of`},
		{"show --timeout 0 a", "--timeout 0s is not positive"},
		{"show a}{b", "name"},
		{"show --prefix a}{b x", "Prefix"},
		{"show --redis http://:secret@x a", "supported forms"},
		{"wait", "NAME is missing"},
		{"wait a b", "2 names"},
		{"wait --for ever a", `--for "ever" is not one of: free, idle`},
		{"wait --timeout -1s a", "--timeout -1s is negative"},
		{"wait --kind walk a", `--kind "walk" is not one of`},
		{"break", "NAME is missing"},
		{"break a", "--token or --all is missing"},
		{"break a --token x --all", "--token and --all cannot be used together"},
		{"break a --all --yes", "--reason is missing"},
		{"break a --all --reason x", "--yes is missing: standard input is not a terminal"},
		{"break a --all --reason x --json", "--json needs --yes"},
		{"break a --all --yes --reason x --timeout 0", "--timeout 0s is not positive"},
		{"break a --all --yes --reason x --kind walk", `--kind "walk" is not one of`},
		{"doctor x", "no arguments"},
		{"doctor --timeout 999ms", "shorter than 1s"},
		{"doctor --redis http://x", "supported forms"},
		{"doctor --prefix a}b", "Prefix"},
		{"doctor --fix", "unknown flag"},
		{"inspect x", "no arguments"},
		{"inspect --addr 0.0.0.0:7070", "--allow-remote"},
		{"inspect --addr :7070", "reachable from other machines"},
		{"inspect --addr 192.0.2.1:7070", "reachable from other machines"},
		{"inspect --addr 127.0.0.1", "host:port"},
		{"inspect --redis http://x", "supported forms"},
		{"inspect --prefix a}b", "Prefix"},
		{"run --once-per 0 x -- true", "--once-per 0s"},
		{"run --once-per -1h x -- true", "--once-per -1h"},
		{"run --once-per 1h --kind fair x -- true", "--kind fair"},
		{"run --once-per 1h --kind semaphore --limit 1 x -- true", "--kind semaphore"},
		{"run --once-per 1h --try x -- true", "--try cannot"},
		{"run --once-per 1h --wait 1m x -- true", "--wait cannot"},
		{"run --once-per 1h --max-lifetime 1m x -- true", "--max-lifetime"},
		{"run --once-per 20s x -- true", "shorter than TTL 30s"},
		{"run --once-per 9000h x -- true", "10ms and 8760h"},
		{"run --once-per day x -- true", `invalid argument "day"`},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(c.args)
			x := command(t, args...)
			x.Env = append(x.Env, "REDIS_URL="+url)
			x.ends(64, c.says)
			if x.out.Len() > 0 || strings.Contains(x.err.String(), "secret") {
				t.Errorf("%s%s", x.out.String(), x.err.String())
			}
		})
	}
}

// A server that hangs, or that is not there, ends each command with 69 in bounded time.
func TestCommandsEndIfServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	frozen := redistest.Start(t)
	frozen.Freeze()
	for _, url := range []string{"redis://" + frozen.Addr, "redis://127.0.0.1:1"} {
		for _, args := range []string{"bench --duration 1s", "ls", "ls --sort name", "top", "show x", "wait x", "wait --timeout 0 x", "break x --all --yes --reason y --timeout 2s"} {
			t.Run(fmt.Sprint(args, "_", url == "redis://127.0.0.1:1"), func(t *testing.T) {
				t.Parallel()
				start := time.Now()
				c := command(t, append(strings.Fields(args), "--redis", url)...)
				c.ends(69)
				if d := time.Since(start); d > 25*time.Second {
					t.Errorf("it took %v", d)
				}
				if c.out.Len() > 0 || c.err.Len() == 0 {
					t.Errorf("%s%s", c.out.String(), c.err.String())
				}
			})
		}
	}
}

// A waiting command ends at once when it is interrupted, also if the server hangs.
func TestInterruptEndsCommands(t *testing.T) {
	t.Parallel()
	frozen := redistest.Start(t)
	frozen.Freeze()
	for _, args := range []string{"ls", "top --json", "show x", "wait x", "break x --all --yes --reason y"} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			c := command(t, append(strings.Fields(args), "--redis", "redis://"+frozen.Addr)...)
			c.starts()
			time.Sleep(300 * time.Millisecond) // nothing tells that it has sent its request; before that, the same is expected
			start := time.Now()
			c.signals(syscall.SIGTERM)
			var ended interface{ ExitCode() int }
			if err := c.Wait(); !errors.As(err, &ended) || ended.ExitCode() != 128+int(syscall.SIGTERM) && ended.ExitCode() != -1 {
				t.Errorf("%v\n%s", err, c.err.String())
			}
			if d := time.Since(start); d > 8*time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

func TestNamesAreCompleted(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	complete := func(args ...string) string {
		t.Helper()
		c := command(t, append([]string{"__complete"}, args...)...)
		c.ends(0)
		return c.out.String()
	}
	for _, name := range []string{"show", "break", "wait"} {
		if got, want := complete(name, "--redis", s.url, ""), "catalogue\trwlock\nencoders\tsemaphore\nforeign\tmutex\njobs:report\tfair\n:4\n"; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got, want := complete(name, "--redis", s.url, "jo"), "jobs:report\tfair\n:4\n"; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if got := complete(name, "--redis", s.url, "--kind", "fair", ""); got != "jobs:report\tfair\n:4\n" {
			t.Errorf("%s: %q", name, got)
		}
		if got := complete(name, "--kind", "r"); got != "rwlock\nredlock\nratelimit\n:4\n" && !strings.Contains(got, "rwlock\n") {
			t.Errorf("%s: %q", name, got)
		}
		if got := complete(name, "x", ""); got != ":4\n" { // one name only
			t.Errorf("%s: %q", name, got)
		}
		if got := complete(name, "--redis", "redis://127.0.0.1:1", ""); got != ":4\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
	frozen := redistest.Start(t)
	frozen.Freeze()
	start := time.Now()
	if got := complete("show", "--redis", "redis://"+frozen.Addr, ""); got != ":4\n" {
		t.Errorf("%q", got)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("completion of a server that hangs took %v", d)
	}
	for i := range 300 {
		s.rdb.Set(ctx, fmt.Sprintf("lock:many:%d", i), "x", time.Minute)
	}
	if n := strings.Count(complete("show", "--redis", s.url, "many:"), "\n"); n != 201 {
		t.Errorf("%d lines, want 200 names", n)
	}
}
