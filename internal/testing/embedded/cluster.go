package embedded

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const slots = 16384

// Cluster is an embedded server that looks like a Redis Cluster of several nodes: each connection is to one of them, which refers to the
// others for the slots that it does not have. It has the commands of sharded channels, which the embedded server has not.
type Cluster struct {
	*Server
	nodes int

	mu          sync.Mutex                       // guards what follows
	moved       map[int]int                      // the nodes of slots that were moved
	subscribers map[string]map[*server.Peer]bool // by channel
}

// RunCluster is Run for a Cluster of that many nodes.
func RunCluster(t *testing.T, nodes int, test func(c *Cluster)) {
	t.Helper()
	Run(t, func(s *Server) {
		c := &Cluster{Server: s, nodes: nodes, moved: map[int]int{}, subscribers: map[string]map[*server.Peer]bool{}}
		test(c)
	})
}

// Dial connects to the node with that address. It is a faultnet.Dialer.
func (c *Cluster) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := c.Server.Dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.Mini.Server().SetPreHook(c.handle) // there is no Server before the first connection
	// The name of a connection says which node it is to.
	if _, err = fmt.Fprintf(conn, "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$%d\r\n%s\r\n", len(addr), addr); err == nil {
		_, err = io.ReadFull(conn, make([]byte, len("+OK\r\n")))
	}
	return conn, err
}

// Network returns a new network with the Cluster behind it.
func (c *Cluster) Network() *faultnet.Net { return faultnet.New(faultnet.Buffer(c.Dial)) }

// Client returns a client on a network with the Cluster behind it. The test closes it.
func (c *Cluster) Client(n *faultnet.Net) *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{
		Dialer: n.Dial, DialerRetries: 1, ClusterSlots: c.slotMap,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// address is that of a node. Of a loopback address, go-redis would replace the host.
func address(node int) string { return fmt.Sprintf("10.0.0.%d:6379", node+1) }

func (c *Cluster) nodeLocked(slot int) int {
	if node, moved := c.moved[slot]; moved {
		return node
	}
	return slot * c.nodes / slots
}

// slotMap is what CLUSTER SLOTS says.
func (c *Cluster) slotMap(context.Context) (list []redis.ClusterSlot, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for slot, last := 0, -1; slot < slots; slot++ {
		if node := c.nodeLocked(slot); node == last {
			list[len(list)-1].End = slot
		} else {
			list, last = append(list, redis.ClusterSlot{Start: slot, End: slot, Nodes: []redis.ClusterNode{{Addr: address(node)}}}), node
		}
	}
	return list, nil
}

// MoveSlot moves the slot of a key to the next node, as at the end of a migration, which ends the subscriptions to its channels.
func (c *Cluster) MoveSlot(key string) {
	slot := slotOf(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved[slot] = (c.nodeLocked(slot) + 1) % c.nodes
	for channel, peers := range c.subscribers {
		if slotOf(channel) != slot {
			continue
		}
		for peer := range peers {
			push(peer, "sunsubscribe", channel, 0)
		}
		delete(c.subscribers, channel)
	}
}

// Subscriptions returns the channels that begin with a prefix, one for each subscriber.
func (c *Cluster) Subscriptions(prefix string) (list []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for channel, peers := range c.subscribers {
		for range peers {
			if strings.HasPrefix(channel, prefix) {
				list = append(list, channel)
			}
		}
	}
	return list
}

// handle handles the commands of sharded channels, and refers to other nodes.
func (c *Cluster) handle(peer *server.Peer, cmd string, args ...string) (done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case strings.HasPrefix(cmd, "EVAL") && len(args) > 2 && args[1] != "0":
		return c.refersLocked(peer, args[2])
	case cmd == "SSUBSCRIBE":
		if !c.refersLocked(peer, args[0]) {
			c.subscribeLocked(peer, args[0])
		}
	case cmd == "SUNSUBSCRIBE":
		for _, channel := range args {
			delete(c.subscribers[channel], peer)
			push(peer, "sunsubscribe", channel, 0)
		}
	case cmd == "SPUBLISH":
		for to := range c.subscribers[args[0]] {
			push(to, "smessage", args[0], args[1])
		}
		peer.WriteInt(len(c.subscribers[args[0]]))
	case cmd == "PUBSUB" && strings.EqualFold(args[0], "SHARDNUMSUB"):
		peer.WriteLen(2)
		peer.WriteBulk(args[1])
		peer.WriteInt(len(c.subscribers[args[1]]))
	default:
		return false
	}
	return true
}

// refersLocked refers to the node that has a key, if the connection is to another one.
func (c *Cluster) refersLocked(peer *server.Peer, key string) bool {
	slot := slotOf(key)
	owner := address(c.nodeLocked(slot))
	if peer.ClientName == "" || peer.ClientName == owner {
		return false
	}
	peer.WriteError(fmt.Sprintf("MOVED %d %s", slot, owner))
	return true
}

func (c *Cluster) subscribeLocked(peer *server.Peer, channel string) {
	if c.subscribers[channel] == nil {
		c.subscribers[channel] = map[*server.Peer]bool{}
	}
	c.subscribers[channel][peer] = true
	peer.OnDisconnect(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subscribers[channel], peer)
	})
	push(peer, "ssubscribe", channel, 1)
}

func push(to *server.Peer, kind, channel string, last any) {
	to.Block(func(w *server.Writer) {
		w.WritePushLen(3)
		w.WriteBulk(kind)
		w.WriteBulk(channel)
		switch last := last.(type) {
		case int:
			w.WriteInt(last)
		case string:
			w.WriteBulk(last)
		}
	})
	to.Flush()
}

// slotOf is the slot of a key or a sharded channel: CRC16 (XMODEM) of its hash tag.
func slotOf(key string) int {
	if _, tag, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(tag, "}"); found && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			crc = crc<<1 ^ crc>>15*0x1021
		}
	}
	return int(crc) % slots
}
