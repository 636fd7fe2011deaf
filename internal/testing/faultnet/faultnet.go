// Package faultnet is a network for tests that loses, cuts, delays and repeats what go-redis sends, on purpose. It
// wraps the connections of a client's Dialer, so it works on a real server and on an embedded one in a synctest
// bubble.
package faultnet

import (
	"bytes"
	"context"
	"io"
	"net"
	"regexp"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Dialer makes connections.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// TCP is the ordinary Dialer.
func TCP(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// Fate is what becomes of a command.
type Fate int

const (
	// CutReply closes the connection after the server has answered, so that the answer is lost.
	CutReply Fate = iota
	// SwallowReply loses the answer and all that come after it on that connection, which stays open, so that the client
	// waits.
	SwallowReply
	// LoseRequest loses the command and closes the connection.
	LoseRequest
	// TearReply lets the first half of what the server has answered through, and closes the connection.
	TearReply

	// Copy, added to another fate, keeps a copy of the command for Replay.
	Copy Fate = 1 << 4
)

// Net is a network. It is safe for concurrent use.
type Net struct {
	dial Dialer

	mu       sync.Mutex // guards what follows
	conns    map[*conn]struct{}
	rules    []*rule
	down     bool
	mute     bool
	delay    time.Duration
	replies  time.Duration // by which what is read is late
	watch    func(sent []byte)
	written  [][]byte // commands seen, while counting
	counting bool
	copies   [][]byte
	database []byte // the command by which connections choose their database, if they did
}

// selecting is that command.
var selecting = regexp.MustCompile(`\*2\r\n\$6\r\nselect\r\n\$\d+\r\n\d+\r\n`)

type rule struct {
	match []byte
	fate  Fate
	times int
}

// New returns a network over a dialer.
func New(dial Dialer) *Net { return &Net{dial: dial, conns: map[*conn]struct{}{}} }

// Dial is a Dialer.
func (n *Net) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	refused := &net.OpError{Op: "dial", Net: network, Err: io.ErrClosedPipe}
	n.mu.Lock()
	down := n.down
	n.mu.Unlock()
	if down {
		return nil, refused
	}
	inner, err := n.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, net: n}
	n.mu.Lock()
	down = n.down // meanwhile
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

// Options are those of a client on this network, which gives up an answer after timeout. New connections do not ask for
// notifications of maintenance: they would do so under a lock, and while goroutines wait for a lock the clock of a
// testing/synctest bubble stands still.
func (n *Net) Options(timeout time.Duration) *redis.Options {
	return &redis.Options{
		Addr: "127.0.0.1:1", Dialer: n.Dial, DialerRetries: 1, ReadTimeout: timeout,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Break lets the next commands that contain the text meet their fate. Case matters: go-redis writes lower case.
func (n *Net) Break(text string, times int, fate Fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = append(n.rules, &rule{[]byte(text), fate, times})
}

// Mend forgets all rules and brings the network up.
func (n *Net) Mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules, n.down, n.mute, n.delay, n.replies = nil, false, false, 0, 0
}

// Down cuts every connection and lets no new one through until Mend.
func (n *Net) Down() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	n.Cut()
}

// Mute loses everything that is sent from now on, and lets no new connection through; those that are there stay open.
func (n *Net) Mute() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down, n.mute = true, true
}

// Delay holds every write back for a while.
func (n *Net) Delay(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.delay = d
}

// DelayReplies holds everything back for a while that the server says.
func (n *Net) DelayReplies(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.replies = d
}

// Cut closes all connections that are open.
func (n *Net) Cut() { n.cut(func(*conn) bool { return true }) }

// CutSubscriptions closes the connections on which something was subscribed to.
func (n *Net) CutSubscriptions() { n.cut(func(c *conn) bool { return c.subscribed }) }

// DeafenSubscriptions lets nothing through any more on the connections on which something was subscribed to; they
// stay open.
func (n *Net) DeafenSubscriptions() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.subscribed {
			c.deaf = true
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

// Count starts counting commands anew.
func (n *Net) Count() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counting, n.written = true, nil
}

// Watch calls a function with everything that is sent from now on, before it leaves.
func (n *Net) Watch(f func(sent []byte)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watch = f
}

// Scripts is how many scripts were sent since Count.
func (n *Net) Scripts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	sum := 0
	for _, b := range n.written {
		sum += bytes.Count(b, []byte("$7\r\nevalsha\r\n")) + bytes.Count(b, []byte("$4\r\neval\r\n"))
	}
	return sum
}

// Replay sends the copies that were kept, each on a connection of its own, and waits for the answers.
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
			for k := 0; k == 0; { // a pipe hands on empty writes as well
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

// fate is what is to become of a write.
func (n *Net) fate(c *conn, b []byte) (f Fate, hit bool, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if bytes.Contains(b, []byte("subscribe\r\n")) {
		c.subscribed = true
	}
	if found := selecting.Find(b); found != nil {
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
		if r.fate&Copy != 0 {
			n.copies = append(n.copies, bytes.Clone(b))
		}
		return r.fate &^ Copy, true, n.delay
	}
	return 0, false, n.delay
}

// conn is one connection of the network.
type conn struct {
	net.Conn
	net        *Net
	subscribed bool // guarded by net.mu, as is deaf
	deaf       bool

	mu   sync.Mutex
	lose *Fate // what becomes of the next answer
}

func (c *conn) Write(b []byte) (int, error) {
	c.net.mu.Lock()
	mute, watch := c.net.mute, c.net.watch
	c.net.mu.Unlock()
	if watch != nil {
		watch(b)
	}
	if mute {
		return len(b), nil
	}
	fate, hit, delay := c.net.fate(c, b)
	if delay > 0 {
		time.Sleep(delay)
	}
	if hit {
		switch fate {
		case LoseRequest:
			_ = c.Close()
			return len(b), nil
		case CutReply, SwallowReply, TearReply:
			c.mu.Lock()
			c.lose = &fate
			c.mu.Unlock()
		}
	}
	return c.Conn.Write(b)
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		k, err := c.Conn.Read(b)
		if err != nil {
			return k, err
		}
		c.net.mu.Lock()
		deaf, late := c.deaf, c.net.replies
		c.net.mu.Unlock()
		if late > 0 {
			time.Sleep(late)
		}
		c.mu.Lock()
		lose := c.lose
		c.lose = nil
		c.mu.Unlock()
		switch {
		case deaf:
		case lose == nil:
			return k, nil
		case *lose == SwallowReply:
			c.net.mu.Lock()
			c.deaf = true // else the rest of a pipeline's answers would come, one command too early
			c.net.mu.Unlock()
		case *lose == CutReply:
			_ = c.Close()
			return 0, io.EOF
		case *lose == TearReply:
			_ = c.Close()
			return k / 2, nil
		}
	}
}

func (c *conn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return c.Conn.Close()
}
