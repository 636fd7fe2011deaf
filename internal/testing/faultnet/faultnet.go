// Package faultnet is a network for tests that injects faults: it loses, cuts, delays and repeats what go-redis
// sends. It wraps the connections of a client's Dialer, so it works with a real server and with an embedded one in
// a synctest bubble.
package faultnet

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Dialer opens connections.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// TCP is a Dialer for plain TCP.
func TCP(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// Fault is what happens to a command.
type Fault int

const (
	// CutReply lets the server run the command, loses its reply, and closes the connection.
	CutReply Fault = iota
	// SwallowReply loses the reply and all later replies on that connection, which stays open, so the client times
	// out.
	SwallowReply
	// LoseRequest loses the command and closes the connection.
	LoseRequest
	// TruncateReply delivers the first half of the reply and closes the connection.
	TruncateReply

	// Copy, added to another fault, keeps a copy of the command for Replay.
	Copy Fault = 1 << 4
)

// Net is a network. It is safe for concurrent use.
type Net struct {
	dial Dialer

	mu         sync.Mutex // guards the fields below
	conns      map[*conn]struct{}
	rules      []*rule
	down       bool
	blackhole  bool
	delay      time.Duration
	replyDelay time.Duration // delay of everything that is read
	noMessages bool          // messages to subscribers are lost
	late       time.Duration // delay of what subscribers read
	frozen     chan struct{} // closed when the freeze ends; nil if the network is not frozen
	watch      func(sent []byte)
	written    [][]byte // commands sent since ResetCount
	counting   bool
	copies     [][]byte
	database   []byte // the SELECT command of the connections, if there was one
}

var selectCommand = regexp.MustCompile(`\*2\r\n\$6\r\nselect\r\n\$\d+\r\n\d+\r\n`)

// handshake matches the commands that go-redis sends on a new connection.
var handshake = regexp.MustCompile(`^\*\d+\r\n\$\d+\r\n(hello|client|auth|select|readonly)\r\n`)

// messages matches what a server sends to a subscriber of a channel.
var messages = regexp.MustCompile(`[>*]\d\r\n\$(7\r\nmessage|8\r\nsmessage)\r\n`)

type rule struct {
	match []byte
	fault Fault
	times int
}

// New returns a network over a dialer.
func New(dial Dialer) *Net { return &Net{dial: dial, conns: map[*conn]struct{}{}} }

func (n *Net) locked(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *Net) isDown() (down bool) {
	n.locked(func() { down = n.down || n.frozen != nil })
	return down
}

// Dial implements Dialer.
func (n *Net) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	refused := &net.OpError{Op: "dial", Net: network, Err: io.ErrClosedPipe}
	if n.isDown() {
		return nil, refused
	}
	inner, err := n.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, net: n, closed: make(chan struct{})}
	n.locked(func() { n.conns[c] = struct{}{} })
	if n.isDown() { // it may have changed while dialing
		_ = c.Close()
		return nil, refused
	}
	return c, nil
}

// Options returns the options of a client on a network that waits timeout for a reply. Maintenance notifications are disabled: a
// new connection would request them while it holds a lock, and while goroutines wait for a lock the clock of a testing/synctest
// bubble does not advance. It is not a method of Net, because packages that use a Net would then pay for the type of clients (see
// package client).
func Options(n *Net, timeout time.Duration) *redis.Options {
	return &redis.Options{
		Addr: "127.0.0.1:1", Dialer: n.Dial, DialerRetries: 1, ReadTimeout: timeout,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Break applies a fault to the next commands that contain text, the given number of times. Case matters: go-redis
// writes lower case.
func (n *Net) Break(text string, times int, fault Fault) {
	n.locked(func() { n.rules = append(n.rules, &rule{[]byte(text), fault, times}) })
}

// Restore removes all faults.
func (n *Net) Restore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules, n.down, n.blackhole, n.delay, n.replyDelay, n.noMessages, n.late = nil, false, false, 0, 0, false, 0
	if n.frozen == nil {
		return
	}
	close(n.frozen)
	n.frozen = nil
	for c := range n.conns {
		if len(c.held) > 0 {
			held := c.held
			c.held = nil
			go func() { _, _ = c.Conn.Write(held) }()
		}
	}
}

// Freeze holds back what is sent and what arrives, and refuses new connections, until Restore: the process behind the
// network does nothing for a while. Writes return at once, and a read ends by its deadline.
func (n *Net) Freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen == nil {
		n.frozen = make(chan struct{})
	}
}

// LoseMessages discards messages to subscribers until Restore. Their connections and all other replies are not affected.
func (n *Net) LoseMessages() { n.locked(func() { n.noMessages = true }) }

// Down cuts every connection and refuses new ones until Restore.
func (n *Net) Down() {
	n.locked(func() { n.down = true })
	n.Cut()
}

// Blackhole discards everything that is sent from now on and refuses new connections, until Restore. Open
// connections stay open.
func (n *Net) Blackhole() { n.locked(func() { n.down, n.blackhole = true, true }) }

// Delay delays every write by d.
func (n *Net) Delay(d time.Duration) { n.locked(func() { n.delay = d }) }

// DelayReplies delays everything that the server sends by d, except during the handshake of a connection: go-redis holds a
// mutex meanwhile, and while a goroutine waits for a mutex the clock of a bubble does not advance.
func (n *Net) DelayReplies(d time.Duration) { n.locked(func() { n.replyDelay = d }) }

// DelaySubscriptions delays, by d and instead of DelayReplies, what the server sends on connections that have subscribed to a channel.
func (n *Net) DelaySubscriptions(d time.Duration) { n.locked(func() { n.late = d }) }

// Cut closes all open connections.
func (n *Net) Cut() { n.cut(func(*conn) bool { return true }) }

// CutSubscriptions closes the connections that have subscribed to a channel.
func (n *Net) CutSubscriptions() { n.cut(func(c *conn) bool { return c.subscribed }) }

// BlackholeSubscriptions discards everything that arrives on the connections that have subscribed to a channel.
// They stay open.
func (n *Net) BlackholeSubscriptions() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.subscribed {
			c.dropReplies = true
		}
	}
}

func (n *Net) cut(which func(*conn) bool) {
	n.mu.Lock()
	var list []*conn
	for c := range n.conns {
		if which(c) {
			list = append(list, c)
		}
	}
	n.mu.Unlock()
	for _, c := range list {
		_ = c.Close()
	}
}

// ResetCount starts a new count of commands.
func (n *Net) ResetCount() { n.locked(func() { n.counting, n.written = true, nil }) }

// Watch calls f with everything that is sent from now on, before it is sent.
func (n *Net) Watch(f func(sent []byte)) { n.locked(func() { n.watch = f }) }

// Scripts returns the number of scripts sent since ResetCount.
func (n *Net) Scripts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := bytes.Join(n.written, nil)
	return bytes.Count(all, []byte("$7\r\nevalsha\r\n")) + bytes.Count(all, []byte("$4\r\neval\r\n"))
}

// Replay sends each copied command on a connection of its own and waits for the replies.
func (n *Net) Replay() error {
	n.mu.Lock()
	copies, database := n.copies, n.database
	n.copies = nil
	n.mu.Unlock()
	for _, b := range copies {
		c, err := n.dial(context.Background(), "tcp", n.anyAddr())
		if err != nil {
			return err
		}
		for _, b := range [][]byte{database, b} {
			if len(b) == 0 {
				continue
			}
			if _, err := c.Write(b); err != nil {
				return err
			}
			for k := 0; k == 0; { // a pipe passes on empty writes as well
				if k, err = c.Read(make([]byte, 4096)); err != nil {
					return err
				}
			}
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (n *Net) anyAddr() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		return c.RemoteAddr().String()
	}
	return ""
}

// faultFor returns the fault for a write, and its delay.
func (n *Net) faultFor(c *conn, b []byte) (f Fault, hit bool, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	c.handshake = handshake.Match(b)
	if bytes.Contains(b, []byte("subscribe\r\n")) {
		c.subscribed = true
	}
	if found := selectCommand.Find(b); found != nil {
		n.database = bytes.Clone(found)
	}
	if n.counting {
		n.written = append(n.written, bytes.Clone(b))
	}
	for i, r := range n.rules {
		if !bytes.Contains(b, r.match) {
			continue
		}
		if r.times--; r.times <= 0 {
			n.rules = append(n.rules[:i:i], n.rules[i+1:]...)
		}
		if r.fault&Copy != 0 {
			n.copies = append(n.copies, bytes.Clone(b))
		}
		return r.fault &^ Copy, true, n.delay
	}
	return 0, false, n.delay
}

type conn struct {
	net.Conn
	net     *Net
	closing sync.Once
	closed  chan struct{} // closed by Close

	// Guarded by net.mu:
	subscribed   bool
	written      time.Time // when the last write is delivered, if that is delayed
	dropReplies  bool
	handshake    bool      // what was written last is part of the handshake
	held         []byte    // written while the network is frozen
	replyFault   *Fault    // of the next reply
	readDeadline time.Time // as the user has set it
	late         []byte    // read while the network was frozen, and not returned yet
}

func (c *conn) Write(b []byte) (int, error) {
	c.net.mu.Lock()
	blackhole, watch := c.net.blackhole, c.net.watch
	c.net.mu.Unlock()
	if watch != nil {
		watch(b)
	}
	if blackhole || c.hold(b) {
		return len(b), nil
	}
	fault, hit, delay := c.net.faultFor(c, b)
	deliver := func() (int, error) {
		switch {
		case hit && fault == LoseRequest:
			_ = c.Close()
			return len(b), nil
		case hit:
			c.net.locked(func() { c.replyFault = &fault })
		}
		return c.Conn.Write(b)
	}
	if at := c.due(delay); !at.IsZero() {
		b = bytes.Clone(b)
		time.AfterFunc(time.Until(at), func() { _, _ = deliver() })
		return len(b), nil
	}
	time.Sleep(delay)
	return deliver()
}

// due returns when a delayed write on a subscription is to be delivered, after those before it; zero: the writer itself waits. go-redis writes
// on a subscription with a mutex locked that it also locks to receive, and while a goroutine waits for a mutex the clock of a bubble does
// not advance.
func (c *conn) due(delay time.Duration) time.Time {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	now := time.Now()
	if !c.subscribed || delay == 0 && !c.written.After(now) {
		return time.Time{}
	}
	if at := now.Add(delay); at.After(c.written) {
		c.written = at
	} else {
		c.written = c.written.Add(time.Microsecond)
	}
	return c.written
}

// hold keeps what is written while the network is frozen, and reports whether it is.
func (c *conn) hold(b []byte) bool {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.net.frozen == nil {
		return false
	}
	c.held = append(c.held, b...)
	return true
}

// awaitThaw waits until the network is not frozen. It returns an error if the deadline of the read passes before, or if the
// connection is closed.
func (c *conn) awaitThaw() error {
	for {
		var frozen chan struct{}
		var passed <-chan time.Time
		c.net.locked(func() {
			if frozen = c.net.frozen; frozen != nil && !c.readDeadline.IsZero() {
				passed = time.After(time.Until(c.readDeadline))
			}
		})
		if frozen == nil {
			return nil
		}
		select {
		case <-frozen:
		case <-passed:
			return os.ErrDeadlineExceeded
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

// readLate returns what arrived before an earlier read ended by its deadline.
func (c *conn) readLate(b []byte) (k int, err error) {
	late := false
	c.net.locked(func() { late = len(c.late) > 0 })
	if !late {
		return 0, nil
	}
	if err := c.awaitThaw(); err != nil {
		return 0, err
	}
	c.net.locked(func() {
		k = copy(b, c.late)
		c.late = c.late[k:]
	})
	return k, nil
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		if k, err := c.readLate(b); k > 0 || err != nil {
			return k, err
		}
		k, err := c.Conn.Read(b)
		if err != nil {
			return k, err
		}
		if err := c.awaitThaw(); err != nil {
			c.net.locked(func() { c.late = append(c.late, b[:k]...) })
			return 0, err
		}
		var drop bool
		var delay time.Duration
		c.net.locked(func() {
			drop = c.dropReplies || c.net.noMessages && c.subscribed && messages.Match(b[:k])
			switch {
			case c.subscribed && c.net.late > 0:
				delay = c.net.late
			case !c.handshake:
				delay = c.net.replyDelay
			}
		})
		time.Sleep(delay)
		var fault *Fault
		c.net.locked(func() {
			fault, c.replyFault = c.replyFault, nil
			if !drop && fault != nil && *fault == SwallowReply {
				c.dropReplies = true // otherwise later replies of the pipeline would be taken for those of the commands before
			}
		})
		switch {
		case drop:
		case fault == nil:
			return k, nil
		case *fault == CutReply:
			_ = c.Close()
			return 0, io.EOF
		case *fault == TruncateReply:
			_ = c.Close()
			return k / 2, nil
		}
	}
}

func (c *conn) SetDeadline(t time.Time) error {
	c.net.locked(func() { c.readDeadline = t })
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.net.locked(func() { c.readDeadline = t })
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) Close() error {
	c.net.locked(func() { delete(c.net.conns, c) })
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
