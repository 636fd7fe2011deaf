package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// Retained runs the tests of rwlock.Options.Retain that need real servers, users with few permissions, or processes.
func Retained(t *testing.T) {
	redistest.RequireBinary(t)
	runParallel(t, map[string]func(*testing.T){
		"cluster":                       retainedOnCluster,
		"without_permission_to_publish": recallWithoutPermission,
		"replica_ack":                   retainedWithReplicaAck,
		"frozen_process_delays_by_ttl":  func(t *testing.T) { retainingProcessStops(t, syscall.SIGSTOP) },
		"killed_process_delays_by_ttl":  func(t *testing.T) { retainingProcessStops(t, syscall.SIGKILL) },
	})
}

// retainedTTL is the ttl of retained leases here, and promptly the time within which a writer gets the lock from processes that
// receive its message. Without it they learn of the recall from a renewal, two seconds after the last.
const retainedTTL, promptly = 6 * time.Second, 1500 * time.Millisecond

// retainer is a process with locks whose reads it may grant inside.
type retainer struct {
	*testing.T
	*lockkeeper.Keeper
	local, recalled, wakeupsLost atomic.Int32
	log                          bytes.Buffer
}

func newRetainer(t *testing.T, rdb redis.UniversalClient, change ...func(*lockkeeper.Options)) *retainer {
	t.Helper()
	p := &retainer{T: t}
	o := &lockkeeper.Options{
		HeartbeatInterval: rareHeartbeat,
		Retry:             lockkeeper.RetryPolicy{MaxElapsed: 20 * time.Second},
		Logger:            slog.New(slog.NewTextHandler(&p.log, nil)),
		Hooks: lockkeeper.Hooks{
			AcquireDone: func(e lockkeeper.Event) {
				if e.Local {
					p.local.Add(1)
				}
			},
			Recalled:   func(lockkeeper.Event) { p.recalled.Add(1) },
			WakeupLost: func(lockkeeper.Event) { p.wakeupsLost.Add(1) },
		},
	}
	for _, f := range change {
		f(o)
	}
	p.Keeper = newKeeper(t, rdb, *o)
	return p
}

func (p *retainer) lock(name string) *rwlock.Lock {
	p.Helper()
	return must.Get(rwlock.New(p.Keeper, name, &rwlock.Options{TTL: retainedTTL, Retain: true}))(p)
}

// must acquires a lease, within half a minute.
func (p *retainer) must(f acquire) *lockkeeper.Lease {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return must.Get(f(ctx))(p)
}

func (p *retainer) once(f acquire) {
	p.Helper()
	must.Report(p, p.must(f).Release(context.Background()))
}

// isLocal reads, and reports whether that was granted inside.
func (p *retainer) isLocal(l *rwlock.Lock) bool {
	p.Helper()
	before := p.local.Load()
	p.once(l.RLock)
	return p.local.Load() > before
}

// retains reads until reads are granted inside.
func (p *retainer) retains(l *rwlock.Lock) {
	p.Helper()
	eventually(p, "a read that is granted inside", func() bool { return p.isLocal(l) })
}

// writes acquires the lock for writing, releases it, and returns how long it has waited.
func (p *retainer) writes(l *rwlock.Lock) time.Duration {
	p.Helper()
	began := time.Now()
	lease := p.must(l.Lock)
	took := time.Since(began)
	must.Report(p, lease.Release(context.Background()))
	return took
}

// recalls makes the process retain a lease and a writer of another process recall it.
func (p *retainer) recalls(name string, writer *retainer) {
	p.Helper()
	l := p.lock(name)
	p.retains(l)
	before := p.recalled.Load()
	took := writer.writes(writer.lock(name))
	check.That(p, took <= promptly, "%s: the writer waited for %v although the process receives recalls", name, took)
	eventually(p, "a recall of "+name, func() bool { return p.recalled.Load() > before })
	p.once(l.RLock)
}

// retainedOnCluster has the permissions in docs/operations.md and no more.
func retainedOnCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3, 0)
	user, password := documentedUser(t, c.Primaries...)
	client := func() redis.UniversalClient { return clusterClientOf(t, c, user, password) }
	p, writer := newRetainer(t, client()), newRetainer(t, client())
	for i := range 10 { // on all primaries
		p.recalls(fmt.Sprint("n", i), writer)
	}
	// Many names, each of which has a channel of its own, are granted inside again soon after the connections were cut.
	var many []*rwlock.Lock
	for i := range 2000 {
		many = append(many, p.lock(fmt.Sprint("many", i)))
	}
	for range 2 {
		for range 2 { // together, to retain them
			for _, l := range many {
				p.once(l.RLock)
			}
		}
		for _, l := range many {
			p.retains(l)
		}
		for _, s := range c.Primaries {
			must.Report(t, s.Client().Do(t.Context(), "client", "kill", "type", "pubsub").Err())
		}
	}
	l, l2 := p.lock("moving"), writer.lock("moving")
	for range 2 { // there and back
		time.Sleep(leastInhibition)
		p.retains(l)
		to := c.MoveSlot("lock:moving").Client()
		eventually(t, "the subscription at the new primary", func() bool {
			list, err := to.PubSubShardChannels(t.Context(), "{lock:moving}:wake:"+p.ID()).Result()
			return err == nil && len(list) > 0
		})
		p.retains(l)
		took := writer.writes(l2)
		check.That(t, took <= promptly, "the writer waited for %v after the slot had moved", took)
	}
	check.That(t, p.recalled.Load() == 12, "%d recalls, want 12", p.recalled.Load())
}

// leastInhibition is longer than a process retains no lease after a quick recall.
const leastInhibition = 200 * time.Millisecond

// recallWithoutPermission lets somebody write who may not publish recalls. The process learns of them from its renewals. It takes
// that for a subscription that receives nothing, and replaces it, but not each time.
func recallWithoutPermission(t *testing.T) {
	s := redistest.Start(t)
	p := newRetainer(t, s.Client())
	writer := newRetainer(t, newUser(t, s, "~*", "resetchannels"), func(o *lockkeeper.Options) { o.HeartbeatInterval = 500 * time.Millisecond })
	l, l2 := p.lock("x"), writer.lock("x")
	const rounds = 2
	for i := range rounds {
		for !p.isLocal(l) {
			time.Sleep(100 * time.Millisecond) // until the inhibition, nine times as long as the recall took, has ended
		}
		inside := p.must(l.RLock)
		granted := make(chan time.Duration, 1)
		go func() { granted <- writer.writes(l2) }()
		for end := time.Now().Add(retainedTTL); ; time.Sleep(20 * time.Millisecond) {
			brief, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			lease, err := l.RLock(brief)
			cancel()
			if err != nil {
				break
			}
			_ = lease.Release(t.Context())
			must.That(t, !time.Now().After(end), "no renewal has reported the recall")
		}
		time.Sleep(1200 * time.Millisecond) // the message is expected for a second
		check.Is(t, inside.Release(t.Context()), nil, "round %d", i)
		took := <-granted
		check.That(t, took <= retainedTTL, "the writer waited for %v", took)
	}
	check.That(t, p.wakeupsLost.Load() == 1,
		"the subscription was replaced %d times for %d recalls that nobody may publish, want once", p.wakeupsLost.Load(), rounds)
}

func retainedWithReplicaAck(t *testing.T) {
	primary := redistest.Start(t)
	replica := redistest.StartReplica(t, primary)
	p := newRetainer(t, primary.Client(), func(o *lockkeeper.Options) {
		o.ReplicaAck = lockkeeper.ReplicaAck{Replicas: 1, Timeout: 4 * time.Second}
	})
	writer := newRetainer(t, primary.Client())
	l := p.lock("x")
	p.retains(l)
	lease := p.must(l.RLock)
	check.Is(t, replica.Client().ZScore(t.Context(), "{lock:x}:rwlock:holders", lease.Token()).Err(), nil, "the replica does not have the lease by which a read was granted")
	_ = lease.Release(t.Context())
	writer.writes(writer.lock("x"))

	time.Sleep(leastInhibition)
	replica.Freeze()
	defer replica.Thaw()
	before := p.local.Load()
	_, err := l.RLock(t.Context())
	var not *lockkeeper.NotAcknowledgedError
	check.That(t, errors.As(err, &not) && p.local.Load() == before,
		"without the replica: %v; %d reads inside", err, p.local.Load()-before)
	took := writer.writes(writer.lock("x"))
	check.That(t, took <= promptly, "the lease that was not acknowledged is kept; the writer waited for %v", took)
	replica.Thaw()
	p.retains(l)
}

// retainingProcessStops freezes or kills a process that retains a lease, with nobody inside. The writer waits until the lease has
// expired, and the next one does not wait. When the process goes on it grants nothing inside by that lease.
func retainingProcessStops(t *testing.T, how syscall.Signal) {
	s := redistest.Start(t)
	child := startChild(t, s, "retain")
	child.WaitForLine("retained")
	writer := newRetainer(t, s.Client())
	l := writer.lock("x")
	child.Signal(how)
	began := time.Now()
	lease := writer.must(l.Lock)
	check.Between(t, time.Since(began), ttl/2, 3*ttl, "the writer waited for the end of a retained lease of 2 ttl")
	if how == syscall.SIGSTOP {
		child.Signal(syscall.SIGCONT)
		child.WriteLine("read")
		line := child.WaitForLine("read ")
		check.That(t, strings.Contains(line, "deadline exceeded"), "the process was continued while another one writes: %s", line)
	}
	must.Report(t, lease.Release(t.Context()))
	took := writer.writes(l)
	check.That(t, took <= promptly, "the second writer waited for %v", took)
}

// retainInChild retains a lease of the name x, prints so, and then reads once for each line of its input, without waiting long.
func retainInChild(k *lockkeeper.Keeper, local func() bool) {
	l, err := rwlock.New(k, "x", &rwlock.Options{TTL: 2 * ttl, Retain: true})
	exitOn(err)
	read := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), ttl/3)
		defer cancel()
		lease, err := l.RLock(ctx)
		if err == nil {
			err = lease.Release(ctx)
		}
		return err
	}
	for !local() {
		exitOn(read())
	}
	fmt.Println("retained")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("read", read())
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}
