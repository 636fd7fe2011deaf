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
	frozen     chan struct{} // closed when the freeze ends; nil if the network is not frozen
	watch      func(sent []byte)
	written    [][]byte // commands sent since ResetCount
	counting   bool
	copies     [][]byte
	database   []byte // the SELECT command of the connections, if there was one
}

// selectCommand matches a SELECT command.
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

// Dial implements Dialer.
func (n *Net) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	refused := &net.OpError{Op: "dial", Net: network, Err: io.ErrClosedPipe}
	n.mu.Lock()
	down := n.down || n.frozen != nil
	n.mu.Unlock()
	if down {
		return nil, refused
	}
	inner, err := n.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, net: n, closed: make(chan struct{})}
	n.mu.Lock()
	down = n.down || n.frozen != nil // it may have changed while dialing
	if !down {
		n.conns[c] = struct{}{}
	}
	n.mu.Unlock()
	if down {
		_ = inner.Close()
		return nil, refused
	}
	return c, nil
}

// Options returns the options of a client on this network that waits timeout for a reply. Maintenance
// notifications are disabled: a new connection would request them while it holds a lock, and while goroutines wait
// for a lock the clock of a testing/synctest bubble does not advance.
func (n *Net) Options(timeout time.Duration) *redis.Options {
	return &redis.Options{
		Addr: "127.0.0.1:1", Dialer: n.Dial, DialerRetries: 1, ReadTimeout: timeout,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Break applies a fault to the next commands that contain text, the given number of times. Case matters: go-redis
// writes lower case.
func (n *Net) Break(text string, times int, fault Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = append(n.rules, &rule{[]byte(text), fault, times})
}

// Restore removes all faults.
func (n *Net) Restore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules, n.down, n.blackhole, n.delay, n.replyDelay, n.noMessages = nil, false, false, 0, 0, false
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
func (n *Net) LoseMessages() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noMessages = true
}

// Down cuts every connection and refuses new ones until Restore.
func (n *Net) Down() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	n.Cut()
}

// Blackhole discards everything that is sent from now on and refuses new connections, until Restore. Open
// connections stay open.
func (n *Net) Blackhole() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down, n.blackhole = true, true
}

// Delay delays every write by d.
func (n *Net) Delay(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = d
}

// DelayReplies delays everything that the server sends by d, except during the handshake of a connection: go-redis holds a
// mutex meanwhile, and while a goroutine waits for a mutex the clock of a bubble does not advance.
func (n *Net) DelayReplies(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replyDelay = d
}

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
func (n *Net) ResetCount() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counting, n.written = true, nil
}

// Watch calls f with everything that is sent from now on, before it is sent.
func (n *Net) Watch(f func(sent []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watch = f
}

// Scripts returns the number of scripts sent since ResetCount.
func (n *Net) Scripts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := 0
	for _, b := range n.written {
		sum += bytes.Count(b, []byte("$7\r\nevalsha\r\n")) + bytes.Count(b, []byte("$4\r\neval\r\n"))
	}
	return sum
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

// conn is a connection of the network.
type conn struct {
	net.Conn
	net         *Net
	subscribed  bool // guarded by net.mu, as is dropReplies
	dropReplies bool
	handshake   bool   // what was written last is part of the handshake; guarded by net.mu
	held        []byte // written while the network is frozen; guarded by net.mu

	closing sync.Once
	closed  chan struct{} // closed by Close

	mu           sync.Mutex
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
	if delay > 0 {
		time.Sleep(delay)
	}
	if hit {
		switch fault {
		case LoseRequest:
			_ = c.Close()
			return len(b), nil
		case CutReply, SwallowReply, TruncateReply:
			c.mu.Lock()
			c.replyFault = &fault
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

// hold keeps what is written while the network is frozen, and reports whether it is.
func (c *conn) hold(b []byte) bool {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	if c.net.frozen != nil {
		c.held = append(c.held, b...)
	}
	return c.net.frozen != nil
}

// awaitThaw waits until the network is not frozen. It returns an error if the deadline of the read passes before, or if the
// connection is closed.
func (c *conn) awaitThaw() error {
	for {
		c.net.mu.Lock()
		frozen := c.net.frozen
		c.net.mu.Unlock()
		if frozen == nil {
			return nil
		}
		c.mu.Lock()
		deadline := c.readDeadline
		c.mu.Unlock()
		var passed <-chan time.Time
		if !deadline.IsZero() {
			passed = time.After(time.Until(deadline))
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
func (c *conn) readLate(b []byte) (int, error) {
	c.mu.Lock()
	late := len(c.late) > 0
	c.mu.Unlock()
	if !late {
		return 0, nil
	}
	if err := c.awaitThaw(); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := copy(b, c.late)
	c.late = c.late[k:]
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
			c.mu.Lock()
			c.late = append(c.late, b[:k]...)
			c.mu.Unlock()
			return 0, err
		}
		c.net.mu.Lock()
		drop, delay := c.dropReplies, c.net.replyDelay
		if c.handshake {
			delay = 0
		}
		drop = drop || c.net.noMessages && c.subscribed && messages.Match(b[:k])
		c.net.mu.Unlock()
		if delay > 0 {
			time.Sleep(delay)
		}
		c.mu.Lock()
		fault := c.replyFault
		c.replyFault = nil
		c.mu.Unlock()
		switch {
		case drop:
		case fault == nil:
			return k, nil
		case *fault == SwallowReply:
			c.net.mu.Lock()
			c.dropReplies = true // otherwise later replies of the pipeline would be taken for those of the commands before
			c.net.mu.Unlock()
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
	c.setReadDeadline(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.setReadDeadline(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) setReadDeadline(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readDeadline = t
}

func (c *conn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
