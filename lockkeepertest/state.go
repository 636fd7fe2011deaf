package lockkeepertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// patience is how long the methods that name a lock wait for its state.
const patience = time.Minute

// longestPause is the longest pause between two looks.
const longestPause = 200 * time.Millisecond

// state is a lock as the server has it.
type state struct {
	set     *lua.Set
	prefix  string
	name    string
	keys    protocol.Keys
	holders []views.Holder // in order of their fences
	waiters []views.Waiter // in the order of the queue
}

// String describes the lock for a failure.
func (l *state) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q: ", l.set.Kind, l.prefix+l.name)
	if len(l.holders) == 0 {
		b.WriteString("free")
	}
	for i, h := range l.holders {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "held by %s with fence %d ", owner(h.Token), h.Fence)
		if h.ExpiresIn < 0 {
			b.WriteString("without an expiry")
		} else {
			fmt.Fprintf(&b, "for another %v", h.ExpiresIn)
		}
	}
	fmt.Fprintf(&b, "; %d waiting", len(l.waiters))
	for i, w := range l.waiters {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%s%s for %v", sep, owner(w.Token), w.WaitTime)
		if w.HeartbeatLeft <= 0 {
			b.WriteString(" (without heartbeats)")
		}
	}
	return b.String()
}

// owner describes who has a token.
func owner(token string) string {
	t, ok := protocol.ParseToken(token)
	if !ok {
		return fmt.Sprintf("another library (%q)", token)
	}
	return "keeper " + t.Keeper
}

// locks returns the locks of a name, of all kinds and prefixes, that are held or waited for.
func (s *Server) locks(ctx context.Context, name string) ([]*state, error) {
	s.mu.Lock()
	prefixes := slices.Clone(s.prefixes)
	s.mu.Unlock()
	var candidates, all []*state
	var exist []*redis.IntCmd
	_, err := s.admin.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, prefix := range prefixes {
			for _, set := range lua.All {
				if set.Kind == lua.Redlock.Kind { // at each server it is a mutex
					continue
				}
				keys, err := keysOf(set, prefix+name)
				if err != nil {
					return err
				}
				candidates = append(candidates, &state{set: set, prefix: prefix, name: name, keys: keys})
				exist = append(exist, p.Exists(ctx, keys.Lock, keys.Queue))
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, l := range candidates {
		if exist[i].Val() > 0 {
			if err := s.read(ctx, l); err != nil {
				return nil, err
			}
			if len(l.holders)+len(l.waiters) > 0 && (s.kind == "" || s.kind == l.set.Kind) {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

// keysOf returns the keys of a name with its prefix.
func keysOf(set *lua.Set, name string) (protocol.Keys, error) {
	return protocol.KeysOf("", name, set.KeyKind, set.PlainKey)
}

// read reads who holds the lock and who waits for it.
func (s *server) read(ctx context.Context, l *state) error {
	lock, err := views.LockOf(access.ServerOf(s.look), l.set.Kind, l.prefix+l.name)
	if err != nil {
		return err
	}
	if l.holders, err = views.Holders(ctx, lock); err != nil {
		if redis.HasErrorPrefix(err, "WRONGTYPE") { // a key of the application
			return nil
		}
		return err
	}
	if l.waiters, err = views.Waiters(ctx, lock); err != nil {
		return err
	}
	l.holders = slices.DeleteFunc(l.holders, func(h views.Holder) bool { return protocol.IsRecord(h.Token) })
	slices.SortStableFunc(l.holders, func(a, b views.Holder) int { return cmp.Compare(a.Fence, b.Fence) })
	return nil
}

// await waits until accept returns true for the locks of a name.
func (s *Server) await(t testing.TB, name, want string, accept func([]*state) bool) {
	t.Helper()
	s.check(t)
	end := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, longestPause) {
		all, err := s.locks(background, name)
		must(t, err)
		if accept(all) {
			if s.bubble {
				synctest.Wait() // what follows from that at once has happened, such as a waiter's first heartbeat
			}
			return
		}
		if time.Now().After(end) {
			t.Fatalf("lockkeepertest: %q is not %s within %v. The server has %s", name, want, patience, describe(all))
		}
		time.Sleep(pause)
	}
}

func describe(all []*state) string {
	if len(all) == 0 {
		return "no lock of this name that is held or waited for"
	}
	texts := make([]string, len(all))
	for i, l := range all {
		texts[i] = l.String()
	}
	return strings.Join(texts, " and ")
}

// the waits until exactly one lock of a name is as needed, and returns it.
func (s *Server) the(t testing.TB, name, want string, is func(*state) bool) *state {
	t.Helper()
	var found *state
	s.await(t, name, want, func(all []*state) bool {
		t.Helper()
		for _, l := range all {
			switch {
			case !is(l):
			case found != nil:
				t.Fatalf("lockkeepertest: several locks have the name %q; choose one by Kind. The server has %s", name, describe(all))
			default:
				found = l
			}
		}
		return found != nil
	})
	return found
}

func (l *state) held() bool { return len(l.holders) > 0 }

// RequireHeld waits until somebody holds the lock of a name, or at least one permit of it.
func (s *Server) RequireHeld(t testing.TB, name string) {
	t.Helper()
	s.await(t, name, "held", func(all []*state) bool { return slices.ContainsFunc(all, (*state).held) })
}

// RequireFree waits until nobody holds the lock of a name, or any permit of it, and nobody waits for it.
//
// A lease that lingers (the option Linger of a lock), and permits that return by the clock, count as held.
func (s *Server) RequireFree(t testing.TB, name string) {
	t.Helper()
	s.await(t, name, "free", func(all []*state) bool { return len(all) == 0 })
}

// RequireWaiting waits until n requests wait for the lock of a name at the server.
//
// Of all goroutines that wait for one mutex through one keeper, one waits at the server. Nobody waits there for a redlock. A
// waiter that has crashed counts until it is removed: at its turn, or when its heartbeat has timed out.
func (s *Server) RequireWaiting(t testing.TB, name string, n int) {
	t.Helper()
	s.await(t, name, fmt.Sprintf("waited for by %d", n), func(all []*state) bool {
		sum := 0
		for _, l := range all {
			sum += len(l.waiters)
		}
		return sum == n
	})
}
