package faultnet

import (
	"context"
	"net"
	"os"
	"sync"
	"time"
)

// Buffer gives the connections of a dialer buffers in both directions, as TCP has and net.Pipe has not. Without them, a client that writes a
// long pipeline and a server that replies to its first commands block each other; and a server that publishes to a client which reads
// slowly blocks all others, with a mutex locked, so that the clock of a bubble does not advance.
func Buffer(dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		inner, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &buffered{Conn: inner}
		c.written.L, c.read.L = &c.mu, &c.mu
		go c.send()
		go c.receive()
		return c, nil
	}
}

type buffered struct {
	net.Conn

	mu       sync.Mutex // guards what follows
	written  sync.Cond  // signaled when there is something in out, and at the end
	read     sync.Cond  // signaled when there is something in in, at the deadline, and at the end
	out, in  []byte
	outErr   error // why nothing can be written any more
	inErr    error // why nothing follows what is in in
	deadline time.Time
	timer    *time.Timer // signals the deadline
}

func (c *buffered) send() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.outErr == nil {
		if len(c.out) == 0 {
			c.written.Wait()
			continue
		}
		b := c.out
		c.out = nil
		c.mu.Unlock()
		_, err := c.Conn.Write(b)
		c.mu.Lock()
		if c.outErr == nil {
			c.outErr = err
		}
	}
}

func (c *buffered) receive() {
	b := make([]byte, 4096)
	for {
		k, err := c.Conn.Read(b)
		c.mu.Lock()
		c.in = append(c.in, b[:k]...)
		if c.inErr == nil {
			c.inErr = err
		}
		c.read.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *buffered) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outErr != nil {
		return 0, c.outErr
	}
	c.out = append(c.out, b...)
	c.written.Signal()
	return len(b), nil
}

func (c *buffered) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(c.in) > 0:
			k := copy(b, c.in)
			c.in = c.in[k:]
			return k, nil
		case c.inErr != nil:
			return 0, c.inErr
		}
		c.read.Wait()
	}
}

func (c *buffered) Close() error {
	c.mu.Lock()
	if c.outErr == nil {
		c.outErr = net.ErrClosed
	}
	c.in, c.inErr = nil, net.ErrClosed
	if c.timer != nil {
		c.timer.Stop()
	}
	c.written.Signal()
	c.read.Broadcast()
	c.mu.Unlock()
	return c.Conn.Close()
}

func (c *buffered) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	switch {
	case t.IsZero():
	case c.timer == nil:
		c.timer = time.AfterFunc(time.Until(t), c.read.Broadcast)
	default:
		c.timer.Reset(time.Until(t))
	}
	c.read.Broadcast()
	return nil
}

func (c *buffered) SetDeadline(t time.Time) error      { return c.SetReadDeadline(t) }
func (c *buffered) SetWriteDeadline(t time.Time) error { return nil }
