package engine

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/courier"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// Acknowledgement says what must have a grant before its lease is handed out. Package lockkeeper documents it.
type Acknowledgement struct {
	Replicas int
	Majority bool
	Fsync    bool
	Within   time.Duration
}

func (a Acknowledgement) wanted() bool { return a.Replicas > 0 || a.Majority || a.Fsync }

// NotAcknowledged is why a lease that was granted was not handed out but given back. Package lockkeeper documents it.
type NotAcknowledged struct {
	Replicas, Wanted int
	Local            bool
	Err              error
}

// Error is as in error.
func (e *NotAcknowledged) Error() string {
	text := fmt.Sprintf("%d of %d replicas have acknowledged it", e.Replicas, e.Wanted)
	switch {
	case e.Err != nil:
		text += ": " + e.Err.Error()
	case !e.Local:
		text += ", and the primary has not written it to its disk"
	}
	return text
}

// Unwrap is the cause, if there is one beside time.
func (e *NotAcknowledged) Unwrap() error { return e.Err }

// acknowledged returns the lease when replicas have it. If they do not in time, or ctx ends, the lease is given back.
func (l *Lock) acknowledged(ctx context.Context, h *Hold) (*Hold, error) {
	err := l.acknowledge(ctx, h)
	if err == nil {
		err = h.Err() // the lease may have ended meanwhile
	}
	if err == nil {
		return h, nil
	}
	if from := h.request.origin; from != nil {
		from.lose(err) // it ended at the server when this one came in its place
	}
	if d, _ := h.release(l.e.courier.Send, true); d != nil {
		grace := time.NewTimer(graceAfterEnd)
		defer grace.Stop()
		select {
		case <-d.over:
		case <-grace.C:
		case <-ctx.Done():
		}
	}
	if end := ctx.Err(); end != nil {
		return nil, l.fail(ErrNotAcquired, end, err)
	}
	return nil, l.fail(err)
}

// acknowledge waits until replicas have the grant. WAIT counts what its own connection has written, and the grant may
// have been written by another's; so the same connection asks for the lease once more, which writes, and whatever has
// that write has the grant as well.
func (l *Lock) acknowledge(ctx context.Context, h *Hold) error {
	if !l.e.enter(false) {
		return ErrClosed
	}
	done := make(chan error, 1)
	h.request.leaves(time.Now()) // a release that overtakes it has to bury
	go func() {                  // go-redis does not interrupt a read when the context ends
		defer l.e.exit()
		done <- l.waitForReplicas(h)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Lock) waitForReplicas(h *Hold) error {
	ctx := context.Background()
	want := l.e.cfg.Acknowledge
	result := &NotAcknowledged{Wanted: want.Replicas, Local: !want.Fsync}
	fail := func(err error) error {
		result.Err = err
		return result
	}
	conn, primary, err := l.e.connection(ctx, l.key(ofLock))
	if err != nil {
		h.request.arrived(courier.Unsent)
		return fail(err)
	}
	defer func() { _ = conn.Close() }()

	s := l.spec.Scripts.Acquire
	args := lua.AcquireArgs(nil, h.token, l.args.ttl, l.args.idle, 0, l.args.wake, l.args.sharded, h.request.extra, 0)
	reply, err := conn.EvalSha(ctx, s.SHA, l.allKeys(), args...).Int64Slice()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		reply, err = conn.Eval(ctx, s.Text, l.allKeys(), args...).Int64Slice()
	}
	h.request.arrived(courier.FateOf(err))
	if err != nil {
		return fail(err)
	}
	a, err := parseAnswer(&courier.Call{Reply: reply})
	if err != nil {
		return fail(err)
	}
	if a.code != lua.Granted || uint64(a.fence) != h.fence {
		h.lose(errNotHeld)
		return h.Err()
	}

	if want.Majority {
		n, err := replicas(ctx, conn)
		if err != nil {
			return fail(err)
		}
		result.Wanted = max(want.Replicas, l.e.mostReplicas(primary, n)/2+1)
	}
	if want.Fsync {
		list, err := conn.Do(ctx, "waitaof", 1, result.Wanted, millis(want.Within)).Int64Slice()
		if err == nil && len(list) != 2 {
			err = fmt.Errorf("%w: %v from WAITAOF", courier.ErrReply, list)
		}
		if err != nil {
			return fail(err)
		}
		result.Local, result.Replicas = list[0] > 0, int(list[1])
	} else {
		n, err := conn.Wait(ctx, result.Wanted, want.Within).Result()
		if err != nil {
			return fail(err)
		}
		result.Replicas = int(n)
	}
	if result.Replicas < result.Wanted || !result.Local {
		return result
	}
	return nil
}

// connection is one to the primary that has the key, and the name of that.
func (e *Engine) connection(ctx context.Context, key string) (conn *redis.Conn, primary string, err error) {
	switch rdb := e.cfg.Client.(type) {
	case *redis.Client:
		return rdb.Conn(), "", nil
	case *redis.ClusterClient:
		node, err := rdb.MasterForKey(ctx, key)
		if err != nil {
			return nil, "", err
		}
		return node.Conn(), node.Options().Addr, nil
	}
	return nil, "", errors.New("this kind of client has no connections of its own")
}

var connected = regexp.MustCompile(`(?m)^connected_slaves:(\d+)`)

// replicas is how many are connected to the primary.
func replicas(ctx context.Context, conn *redis.Conn) (int, error) {
	info, err := conn.Info(ctx, "replication").Result()
	if err != nil {
		return 0, err
	}
	m := connected.FindStringSubmatch(info)
	if m == nil {
		return 0, fmt.Errorf("%w: no connected_slaves from INFO", courier.ErrReply)
	}
	return strconv.Atoi(m[1])
}

// mostReplicas is the most replicas that a primary has had at any time, so that one which is cut off is still counted.
func (e *Engine) mostReplicas(primary string, n int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.replicas[primary] = max(e.replicas[primary], n)
	return e.replicas[primary]
}
