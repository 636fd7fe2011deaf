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

// link is the way of one process to the server: a faultnet.Net that can also stand still, as it does for a process
// that is frozen. Then nothing goes through in either direction and the server sees open connections: what it sends is
// kept for the process, and what the process tries to send or to close meanwhile is done when it is thawed. Of what it
// has given up by then nothing is sent.
//
// A process that is frozen and waits for an answer either gives it up when its time is over, though it does not run, or, if
// its reads stand still, finds the answer when it goes on, however late, or its time over as well.
//
// What is sent takes a while, each time another one, so that connections overtake each other. What was under way when a
// connection was closed arrives all the same.
type link struct {
	*faultnet.Net
	lag  time.Duration // the longest that something takes
	seed int64

	mu      sync.Mutex    // guards what follows, and the state of the connections
	out, in time.Duration // the longest that something takes besides, for a while
	last    time.Time     // until when what was sent or told is under way
	frozen  bool
	still   bool // and reads stand still
	refuses bool
	dead    bool
	conns   map[*conn]struct{}
	dialled int64
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

// Refuse lets no new connection through, or lets them through again.
func (l *link) Refuse(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuses = yes
}

// Kill ends all traffic for good.
func (l *link) Kill() {
	l.mu.Lock()
	l.dead = true
	l.mu.Unlock()
	l.Down()
}

// Slow lets what is sent and what is told take up to so much longer.
func (l *link) Slow(out, in time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out, l.in = out, in
}

// tail is for how long something will be under way that was sent or told until now.
func (l *link) tail() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Until(l.last), 0)
}

// Freeze stops all traffic. If reads stand still, they do not end before Thaw.
func (l *link) Freeze(still bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen, l.still = true, still
}

// Thaw lets the traffic go on.
func (l *link) Thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	overdue := l.still
	l.frozen, l.still = false, false
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

// conn is one connection of a link. It reads ahead, so that the server never waits for the process to read.
type conn struct {
	net.Conn
	link *link

	// Guarded by link.mu.
	changed  sync.Cond // something came, or the state is another
	in       []byte    // read and not yet taken
	inErr    error     // why nothing more will come
	out      []byte    // written while frozen
	random   *rand.Rand
	sent     time.Time // when the last of what was written arrives
	came     time.Time // and of what was read
	closed   bool
	deadline time.Time
	overdue  bool // the deadline has come before what there is to read
	alarm    *time.Timer
}

func (c *conn) pump() {
	b := make([]byte, 4096)
	for {
		k, err := c.Conn.Read(b)
		got := slices.Clone(b[:k])
		c.link.mu.Lock()
		c.delayLocked(&c.came, c.link.in, func() {
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

// delayLocked does something after what was to be done last, at the end of a while. It is called and does it with the
// lock. The first exchange on a connection takes no time: a subscription's client holds a lock during it for which others
// wait, and while goroutines wait for a lock the clock of a bubble stands still.
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
		case c.link.still: // it does not run
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
	c.delayLocked(&c.sent, c.link.out, func() { _, _ = c.Conn.Write(late) })
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
	if c.alarm != nil {
		c.alarm.Stop()
	}
	if c.link.frozen {
		return nil // Thaw does it
	}
	delete(c.link.conns, c)
	c.delayLocked(&c.sent, c.link.out, func() { _ = c.Conn.Close() })
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.overdue = false
	if c.deadline = t; c.alarm != nil {
		c.alarm.Stop()
		c.alarm = nil
	}
	if !t.IsZero() {
		c.alarm = time.AfterFunc(time.Until(t), func() {
			c.link.mu.Lock()
			defer c.link.mu.Unlock()
			c.changed.Broadcast()
		})
	}
	return nil
}

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
