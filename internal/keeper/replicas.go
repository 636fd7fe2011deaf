package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// ReplicaAck says which replicas must have a grant before its lease is returned. Package lockkeeper documents it.
type ReplicaAck struct {
	Replicas int
	Majority bool
	Fsync    bool
	Timeout  time.Duration
}

func (a ReplicaAck) enabled() bool { return a.Replicas > 0 || a.Majority || a.Fsync }

// errReplicasPending is the error if ctx ends while replicas are awaited. It is not ErrNotAcquired, because the lock was not held elsewhere.
var errReplicasPending = server.Chain(server.ErrUnavailable, errors.New("the replicas had not acknowledged the grant when the context ended"))

// errUpgradeGone is the error if the server has lost an upgrade while replicas were awaited.
var errUpgradeGone = errors.New("the server does not know any more that it has granted the upgrade")

// awaitReplicas waits until replicas have the grant, if the keeper requires that. If they do not have it in time, or if ctx ends, the grant
// is undone.
func (l *Lock) awaitReplicas(ctx context.Context, h *Lease) error {
	if !l.k.cfg.ReplicaAck.enabled() {
		return nil
	}
	r := h.request
	err := l.replicateGrant(ctx, r)
	if err = cmp.Or(err, h.Err()); err == nil { // the lease may have ended meanwhile
		return nil
	}
	if c, _ := h.ReleaseBy(l.k.Transport.Send, true); c != nil {
		select {
		case <-c.Done():
		case <-time.After(CancelGrace):
		case <-ctx.Done():
		}
	}
	if end := ctx.Err(); end != nil && errors.Is(err, end) {
		return l.Fail(errReplicasPending, server.ContextError(ctx))
	}
	return l.Fail(err)
}

// replicateGrant waits until replicas have the grant. It repeats the request on the connection that waits; the server grants nothing twice.
func (l *Lock) replicateGrant(ctx context.Context, r *request) error {
	again := &transport.Call{Done: transport.Func(func(call *transport.Call) {
		r.Step(claim.Event{Kind: claim.CopyEnded, Outcome: transport.OutcomeOf(call.Err)}, nil)
	})}
	l.SetAcquire(again, r.Token(), r.policyArg, nil, false)
	r.Step(claim.Event{Kind: claim.CopySent}, nil) // a release that overtakes the repeated request must leave a tombstone
	return l.waitForReplicas(ctx, again, func() error {
		a, err := server.Decode(again, protocol.ParseAcquireReply)
		if err == nil && (a.Code != lua.Granted || uint64(a.Fence) != r.Fence()) {
			if r.upgrades() {
				return errUpgradeGone
			}
			if l.spec.Limits.clockOnly() { // there is no lease that could end
				return fmt.Errorf("%w: %w", server.ErrLost, ErrNotHeld)
			}
			err = r.LoseRefused(ctx)
		}
		return err
	})
}

// replicateRenewal waits until replicas have a lease that is adopted. It repeats the renewal on the connection that waits; a renewal does not
// revive a lease that has ended.
func (l *Lock) replicateRenewal(ctx context.Context, token string) (Renewal, error) {
	again := &transport.Call{Done: transport.Func(func(*transport.Call) {})}
	l.SetRenew(again, token, l.TTL, true)
	r := Renewal{Sent: time.Now()}
	err := l.waitForReplicas(ctx, again, func() (err error) {
		if r.RenewReply, err = server.Decode(again, protocol.ParseRenewReply); err == nil && !r.Held {
			err = l.GoneError(context.Background(), token)
		}
		return err
	})
	if err != nil {
		return Renewal{}, err // r may still be written to
	}
	return r, nil
}

// waitForReplicas sends a call that writes on a connection of its own, and waits until replicas have the write, and so all earlier ones. The call
// is needed because WAIT counts only the writes of its connection, and the grant was written by another. check parses the reply of the call.
func (l *Lock) waitForReplicas(ctx context.Context, call *transport.Call, check func() error) error {
	if !l.k.BeginWork(false) {
		call.Err = redis.ErrClosed // it was not sent
		call.Done.CallDone(call)
		return server.ErrClosed
	}
	done := make(chan error, 1)
	go func() { // go-redis does not interrupt a read when the context ends
		defer l.k.EndWork()
		done <- l.writeAndWait(call, check)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return server.ContextError(ctx)
	case <-l.k.Closing().Done():
		return server.ErrClosed
	}
}

func (l *Lock) writeAndWait(call *transport.Call, check func() error) error {
	ctx := context.Background()
	ack := l.k.cfg.ReplicaAck
	wanted, replicas, local := ack.Replicas, 0, !ack.Fsync
	fail := func(err error) error {
		return l.k.cfg.NotAcknowledged(replicas, wanted, local, server.Unavailable(err))
	}
	conn, primary, err := l.k.Config.Client.Conn(ctx, l.KeyOf(server.LockKey))
	if err != nil {
		call.Err = redis.ErrClosed // it was not sent
		call.Done.CallDone(call)
		return fail(err)
	}
	defer func() { _ = conn.Close() }()

	call.SetResult(conn.Do(ctx, call.Args...))
	if redis.HasErrorPrefix(call.Err, "NOSCRIPT") {
		call.SendText()
		call.SetResult(conn.Do(ctx, call.Args...))
	}
	call.Done.CallDone(call)
	if err := check(); errors.Is(err, server.ErrLost) || errors.Is(err, server.ErrReleased) {
		return err
	} else if err != nil {
		return fail(err)
	}

	if ack.Majority {
		n, err := connectedReplicas(ctx, conn)
		if err != nil {
			return fail(err)
		}
		wanted = max(ack.Replicas, l.k.maxReplicas(primary, n)/2+1)
	}
	if ack.Fsync {
		list, err := conn.WaitAOF(ctx, 1, wanted, ack.Timeout).Result()
		if err == nil && len(list) != 2 {
			err = fmt.Errorf("%w: %v from WAITAOF", protocol.ErrReply, list)
		}
		if err != nil {
			return fail(err)
		}
		local, replicas = list[0] > 0, int(list[1])
	} else {
		n, err := conn.Wait(ctx, wanted, ack.Timeout).Result()
		if err != nil {
			return fail(err)
		}
		replicas = int(n)
	}
	if replicas < wanted || !local {
		return l.k.cfg.NotAcknowledged(replicas, wanted, local, nil)
	}
	return nil
}

var connected = regexp.MustCompile(`(?m)^connected_slaves:(\d+)`)

// connectedReplicas returns how many replicas are connected to the primary.
func connectedReplicas(ctx context.Context, conn client.Conn) (int, error) {
	info, err := conn.Info(ctx, "replication").Result()
	if err != nil {
		return 0, err
	}
	m := connected.FindStringSubmatch(info)
	if m == nil {
		return 0, fmt.Errorf("%w: no connected_slaves from INFO", protocol.ErrReply)
	}
	return strconv.Atoi(m[1])
}

// maxReplicas returns the most replicas seen at a primary, which has n now. So a replica that is disconnected still counts for a majority.
func (k *Keeper) maxReplicas(primary string, n int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.replicas[primary] = max(k.replicas[primary], n)
	return k.replicas[primary]
}
