package faults

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// startWithClock starts a server, and returns how its clock is set: to this machine's and so much more.
func startWithClock(t *testing.T) (s *redistest.Server, set func(offset time.Duration)) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		if os.Getenv("LOCKKEEPER_NEED_REDIS") != "" {
			t.Fatal(err)
		}
		t.Skipf("no C compiler, so a server's clock cannot be set: %v", err)
	}
	dir := t.TempDir()
	shim, file := filepath.Join(dir, "clockshim.so"), filepath.Join(dir, "offset")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-o", shim, "testdata/clockshim.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	set = func(offset time.Duration) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600) // in place: it is mapped
		if err == nil {
			_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(offset.Microseconds())), 0)
			err = errors.Join(err, f.Close())
		}
		must.OK(t, err)
	}
	set(0)
	return redistest.StartWith(t, []string{"LD_PRELOAD=" + shim, "CLOCK_OFFSET=" + file}), set
}

// TestRealServerClockAnywhere hands each primitive over and fills a rate limit with the server's clock at times of a machine that does not
// know the time, and where its time gets another digit or bit. At the last ones, nothing is granted.
func TestRealServerClockAnywhere(t *testing.T) {
	t.Parallel()
	s, set := startWithClock(t)
	admin := redistest.Connect(s)
	ctx := must.Within(t, time.Minute)
	for _, at := range []int64{0, 86400e3, 1e10 - 1, 1e10 + 1, 915148800e3, 1e12 - 1, 1e12 + 1, (1<<31 - 1) * 1000, (1<<32 - 1) * 1000, 1e13 - 1} {
		set(time.Until(time.UnixMilli(at)))
		a, b := newKeeper(t, admin), newKeeper(t, admin)
		name, late := strconv.FormatInt(at, 10), at > 359e10
		for _, p := range primitives {
			uses := must.Get(p.uses(a, name, time.Minute))(t)
			first, err := uses[len(uses)-1].acquire(ctx)
			if late {
				check.That(t, err != nil && strings.Contains(err.Error(), "October 2083"), "%s at %d: %v", p.kind, at, err)
				continue
			}
			must.That(t, err == nil, "%s at %d: %v", p.kind, at, err)
			got := make(chan *lockkeeper.Lease, 1)
			go func() { got <- must.Get(must.Get(p.uses(b, name, time.Minute))(t)[0].acquire(ctx))(t) }()
			if p.kind != "semaphore" {
				awaitWaiter(ctx, t, admin, p.kind, name)
			}
			must.OK(t, first.Release(ctx))
			second := must.Receive(t, got, 20*time.Second, "a lease")
			checkRises(t, p.kind, first, second)
			must.OK(t, second.Release(ctx))
		}
		l := must.Get(ratelimit.New(a, name, 2, time.Second, nil))(t)
		for i := 0; i < 3 && !late; i++ {
			r, err := l.Allow(ctx)
			check.That(t, err == nil && r.Allowed == (i < 2) && (r.RetryAfter > 0) == (i == 2), "call %d at %d: %+v, %v", i, at, r, err)
		}
		if !late {
			must.OK(t, l.Wait(ctx))
		}
	}
}

// TestRealServerClockJumps sets the clock forward and back by an hour while each primitive is held and contended.
// After a jump forward all leases have expired; after a jump back they would last an hour longer, and are shortened
// to their ttl.
func TestRealServerClockJumps(t *testing.T) {
	t.Parallel()
	s, set := startWithClock(t)
	offset := time.Duration(0)
	jump := func(by time.Duration) {
		t.Helper()
		offset += by
		set(offset)
	}
	admin := redistest.Connect(s)
	ctx := must.Within(t, time.Minute)

	const lifetime = 6 * time.Second
	for _, by := range []time.Duration{time.Hour, -2 * time.Hour} {
		a, b := join(t, admin, "x", lifetime), join(t, admin, "x", lifetime)
		first := a.all(ctx)
		type result struct {
			kind  string
			lease *lockkeeper.Lease
		}
		got := make(chan result, len(primitives))
		var waiting sync.WaitGroup
		for kind, u := range b.uses {
			waiting.Go(func() {
				lease, err := u.acquire(ctx)
				check.Is(t, err, nil, "%s", kind)
				got <- result{kind, lease}
			})
		}
		for _, p := range primitives {
			awaitWaiter(ctx, t, admin, p.kind, "x")
		}
		jump(by)
		at := admin.Time(ctx).Val()
		must.That(t, at.Sub(time.Now().Add(offset)).Abs() <= time.Second,
			"the server's clock is at %v, and should be at %v", at, time.Now().Add(offset))
		if by > 0 { // all has expired by the server's clock, and the next renewal reports it
			lost(t, first, lifetime)
		} else { // after a heartbeat, no grant lasts longer than requested
			cut := func() bool {
				d, err := admin.PTTL(ctx, "lock:x").Result()
				return err == nil && d > 0 && d <= lifetime
			}
			for end := time.Now().Add(5 * time.Second); !cut(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Error("the lease of a mutex lasts too long")
					break
				}
			}
			a.release(first)
		}
		waiting.Wait()
		for range primitives {
			r := <-got
			if r.lease == nil {
				continue
			}
			checkRises(t, r.kind, first[r.kind], r.lease)
			check.That(t, time.Until(r.lease.Deadline()) <= lifetime, "%s: relied on for %v", r.kind, time.Until(r.lease.Deadline()))
			check.Is(t, r.lease.Release(ctx), nil, "%s", r.kind)
		}
	}
}

// wallClock matches calls that depend on this machine's wall clock.
var wallClock = regexp.MustCompile(`\.(Unix|UnixMilli|UnixMicro|UnixNano|Round|Truncate|UTC|Local|In|Date|Clock)\(`)

// ofServer matches conversions of the server's time, which is what a fence is.
var ofServer = regexp.MustCompile(`UnixMicro\(int64\((h\.F|f)ence\)\)|server\.UnixMicro\(\)`)

// TestNoWallClockReads checks that the clock of a process may jump, because only the monotonic reading of times is
// used, and none is sent to the server. A test cannot set the clock of one process, so this checks the source.
func TestNoWallClockReads(t *testing.T) {
	files := 0
	for _, dir := range []string{".", "mutex", "fair", "rwlock", "semaphore", "ratelimit", "redlock", "once", "election", "lua", "internal/access", "internal/keeper", "internal/server", "internal/quorum", "internal/transport", "internal/timers", "internal/pubsub", "internal/protocol"} {
		list := must.Get(filepath.Glob(filepath.Join("../../..", dir, "*.go")))(t)
		for _, path := range list {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			text := must.Get(os.ReadFile(path))(t)
			files++
			for i, line := range strings.Split(string(text), "\n") {
				check.That(t, !wallClock.MatchString(line) || ofServer.MatchString(line),
					"%s:%d reads the wall clock: %s", path, i+1, line)
			}
		}
	}
	check.That(t, files >= 30, "only %d files were checked", files)
	check.That(t, wallClock.MatchString("time.Now().UnixMilli()"), "the pattern matches nothing")
}
