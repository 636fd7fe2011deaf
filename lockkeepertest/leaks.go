package lockkeepertest

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// cleanupTime is how long releases in the background may take at the end of a test. A lease that lingers for longer (option Linger) counts
// as left.
const cleanupTime = 2 * time.Second

// lockKey matches the keys of a lock, except the key of a mutex or redlock, which is its name.
var lockKey = regexp.MustCompile(`^(.+):(` + kinds() + `):(holders|queue)$`)

func kinds() string {
	var all []string
	for _, set := range lua.All {
		all = append(all, set.KeyKind)
	}
	return strings.Join(all, "|")
}

// inUse returns all locks that are held or waited for, with their prefixes as parts of their names.
func (s *server) inUse(ctx context.Context) ([]*state, error) {
	keys, err := s.admin.Keys(ctx, "*").Result()
	if err != nil {
		return nil, err
	}
	slices.Sort(keys)
	seen := map[string]bool{}
	var all []*state
	for _, key := range keys {
		base, kind := key, lua.Mutex.KeyKind
		if m := lockKey.FindStringSubmatch(key); m != nil {
			base, kind = m[1], m[2]
			if tag := base[1 : len(base)-1]; base[0] == '{' && base[len(base)-1] == '}' && !strings.ContainsAny(tag, "{}") {
				base = tag
			}
		}
		if seen[kind+":"+base] {
			continue
		}
		seen[kind+":"+base] = true
		l := &state{set: lua.All[slices.IndexFunc(lua.All, func(set *lua.Set) bool { return set.KeyKind == kind })], name: base}
		if l.keys, err = keysOf(l.set, base); err != nil || l.keys.Lock != key && l.keys.Queue != key {
			continue // not a key of a lock
		}
		if err := s.read(ctx, l); err != nil {
			return nil, err
		}
		if len(l.holders)+len(l.waiters) > 0 {
			all = append(all, l)
		}
	}
	return all, nil
}

// left returns a description of the leases, and if waiters is set of the queue's entries, of some keepers. It waits for
// releases that are in progress.
func (s *server) left(waiters bool, ofKeeper func(id string) bool) ([]string, error) {
	of := func(token string) bool {
		t, ok := protocol.ParseToken(token)
		return ok && ofKeeper(t.Keeper) && !strings.Contains(t.Flags, protocol.FlagByClock)
	}
	for end := time.Now().Add(cleanupTime); ; time.Sleep(5 * time.Millisecond) {
		locks, err := s.inUse(background)
		if err != nil {
			return nil, err
		}
		var all []string
		for _, l := range locks {
			for _, h := range l.holders {
				if of(h.Token) {
					all = append(all, fmt.Sprintf("%s %q is held by %s with fence %d: Release was not called", l.set.Kind, l.name, owner(h.Token), h.Fence))
				}
			}
			for _, w := range l.waiters {
				if waiters && of(w.Token) {
					all = append(all, fmt.Sprintf("%s %q is waited for by %s: its keeper was not closed", l.set.Kind, l.name, owner(w.Token)))
				}
			}
		}
		if len(all) == 0 || time.Now().After(end) {
			return all, nil
		}
	}
}

// reportHeld fails the test if a keeper holds a lease, before it is closed.
func (s *server) reportHeld(t testing.TB, p *process, id string) {
	t.Helper()
	if p.isDone() {
		return
	}
	if s.report(t, false, func(k string) bool { return k == id }) {
		p.mu.Lock()
		p.reported = true
		p.mu.Unlock()
	}
}

// reportLeft fails the test if a process that has not crashed holds a lease or waits, after all keepers were closed.
func (s *server) reportLeft(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	processes := slices.Clone(s.processes)
	s.mu.Unlock()
	for _, p := range processes {
		p.net.Restore()
	}
	s.report(t, true, func(id string) bool {
		used, done := false, false
		for _, p := range processes {
			if p.lastUse(id) > 0 {
				used, done = true, done || p.isDone()
			}
		}
		return used && !done
	})
}

// report fails the test for each lease, and if waiters is set for each waiter, of some keepers. It returns whether there are any.
func (s *server) report(t testing.TB, waiters bool, ofKeeper func(id string) bool) bool {
	t.Helper()
	all, err := s.left(waiters, ofKeeper)
	if err != nil {
		t.Errorf("lockkeepertest: looking for what the test has left behind: %v", err)
	}
	for _, text := range all {
		t.Errorf("lockkeepertest: left behind: %s", text)
	}
	return len(all) > 0
}

// isDone reports whether what the process holds is not to be reported, or was reported before.
func (p *process) isDone() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed || p.reported
}

// suite is the servers of one test.
type suite struct {
	label string // of the goroutines that the test has started, directly or not

	mu      sync.Mutex
	servers []*server
}

// suites has the suite of each test in progress.
var suites sync.Map // testing.TB to *suite

// goroutineLabel is the key of the goroutines' label. Tests can run in parallel, so goroutines that were not there before need
// not be those of this test.
const goroutineLabel = "lockkeepertest"

// addTo makes the server stop at the end of the test, after looking for what the test has left behind. All servers of a test
// stop together, after their keepers were closed.
func (s *server) addTo(t testing.TB) {
	t.Helper()
	v, loaded := suites.LoadOrStore(t, &suite{label: fmt.Sprintf("%s %p", t.Name(), t)})
	all := v.(*suite)
	all.mu.Lock()
	all.servers = append(all.servers, s)
	all.mu.Unlock()
	if !loaded {
		pprof.SetGoroutineLabels(pprof.WithLabels(background, pprof.Labels(goroutineLabel, all.label)))
		t.Cleanup(func() {
			t.Helper()
			all.end(t)
		})
	}
}

func (all *suite) end(t testing.TB) {
	t.Helper()
	suites.Delete(t)
	for _, s := range all.servers {
		s.reportLeft(t)
		_ = s.look.Close()
	}
	all.reportGoroutines(t)
	for _, s := range all.servers {
		s.stop(t)
	}
}

// reportGoroutines fails the test if a goroutine of a keeper is left.
func (all *suite) reportGoroutines(t testing.TB) {
	t.Helper()
	var left []string
	for end := time.Now().Add(cleanupTime); ; time.Sleep(5 * time.Millisecond) {
		if left = keeperGoroutines(all.label); len(left) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, stack := range left {
		t.Errorf("lockkeepertest: left behind: a goroutine of a keeper that was not closed:\n%s", stack)
	}
}

// keeperFrame matches a function that a goroutine of a keeper runs.
var keeperFrame = regexp.MustCompile(`lockkeeper/internal/(keeper|lease|pubsub|quorum|ahead|share|timers|transport|views|wait)\.`)

// keeperGoroutines returns the stacks of goroutines with a label that run code of Lockkeeper.
func keeperGoroutines(value string) []string {
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	label := fmt.Sprintf("%q:%q", goroutineLabel, value)
	var all []string
	for stack := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(stack, label) && keeperFrame.MatchString(stack) {
			all = append(all, stack)
		}
	}
	return all
}
