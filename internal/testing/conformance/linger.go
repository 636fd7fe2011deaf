package conformance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// Linger runs the tests of rwlock.Options.Linger that need real servers or processes.
func Linger(t *testing.T) {
	redistest.RequireBinary(t)
	runParallel(t, map[string]func(*testing.T){
		"cluster":               lingerOnCluster,
		"replica_ack":           lingerWithReplicaAck,
		"idle_process_frozen":   func(t *testing.T) { lingeringProcessStops(t, syscall.SIGSTOP, "idle") },
		"idle_process_killed":   func(t *testing.T) { lingeringProcessStops(t, syscall.SIGKILL, "idle") },
		"frozen_inside":         func(t *testing.T) { lingeringProcessStops(t, syscall.SIGSTOP, "inside") },
		"frozen_within_linger":  func(t *testing.T) { lingeringProcessStops(t, syscall.SIGSTOP, "lingers") },
		"killed_within_linger":  func(t *testing.T) { lingeringProcessStops(t, syscall.SIGKILL, "lingers") },
		"frozen_as_linger_ends": func(t *testing.T) { lingeringProcessStops(t, syscall.SIGSTOP, "ending") },
	})
}

// lingerer is a process with locks whose readers share leases, and how many grants were inside.
type lingerer struct {
	*testing.T
	*lockkeeper.Keeper
	local atomic.Int32
}

func newLingerer(t *testing.T, rdb redis.UniversalClient, ack lockkeeper.ReplicaAck) *lingerer {
	t.Helper()
	p := &lingerer{T: t}
	p.Keeper = newKeeper(t, rdb, lockkeeper.Options{
		ReplicaAck: ack,
		Hooks: lockkeeper.Hooks{AcquireDone: func(e lockkeeper.Event) {
			if e.Local {
				p.local.Add(1)
			}
		}},
	})
	return p
}

func (p *lingerer) lock(name string, linger time.Duration) *rwlock.Lock {
	p.Helper()
	return must.Get(rwlock.New(p.Keeper, name, &rwlock.Options{TTL: 6 * time.Second, Linger: linger}))(p)
}

// does acquires a lease, within half a minute, and releases it.
func (p *lingerer) does(f acquire) {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	lease := must.Get(f(ctx))(p)
	must.Report(p, lease.Release(context.Background()))
}

// awaitIdle waits until nobody holds the lock.
func awaitIdle(t *testing.T, l *rwlock.Lock) {
	t.Helper()
	eventually(t, "nobody holds the lock", func() bool {
		holders, err := l.Holders(t.Context())
		return err == nil && len(holders) == 0
	})
}

// lingerOnCluster has the permissions in docs/operations.md and no more, and moves a slot while readers share a lease.
func lingerOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	user, password := documentedUser(t, c.Primaries...)
	p := newLingerer(t, clusterClientOf(t, c, user, password), lockkeeper.ReplicaAck{})
	writer := newLingerer(t, clusterClientOf(t, c, user, password), lockkeeper.ReplicaAck{})
	const names = 10 // on all primaries
	for i := range names {
		l := p.lock(fmt.Sprint("n", i), time.Second)
		for range 20 {
			p.does(l.RLock)
		}
	}
	for i := range names {
		writer.does(writer.lock(fmt.Sprint("n", i), 0).Lock)
	}
	check.That(t, p.local.Load() >= 100, "%d of 200 reads were granted inside", p.local.Load())
	l, l2 := p.lock("moving", time.Second), writer.lock("moving", 0)
	for range 2 { // there and back
		p.does(l.RLock)
		c.MoveSlot("lock:moving")
		p.does(l.RLock)
		writer.does(l2.Lock)
	}
}

func lingerWithReplicaAck(t *testing.T) {
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	p := newLingerer(t, redistest.Connect(primary), lockkeeper.ReplicaAck{Replicas: 1, Timeout: 4 * time.Second})
	l := p.lock("x", 100*time.Millisecond)
	p.does(l.RLock)
	lease := must.Get(l.RLock(t.Context()))(t)
	check.Is(t, replica.Client().ZScore(t.Context(), "{lock:x}:rwlock:holders", lease.Token()).Err(), nil, "the replica does not have the lease")
	must.OK(t, lease.Release(t.Context()))
	awaitIdle(t, l)
	replica.Freeze()
	defer replica.Thaw()
	before := p.local.Load()
	_, err := l.RLock(t.Context())
	var not *lockkeeper.NotAcknowledgedError
	check.That(t, errors.As(err, &not) && p.local.Load() == before, "without the replica: %v; %d reads inside", err, p.local.Load()-before)
	writer := newLingerer(t, redistest.Connect(primary), lockkeeper.ReplicaAck{})
	writer.does(writer.lock("x", 0).Lock)
}

// lingeringProcessStops freezes or kills a process whose reader has a lease, or has had one. A writer of another process waits for the end of
// that lease if the process had it, and for nothing if the process was idle. A process that goes on grants nothing by that lease.
func lingeringProcessStops(t *testing.T, how syscall.Signal, state string) {
	s := redistest.Start(t)
	child := startChild(t, s, "linger")
	writer := newLingerer(t, redistest.Connect(s), lockkeeper.ReplicaAck{})
	l := writer.lock("x", 0)
	child.WriteLine(state)
	child.WaitForLine(state)
	child.Signal(how)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	writes := l.Lock
	if state == "idle" {
		writes = l.TryLock // there is nothing to wait for
	}
	lease := must.Get(writes(ctx))(t)
	took := time.Since(began)
	switch state {
	case "idle":
	case "ending": // the release was sent or not
		check.That(t, took < 3*ttl, "the writer waited for %v", took)
	default:
		check.Between(t, took, ttl/2, 3*ttl, "the writer waited for the end of a lease of 2 ttl")
	}
	if how == syscall.SIGSTOP {
		child.Signal(syscall.SIGCONT)
		child.WriteLine("read")
		line := child.WaitForLine("read ")
		check.That(t, strings.Contains(line, "deadline exceeded"), "the process was continued while another one writes: %s", line)
		if state == "inside" {
			child.WriteLine("release")
			line = child.WaitForLine("released ")
			check.That(t, strings.Contains(line, "lost"), "the release of a lease that has ended meanwhile: %s", line)
		}
	}
	must.Report(t, lease.Release(t.Context()))
	writer.does(l.Lock)
}

// lingerInChild reads by leases that linger, as each line of its input says, and prints when that is done.
func lingerInChild(k *lockkeeper.Keeper) {
	const linger = ttl / 2
	l, err := rwlock.New(k, "x", &rwlock.Options{TTL: 2 * ttl, Linger: linger})
	exitOn(err)
	var inside *lockkeeper.Lease
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch what := in.Text(); what {
		case "read":
			ctx, cancel := context.WithTimeout(context.Background(), ttl/3)
			lease, err := l.RLock(ctx)
			if err == nil {
				err = lease.Release(ctx)
			}
			cancel()
			fmt.Println("read", err)
		case "release":
			fmt.Println("released", inside.Release(context.Background()))
		default:
			inside, err = l.RLock(context.Background())
			exitOn(err)
			if what != "inside" {
				exitOn(inside.Release(context.Background()))
			}
			switch what {
			case "idle":
				for held := true; held; time.Sleep(time.Millisecond) {
					holders, err := l.Holders(context.Background())
					exitOn(err)
					held = len(holders) > 0
				}
			case "ending":
				time.Sleep(linger)
			}
			fmt.Println(what)
		}
	}
}
