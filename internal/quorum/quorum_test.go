package quorum

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/lua"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	goleak.VerifyTestMain(m)
}

const (
	ttl           = 600 * time.Millisecond
	serverTimeout = 60 * time.Millisecond
	key           = "lock:x" // of the lock at each server
	metaKey       = "{lock:x}:mutex:meta"
)

// fixture is several servers in a synctest bubble, each with its own clock, and one process with a keeper and a network for each
// of them.
type fixture struct {
	*testing.T
	servers []*miniredis.Miniredis
	offsets []time.Duration // of the servers' clocks
	uptimes []atomic.Int64  // of the servers, in s
	nets    []*faultnet.Net
	keepers []*keeper.Keeper
	cleanup []func()
	parts   int // made by part

	mu     sync.Mutex
	events []keeper.Event // of the first engine
}

// failure is an error as Spec.Fail makes it.
type failure struct {
	answers []error
	error
}

func (f *failure) Unwrap() error { return f.error }

func inBubble(t *testing.T, servers int, test func(s *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &fixture{T: t, offsets: make([]time.Duration, servers), uptimes: make([]atomic.Int64, servers)}
		for i := range servers {
			m := miniredis.NewMiniRedis()
			m.ClockTTL(true)
			first := must.Get(m.Dial())(s) // Server returns nil before the first connection
			s.must(first.Close())
			s.uptimes[i].Store(1e6)
			m.Server().SetPreHook(func(c *miniserver.Peer, command string, _ ...string) bool {
				if strings.HasPrefix(command, "EVAL") {
					m.SetTime(time.Now().Add(s.offsets[i]))
				}
				if command == "INFO" {
					c.WriteBulk(fmt.Sprintf("# Server\r\nuptime_in_seconds:%d\r\n", s.uptimes[i].Load()))
				}
				return command == "INFO"
			})
			s.servers = append(s.servers, m)
		}
		s.nets, s.keepers = s.process(func(e keeper.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, e)
		})
		defer func() {
			for _, f := range slices.Backward(s.cleanup) {
				f()
			}
			for _, m := range s.servers {
				m.Close()
			}
			time.Sleep(time.Minute) // go-redis ends its goroutines by timers
		}()
		test(s)
	})
}

// subtest runs a test with this name in a bubble of its own.
func subtest(t *testing.T, name string, servers int, test func(s *fixture)) {
	t.Run(name, func(t *testing.T) { inBubble(t, servers, test) })
}

// process returns the networks and keepers of another process. The observer is that of its first keeper.
func (s *fixture) process(observe func(keeper.Event)) (nets []*faultnet.Net, keepers []*keeper.Keeper) {
	s.Helper()
	for _, m := range s.servers {
		n := faultnet.New(faultnet.Buffer(func(context.Context, string, string) (net.Conn, error) { return m.Dial() }))
		c, end := embedded.Connect(s, n, time.Second)
		e := keeper.New(keeper.Config{
			Config: server.Config{
				Client: c, Prefix: "lock:", HeartbeatInterval: 200 * time.Millisecond, HeartbeatTimeout: 600 * time.Millisecond,
				MetadataTTL: time.Hour, Retry: server.Retry{MinBackoff: 10 * time.Millisecond, MaxBackoff: time.Second, MaxElapsed: 2 * time.Second},
				Log: quiet.Logger(nil),
			},
			Observe: observe,
		})
		observe = nil
		nets, keepers = append(nets, n), append(keepers, e)
		s.cleanup = append(s.cleanup, func() {
			n.Restore()
			_ = e.Close()
			end()
		})
	}
	return nets, keepers
}

// lock returns the lock "x" on these keepers.
func (s *fixture) lock(keepers []*keeper.Keeper, change ...func(*Spec)) *Majority {
	s.Helper()
	spec := Spec{
		Spec:    keeper.Spec{Scripts: lua.Redlock, Name: "x", TTL: ttl},
		Keepers: keepers, ServerTimeout: serverTimeout, MaxRetryDelay: 250 * time.Millisecond,
		Fail: func(answers []error, causes ...error) error { return &failure{answers, server.Chain(causes...)} },
	}
	for _, f := range change {
		f(&spec)
	}
	return must.Get(New(spec))(s)
}

func withoutRenewal(spec *Spec) { spec.NoRenewal = true }

// try returns a lease, when all servers have answered.
func (s *fixture) try(l *Majority) *Lease {
	s.Helper()
	u := must.Get(l.Try(s.Context()))(s)
	synctest.Wait()
	return u
}

// release releases a lease and returns when all servers have answered.
func (s *fixture) release(u *Lease) {
	s.Helper()
	s.must(u.Release(s.Context()))
	synctest.Wait()
}

// connect opens the connections and loads the scripts.
func (s *fixture) connect(l *Majority) {
	s.Helper()
	s.release(s.try(l))
}

// ends waits until the channel is closed, for a minute at most: a lease that is renewed forever would keep the test running.
func (s *fixture) ends(done <-chan struct{}) {
	s.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		s.Fatal("not ended after a minute")
	}
}

func (s *fixture) must(err error) {
	s.Helper()
	must.OK(s, err)
}

// occupy gives the lock at some servers to another holder.
func (s *fixture) occupy(servers ...int) {
	s.Helper()
	for _, i := range servers {
		s.must(s.servers[i].Set(key, "another"))
		s.servers[i].SetTTL(key, time.Minute)
	}
}

// owned returns the servers that have this token, from 0, when all commands under way have ended.
func (s *fixture) owned(token string) (servers []int) {
	synctest.Wait()
	for i, m := range s.servers {
		m.SetTime(time.Now().Add(s.offsets[i]))
		if owner, _ := m.Get(key); owner == token {
			servers = append(servers, i)
		}
	}
	return servers
}

// wantOwned checks which servers have the token.
func (s *fixture) wantOwned(token string, want ...int) {
	s.Helper()
	if got := s.owned(token); !slices.Equal(got, want) {
		s.Errorf("servers %v have the lease, want %v", got, want)
	}
}

// wantError checks which of these errors an error matches.
func (s *fixture) wantError(err error, want ...error) {
	s.Helper()
	for _, e := range []error{server.ErrNotAcquired, server.ErrUnavailable, server.ErrLost, server.ErrReleased, server.ErrClosed, server.ErrInvalid, errRecentRestart, context.DeadlineExceeded} {
		if errors.Is(err, e) != slices.Contains(want, e) {
			s.Errorf("errors.Is %q is not %v: %v", e, slices.Contains(want, e), err)
		}
	}
}

// answers returns what each server has answered, by an error of Spec.Fail.
func (s *fixture) answers(err error) []error {
	s.Helper()
	var f *failure
	if !errors.As(err, &f) {
		s.Fatalf("%v has no answers", err)
	}
	return f.answers
}

// forgetEvents makes wantEvents check only later events.
func (s *fixture) forgetEvents() {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = nil
}

// wantEvents checks the types of the first engine's events since the last call.
func (s *fixture) wantEvents(want ...keeper.EventType) {
	s.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var got []keeper.EventType
	for _, e := range s.events {
		got = append(got, e.Type)
	}
	s.events = nil
	if !slices.Equal(got, want) {
		s.Errorf("events %v, want %v", got, want)
	}
}

// memberOf returns a member of a lease that is in use.
func memberOf(u *Lease, i int) member {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.members[i]
}

// ignored is an owner of parts whose events nobody needs.
type ignored struct{}

func (ignored) LeaseEvent(keeper.EventType) bool { return true }
func (ignored) CleanedUp()                       {}

// part returns a lease at the first server that could be a part: it ends ttl from now and has this fence.
func (s *fixture) part(ttl time.Duration, fence int64) *keeper.Lease {
	s.Helper()
	s.parts++
	l, err := s.keepers[0].Lock(keeper.Spec{
		Scripts: lua.Redlock, Name: fmt.Sprint("part ", s.parts), TTL: ttl, NoRenewal: true,
	})
	s.must(err)
	answered := make(chan keeper.Part, 1)
	l.AskPart(l.NewToken(protocol.FlagLeastFence, fence, ""), time.Now(), ignored{}, false, func(p keeper.Part) { answered <- p })
	reply := <-answered
	s.must(reply.Err)
	if got := int64(reply.Lease.Fence()); got != fence {
		s.Fatalf("fence %d, want %d", got, fence)
	}
	return reply.Lease
}

// leaseOf returns a lease with these members. Nothing has been sent for it.
func (s *fixture) leaseOf(members ...member) *Lease {
	s.Helper()
	u := &Lease{lock: &Majority{need: len(members)/2 + 1}, members: members, changed: make(chan struct{}, 1)}
	u.lock.spec.ServerTimeout = serverTimeout
	u.lifecycle.Begin(u)
	return u
}
