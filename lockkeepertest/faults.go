package lockkeepertest

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// faults are those of all processes that last until Restore.
type faults struct {
	unreachable bool
	loseWakeups bool
	slow        time.Duration
}

func (f faults) apply(n *faultnet.Net) {
	if f.unreachable {
		n.Blackhole()
	}
	if f.loseWakeups {
		n.LoseMessages()
	}
	n.DelayReplies(f.slow)
}

// setFaults changes the faults of all processes.
func (s *Server) setFaults(change func(*faults)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.faults)
	for _, p := range s.processes {
		s.faults.apply(p.net)
	}
}

// Restore ends all faults that last: Unreachable, LoseWakeups, SlowAnswers, FreezeHolder and FreezeWaiter. Processes that
// have crashed remain so.
func (s *Server) Restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	cut := s.faults.unreachable // or clients go on waiting for replies to what was lost
	s.faults = faults{}
	for _, p := range s.processes {
		p.mu.Lock()
		if !p.crashed {
			p.net.Restore()
		}
		if cut {
			p.net.Cut()
		}
		p.mu.Unlock()
	}
}

// LoseLease waits until the lock of a name is held and deletes its key, so that all its leases are lost. Waiters are granted
// the lock by their next heartbeat.
//
// In production: the key was evicted or deleted by hand, or a failover lost the grant. The holder sees the loss at its next
// renewal, a third of the ttl later, or when it calls Extend: its contexts end, with ErrLost as the cause, the hook Lost is
// called, and Do and Release return ErrLost. Until then it believes that it holds the lock, and another holder can be granted
// it. A lease with NoRenewal sees it at its deadline.
func (s *Server) LoseLease(t testing.TB, name string) {
	t.Helper()
	l := s.the(t, name, "held", (*state).held)
	must(t, s.admin.Del(background, l.keys.Lock).Err())
}

// StealLock waits until the lock of a name is held, takes it away from its holder, and gives it to another process, whose
// lease it returns. The new lease has a larger fence. It is renewed until it is released or the test ends. Waiters keep their
// places. The lock must be a mutex, a fair lock or a read-write lock, of which all leases are lost and the write lease is
// taken.
//
// In production: as for LoseLease, or the holder was paused for longer than the ttl, and somebody else was granted the lock.
// The former holder sees the same as after LoseLease. If it writes before it has seen the loss, a store that checks fences
// must reject it once it has seen the fence of the new lease.
func (s *Server) StealLock(t testing.TB, name string) *lockkeeper.Lease {
	t.Helper()
	l := s.the(t, name, "held", (*state).held)
	o := &lockkeeper.Options{Prefix: l.prefix, NoPrefix: l.prefix == "", Logger: slog.New(slog.DiscardHandler)}
	k, err := lockkeeper.New(s.admin, o)
	must(t, err)
	t.Cleanup(func() { _ = k.Close() })
	var lock interface {
		TryLock(context.Context) (*lockkeeper.Lease, error)
	}
	switch l.set.Kind {
	case "mutex":
		lock, err = mutex.New(k, name, nil)
	case "fair":
		lock, err = fair.New(k, name, nil)
	case "rwlock":
		lock, err = rwlock.New(k, name, nil)
	default:
		t.Fatalf("lockkeepertest: StealLock of a %s, which is not supported; use LoseLease", l.set.Kind)
	}
	must(t, err)
	for {
		lease, err := s.steal(background, l.keys, lock.TryLock)
		if !errors.Is(err, lockkeeper.ErrNotAcquired) { // somebody else was granted it in between
			must(t, err)
			return lease
		}
	}
}

// steal takes a lock while its queue is out of the way.
func (s *server) steal(ctx context.Context, keys protocol.Keys, try func(context.Context) (*lockkeeper.Lease, error)) (*lockkeeper.Lease, error) {
	// Without a queue there is nothing to move. The embedded server would store an empty one, which Redis does not have.
	if n, err := s.admin.ZCard(ctx, keys.Queue).Result(); err != nil {
		return nil, err
	} else if n == 0 {
		if err := s.admin.Del(ctx, keys.Lock).Err(); err != nil {
			return nil, err
		}
		return try(ctx)
	}
	away := keys.Queue + ":away"
	_, err := s.admin.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, keys.Lock)
		p.ZUnionStore(ctx, away, &redis.ZStore{Keys: []string{keys.Queue}})
		p.PExpire(ctx, away, time.Hour)
		p.Del(ctx, keys.Queue)
		return nil
	})
	if err != nil {
		return nil, err
	}
	lease, err := try(ctx)
	_, err2 := s.admin.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.ZUnionStore(ctx, keys.Queue, &redis.ZStore{Keys: []string{keys.Queue, away}, Aggregate: "MIN"})
		p.PExpire(ctx, keys.Queue, time.Hour) // the next heartbeat shortens it
		p.Del(ctx, away)
		return nil
	})
	return lease, errors.Join(err, err2)
}

// CrashHolder waits until the lock of a name is held, and cuts its holder off for good: connections break, and nothing that
// the process sends reaches the server. If there are several holders, it crashes the one with the smallest fence.
//
// In production: the process was killed, or its machine has failed. Its leases are not released, and expire after their ttl;
// the next waiter is then granted the lock within milliseconds. The goroutines of the process go on in the test: its leases are
// lost by their deadlines, and its calls fail with ErrUnavailable, as those of a process do whose network has failed.
func (s *Server) CrashHolder(t testing.TB, name string) {
	t.Helper()
	s.processOf(t, name, holder).crash()
}

// CrashWaiter waits until somebody waits for the lock of a name, and cuts the first waiter off, as CrashHolder does.
//
// In production: the process was killed, or its machine has failed. The waiter is skipped at its turn: other waiters see no
// delay. It keeps its place until then, or until its heartbeat has timed out.
func (s *Server) CrashWaiter(t testing.TB, name string) {
	t.Helper()
	s.processOf(t, name, waiter).crash()
}

// FreezeHolder waits until the lock of a name is held, and freezes its holder until Restore: what it sends and what is sent to
// it is held back. If there are several holders, it freezes the one with the smallest fence.
//
// In production: a long pause of the garbage collector or of the virtual machine, SIGSTOP, or a network that holds packets
// back. A freeze that is shorter than what is left of the lease has no effect. After a longer one the lease is lost: others
// can have been granted the lock, and the former holder sees ErrLost.
//
// Only the connections are frozen. The code of the process goes on, and so sees the loss at the deadline, before somebody else
// is granted the lock. To test a process that stops between a check of its lease and a write, let the code under test block
// there, and call FreezeHolder so that the lease is not renewed.
func (s *Server) FreezeHolder(t testing.TB, name string) {
	t.Helper()
	s.processOf(t, name, holder).freeze()
}

// FreezeWaiter waits until somebody waits for the lock of a name, and freezes the first waiter until Restore, as FreezeHolder
// does.
//
// In production: as for FreezeHolder. If the waiter's turn comes, others wait until the waiter's heartbeat times out, at most
// Options.HeartbeatTimeout (6 s), and are served before it. It rejoins the queue when the freeze ends, at its place if it was
// frozen for less than that time, and otherwise at the end.
func (s *Server) FreezeWaiter(t testing.TB, name string) {
	t.Helper()
	s.processOf(t, name, waiter).freeze()
}

// role is what a process does with a lock.
type role struct {
	name  string
	token func(*state) string // of the first one with the role, or ""
}

var (
	holder = role{"held", func(l *state) string {
		if len(l.holders) == 0 {
			return ""
		}
		return l.holders[0].Token
	}}
	waiter = role{"waited for", func(l *state) string {
		if len(l.waiters) == 0 {
			return ""
		}
		return l.waiters[0].Token
	}}
)

// processOf waits until somebody has the role, and returns the process.
func (s *Server) processOf(t testing.TB, name string, r role) *process {
	t.Helper()
	l := s.the(t, name, r.name, func(l *state) bool { return r.token(l) != "" })
	token := r.token(l)
	made, _ := protocol.ParseToken(token)
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *process
	latest := uint64(0)
	for _, p := range s.processes { // the latest, in case the token was adopted
		if use := p.lastUse(made.Keeper); use > latest {
			found, latest = p, use
		}
	}
	if found == nil {
		t.Fatalf("lockkeepertest: %q is %s by %s, which does not use Server.Client or Server.Keeper of this test; if it is a program, kill it", name, r.name, owner(token))
	}
	return found
}

func (p *process) crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crashed = true
	p.net.Down()
}

func (p *process) freeze() { p.net.Freeze() }

// Unreachable makes the server unreachable for all processes until Restore: nothing that they send arrives, and no connection
// can be opened. Open connections stay open, and break when it ends.
//
// In production: the server is frozen or down, or the network is partitioned. Calls block until their contexts end, or until
// the retry policy of the keeper gives up, and return ErrUnavailable. Holders keep their leases until their deadlines and then
// see a loss that matches ErrLost and ErrUnavailable; a shorter outage has no effect on them. Waiters keep waiting and rejoin
// the queue.
func (s *Server) Unreachable() { s.setFaults(func(f *faults) { f.unreachable = true }) }

// LoseWakeups discards the messages by which waiters are granted a lock, until Restore.
//
// In production: the subscription was cut, or a firewall has forgotten the idle connection. Each hand-off then takes up to
// Options.HeartbeatInterval (2 s) longer. The hook WakeupLost is called and the subscription replaced. No call fails.
func (s *Server) LoseWakeups() { s.setFaults(func(f *faults) { f.loseWakeups = true }) }

// SlowAnswers delays everything that the server sends by d, until Restore or another call.
//
// In production: a server that is busy with slow commands, or a slow network. Everything takes longer; a TryLock takes d. A
// lease counts from before its request was sent, so its deadline is d sooner from when the caller has it. If d exceeds the
// client's ReadTimeout (5 s), the server is unavailable; see Unreachable.
func (s *Server) SlowAnswers(d time.Duration) {
	s.setFaults(func(f *faults) { f.slow = d })
}

// Flush deletes everything in the database, also what is not Lockkeeper's.
//
// In production: FLUSHALL, or a restart without persistence. Holders see the loss at their next renewal, as after LoseLease, and
// another holder can be granted the lock before. Waiters rejoin the queue by their next heartbeat, not necessarily in the same
// order. Fences go on rising. A rate limit has forgotten what was taken, and a job of package once may run again.
func (s *Server) Flush(t testing.TB) {
	t.Helper()
	s.check(t)
	_, err := s.admin.TxPipelined(background, func(p redis.Pipeliner) error {
		s.flush(background, p)
		return nil
	})
	must(t, err)
}

// flush empties the database, but keeps the claim on it.
func (s *server) flush(ctx context.Context, p redis.Pipeliner) {
	p.FlushDB(ctx)
	if s.mini == nil {
		p.Set(ctx, claimKey, "", time.Hour)
	}
}
