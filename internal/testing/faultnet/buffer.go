package faultnet

import (
	"context"
	"net"
	"sync"
	"time"
)

// Buffer gives the connections of a dialer a write buffer, as TCP has and net.Pipe has not. Without it, a client
// that writes a long pipeline and a server that replies to its first commands block each other.
func Buffer(dial Dialer) Dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		inner, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &buffered{Conn: inner}
		c.more.L = &c.mu
		go c.pump()
		return c, nil
	}
}

type buffered struct {
	net.Conn

	mu      sync.Mutex // guards what follows
	more    sync.Cond  // signaled when something was written and at the end
	pending []byte
	err     error // why nothing can be written any more
}

func (c *buffered) pump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil {
		if len(c.pending) == 0 {
			c.more.Wait()
			continue
		}
		b := c.pending
		c.pending = nil
		c.mu.Unlock()
		_, err := c.Conn.Write(b)
		c.mu.Lock()
		if c.err == nil {
			c.err = err
		}
	}
}

func (c *buffered) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.pending = append(c.pending, b...)
	c.more.Signal()
	return len(b), nil
}

func (c *buffered) Close() error {
	c.mu.Lock()
	if c.err == nil {
		c.err = net.ErrClosed
	}
	c.more.Signal()
	c.mu.Unlock()
	return c.Conn.Close()
}

func (c *buffered) SetDeadline(t time.Time) error      { return c.Conn.SetReadDeadline(t) }
func (c *buffered) SetWriteDeadline(t time.Time) error { return nil }
