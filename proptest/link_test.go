package proptest

import (
	"context"
	"io"
	"math/rand"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
)

// link is the connection of one process to the server: a faultnet.Net that can also be frozen, as for a process that
// is frozen. Then nothing passes in either direction and the server sees open connections: what it sends is kept,
// and what the process tries to send or close is done on Thaw. Requests that were given up by then are not sent.
//
// A frozen process that waits for a reply either times out, although it does not run, or, if its reads are frozen,
// finds the reply when it is thawed, however late, or a timeout.
//
// Each message takes a different time, so connections overtake each other. Data that was under way when a connection
// was closed still arrives.
type link struct {
	*faultnet.Net
	lag  time.Duration // the longest that something takes
	seed int64

	mu                sync.Mutex    // guards the fields below, and the state of the connections
	outDelay, inDelay time.Duration // additional maximum latency, for a while
	last              time.Time     // until when data is under way
	frozen            bool
	readsFrozen       bool // reads are frozen, too
	refuses           bool
	dead              bool
	conns             map[*conn]struct{}
	dialled           int64
}

func newLink(dial faultnet.Dialer, lag time.Duration, seed int64) *link {
	return &link{Net: faultnet.New(dial), lag: lag, seed: seed, conns: map[*conn]struct{}{}}
}

// Dial is a faultnet.Dialer.
func (l *link) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	l.mu.Lock()
	closed := l.frozen || l.refuses
	l.mu.Unlock()
	if closed {
		return nil, &net.OpError{Op: "dial", Net: network, Err: io.ErrClosedPipe}
	}
	inner, err := l.Net.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, link: l}
	c.changed.L = &l.mu
	l.mu.Lock()
	l.dialled++
	c.random = rand.New(rand.NewSource(l.seed<<32 + l.dialled))
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	go c.pump()
	return c, nil
}

// Refuse refuses new connections, or allows them again.
func (l *link) Refuse(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuses = yes
}

// Kill ends all traffic permanently.
func (l *link) Kill() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
	l.Down()
}

// Slow adds up to this latency to requests and replies.
func (l *link) Slow(out, in time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outDelay, l.inDelay = out, in
}

// tail returns for how long data that was sent until now is under way.
func (l *link) tail() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.last), 0)
}

// Freeze stops all traffic. If reads are frozen, they do not return before Thaw.
func (l *link) Freeze(still bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen, l.readsFrozen = true, still
}

// Thaw resumes the traffic.
func (l *link) Thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	overdue := l.readsFrozen
	l.frozen, l.readsFrozen = false, false
	for c := range l.conns {
		if overdue && !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
			c.overdue = c.random.Intn(3) == 0
		}
		if c.closed {
			_ = c.Conn.Close()
			delete(l.conns, c)
			continue
		}
		if len(c.out) > 0 && !l.dead {
			_, _ = c.Conn.Write(c.out)
			c.out = nil
		}
		c.changed.Broadcast()
	}
}

// recover ends all faults but Kill.
func (l *link) recover() {
	l.Refuse(false)
	l.Restore()
	l.Slow(0, 0)
	l.Thaw()
}

// conn is a connection of a link. It reads ahead, so that the server never blocks on the process.
type conn struct {
	net.Conn
	link *link

	// Guarded by link.mu.
	changed  sync.Cond // data arrived, or the state changed
	in       []byte    // read from the server, not yet by the process
	inErr    error     // why no more data follows
	out      []byte    // written while frozen
	random   *rand.Rand
	sent     time.Time // when the last write arrives
	came     time.Time // and the last read
	closed   bool
	deadline time.Time
	overdue  bool // the deadline passed before the data was read
	timer    *time.Timer
}

func (c *conn) pump() {
	b := make([]byte, 4096)
	for {
		k, err := c.Conn.Read(b)
		got := slices.Clone(b[:k])
		c.link.mu.Lock()
		c.delayLocked(&c.came, c.link.inDelay, func() {
			c.in = append(c.in, got...)
			c.inErr = err
			c.changed.Broadcast()
		})
		c.link.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// delayLocked runs do after a delay, and after everything that was delayed before. It is called, and calls do, with
// the mutex held. The first exchange on a connection is not delayed: the client of a subscription holds a mutex
// during it for which others wait, and while goroutines wait for a mutex the clock of a bubble does not advance.
func (c *conn) delayLocked(last *time.Time, slow time.Duration, do func()) {
	longest, now := c.link.lag+slow, time.Now()
	if last.IsZero() || longest == 0 && !last.After(now) {
		*last = now
		do()
		return
	}
	at := now
	if longest > 0 {
		at = now.Add(time.Duration(c.random.Int63n(int64(longest))))
	}
	if !at.After(*last) {
		at = last.Add(time.Microsecond)
	}
	*last = at
	if at.After(c.link.last) {
		c.link.last = at
	}
	time.AfterFunc(time.Until(at), func() {
		c.link.mu.Lock()
		defer c.link.mu.Unlock()
		do()
	})
}

func (c *conn) Read(b []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.overdue && !c.link.frozen:
			return 0, os.ErrDeadlineExceeded
		case !c.link.frozen && len(c.in) > 0:
			k := copy(b, c.in)
			c.in = c.in[k:]
			return k, nil
		case !c.link.frozen && c.inErr != nil:
			return 0, c.inErr
		case c.link.readsFrozen: // frozen
		case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return 0, os.ErrDeadlineExceeded
		}
		c.changed.Wait()
	}
}

func (c *conn) Write(b []byte) (int, error) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	switch {
	case c.closed, c.link.dead:
		return 0, net.ErrClosed
	case c.link.frozen:
		c.out = append(c.out, b...)
		return len(b), nil
	}
	late := slices.Clone(b)
	c.delayLocked(&c.sent, c.link.outDelay, func() { _, _ = c.Conn.Write(late) })
	return len(b), nil
}

func (c *conn) Close() error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.changed.Broadcast()
	if c.timer != nil {
		c.timer.Stop()
	}
	if c.link.frozen {
		return nil // Thaw does it
	}
	delete(c.link.conns, c)
	c.delayLocked(&c.sent, c.link.outDelay, func() { _ = c.Conn.Close() })
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.overdue = false
	if c.deadline = t; c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), func() {
			c.link.mu.Lock()
			defer c.link.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	return nil
}

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
