package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/redis/go-redis/v9"
)

// This file has the Transport's own connection, on which calls are sent in the goroutines of their callers. When the caller's context ends, or
// the Transport is closed, the connection is closed, which ends the read. go-redis does not watch a context while it reads, and gives no access
// to the connections of its pools. The connection is dialled once, in the background. If it is lost, a call that has not been sent is queued.

// A Transport opens its own connection after ownCalls calls within ownWithin that would have been sent on it, so that a process that seldom locks
// has none. When the connection was closed, the count begins anew, because each caller that gives up costs a connection, and leaves a call at a
// server that may be slow.
const (
	ownCalls  = 16
	ownWithin = 10 * time.Second
)

const (
	ownCheckTTL = 10 * time.Second // of the key by which a connection is checked
	ownPause    = time.Minute      // before the next connection, if one could not be made or leads to another server
)

// ErrInterrupted is the error of a call under way inline when its caller's context ended, or EndInline was called. Its Outcome is InDoubt.
var ErrInterrupted = errors.New("no answer before the wait ended")

// ErrPanicked is the error of a call during which a hook of the application panicked. Its Outcome is InDoubt.
var ErrPanicked = errors.New("a hook of the client has panicked")

// EndReceiver is notified when the context of an inline call ends.
type EndReceiver interface{ ContextEnded(context.Context) }

// ownConn is a connection of the Transport's own.
type ownConn struct {
	sender
	rdb    client.Conn              // its pool is this connection
	hooked client.Conn              // sends by rdb, with the application's hooks
	conn   atomic.Pointer[net.Conn] // nil until it is dialled
	lost   atomic.Bool              // it was dropped while not in use
	ctx    context.Context          // ends when it is interrupted
	cancel context.CancelFunc
	ending sync.WaitGroup // what runs when the context of the call under way ends
	hooks  bool           // the application's hooks have a command, and have not returned
}

// newOwnConn returns a connection that is not dialled yet; nil: there can be none for this client.
func (t *Transport) newOwnConn() *ownConn {
	o := &ownConn{}
	o.own = o
	o.ctx, o.cancel = context.WithCancel(context.Background())
	if o.rdb, o.hooked = t.rdb.Own(o.ctx, o.dialed, func() { o.lost.Store(true) }); o.rdb == nil {
		o.cancel()
		return nil
	}
	return o
}

func (o *ownConn) dialed(conn net.Conn) {
	o.conn.Store(&conn)
	if o.interrupted() {
		o.interrupt()
	}
}

// interrupt ends what is under way on the connection, which cannot be used any more. It does not block, though closing may, because TLS sends an
// alert first, or a Dialer of the application has made the connection.
func (o *ownConn) interrupt() {
	o.cancel()
	p := o.conn.Load()
	if p == nil {
		return
	}
	conn := *p
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.SetDeadline(time.Now().Add(-time.Second))
	go func() { _ = conn.Close() }() // go-redis may set another deadline
}

func (o *ownConn) interrupted() bool { return o.ctx.Err() != nil }

// process sends a command. If ctx ends meanwhile, it calls end and then interrupts the connection. Neither is under way when
// it returns.
func (o *ownConn) process(ctx context.Context, cmd redis.Cmder, end EndReceiver) {
	if ctx.Done() == nil {
		_ = o.hooked.Process(ctx, cmd)
		return
	}
	o.ending.Add(1)
	unregister := context.AfterFunc(ctx, func() {
		defer o.ending.Done()
		if end != nil {
			end.ContextEnded(ctx)
		}
		o.interrupt()
	})
	_ = o.hooked.Process(context.WithoutCancel(ctx), cmd)
	if unregister() {
		o.ending.Done()
	}
	o.ending.Wait()
}

// takeOwnLocked returns the connection for the use of one caller, or nil. After enough calls it makes one in the background.
func (q *nodeQueue) takeOwnLocked() *ownConn {
	if o := q.own; o != nil {
		if !q.ownFree {
			return nil
		}
		q.ownFree = false
		return o
	}
	now := time.Now()
	if q.ownUnusable || q.failing || now.Before(q.ownAgain) {
		return nil
	}
	if now.Sub(q.wantedSince) > ownWithin {
		q.wanted, q.wantedSince = 0, now
	}
	if q.wanted++; q.wanted < ownCalls {
		return nil
	}
	q.wanted = 0
	o := q.t.newOwnConn()
	if o == nil {
		q.ownUnusable = true
		return nil
	}
	q.own = o
	q.t.senders.Go(func() { q.connect(o) })
	return nil
}

// connect dials the connection, and checks that it leads to the same server as the pool, which a DialHook of the application may lead elsewhere.
// The Transport's own connection must be able to delete a key that was written by one of the pool.
func (q *nodeQueue) connect(o *ownConn) {
	written := make(chan error, 1)
	call := &Call{Key: q.t.ownKey, Mixed: true, Args: []any{"set", q.t.ownKey, 1, "px", ownCheckTTL.Milliseconds()}}
	call.Done = Func(func(call *Call) { written <- call.Err })
	call.enqueue()
	q.add(call)
	var err error
	select {
	case err = <-written:
	case <-o.ctx.Done():
		err = o.ctx.Err()
	}
	same := false
	if err == nil {
		found, err := o.rdb.Del(o.ctx, q.t.ownKey).Result()
		same = err == nil && found == 1
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if !same {
		q.ownAgain = time.Now().Add(ownPause)
	}
	q.returnOwnLocked(o, same)
}

// returnOwnLocked ends a use of the connection. It closes a connection that is not usable any more, in the background because that may block.
func (q *nodeQueue) returnOwnLocked(o *ownConn, usable bool) {
	if usable && !q.ownUnusable {
		q.ownFree = true
		return
	}
	q.own = nil
	o.cancel()
	q.t.senders.Go(func() { _ = o.rdb.Close() })
}

// endOwnLocked interrupts the use of the connection, and allows no other.
func (q *nodeQueue) endOwnLocked() {
	q.ownUnusable = true
	if o := q.own; o != nil {
		o.interrupt()
		if q.ownFree {
			q.ownFree = false
			q.returnOwnLocked(o, false)
		}
	}
}
