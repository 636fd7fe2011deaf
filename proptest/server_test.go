package proptest

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	lua "github.com/yuin/gopher-lua"
)

// refusal is the error with which the server refuses commands.
type refusal string

const (
	willing refusal = ""
	full    refusal = "OOM command not allowed when used memory > 'maxmemory'."
	replica refusal = "READONLY You can't write against a read only replica."
	loading refusal = "LOADING Redis is loading the dataset in memory"
)

// frees are the commands of scripts that a server without memory still runs; writes are all that change data.
var (
	frees  = []string{"DEL", "ZREM", "ZREMRANGEBYSCORE", "HDEL", "PEXPIRE"}
	writes = append([]string{"SET", "ZADD", "HSET"}, frees...)
)

// redisServer is the embedded server with its faults. Each script is one atomic step, which is reported to the
// world.
type redisServer struct {
	mini *miniredis.Miniredis
	step func(call script) // called after each script

	mu      sync.Mutex        // held while a script runs; guards the fields below
	known   map[string]string // scripts by their SHA
	hidden  map[string]bool   // the keepers whose subscriptions are acknowledged and then forgotten
	ahead   time.Duration     // the offset of its clock to that of the processes
	refuses refusal
	down    bool
	frozen  chan struct{} // closed when the server is thawed; nil: not frozen
	wrote   bool          // the current script has written
}

// script is a run of a script.
type script struct {
	keys, argv []string
	text       string
	failed     bool // with an error; its writes remain
	zero       bool // the reply is 0
}

// sha returns the SHA that EVALSHA uses.
func sha(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// newServer starts a server that reports each script.
func newServer(step func(script)) *redisServer {
	s := &redisServer{mini: miniredis.NewMiniRedis(), known: map[string]string{}, hidden: map[string]bool{}, step: step}
	s.mini.SetTime(time.Now())
	s.mini.ClockTTL(true)
	conn, err := s.mini.Dial() // creates the command table
	if err != nil {
		panic(err)
	}
	_ = conn.Close()
	s.mini.Server().SetPreHook(s.hook)
	return s
}

// dial opens a connection.
func (s *redisServer) dial(_ context.Context, network, _ string) (net.Conn, error) {
	s.mu.Lock()
	down := s.down || s.frozen != nil
	s.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.ErrClosed}
	}
	return s.mini.Dial()
}

// hide makes the server forget the subscriptions of a keeper that it acknowledges, or no more.
func (s *redisServer) hide(id string, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden[id] = yes
}

// idOf returns the id of the keeper whose channel that is: the name without its address.
func idOf(channel string) string {
	channel = strings.TrimPrefix(channel, "lock:wake:")
	return channel[:min(12, len(channel))]
}

// hook handles each command before it runs, and reports whether it has.
func (s *redisServer) hook(peer *server.Peer, cmd string, args ...string) bool {
	if peer.ClientName == inScript {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.frozen != nil {
		frozen := s.frozen
		s.mu.Unlock()
		<-frozen
		s.mu.Lock()
	}
	s.tickLocked()
	if cmd == "WAIT" {
		peer.WriteInt(1)
		return true
	}
	if cmd != "EVALSHA" && cmd != "EVAL" { // a subscription, which must not run while a script does
		if cmd == "SUBSCRIBE" && s.hidden[idOf(args[0])] {
			peer.Block(func(w *server.Writer) {
				w.WritePushLen(3)
				w.WriteBulk("subscribe")
				w.WriteBulk(args[0])
				w.WriteInt(1)
			})
			return true
		}
		own := peer.ClientName
		peer.ClientName = inScript
		s.mini.Server().Dispatch(peer, append([]string{cmd}, args...))
		peer.ClientName = own
		return true
	}
	if s.refuses == loading {
		peer.WriteError(string(loading))
		return true
	}
	text := args[0]
	if cmd == "EVALSHA" {
		known, is := s.known[args[0]]
		if !is {
			peer.WriteError("NOSCRIPT No matching script. Please use EVAL.")
			return true
		}
		text = known
	}
	n, err := strconv.Atoi(args[1])
	if err != nil || n > len(args)-2 {
		peer.WriteError("ERR value is not an integer or out of range")
		return true
	}
	if cmd == "EVAL" {
		s.known[sha(text)] = text
	}
	call := script{keys: args[2 : 2+n], argv: args[2+n:], text: text}
	s.wrote = false
	reply, ok := theInterpreter.run(s.mini.Server(), s.refuse, peer, text, call.keys, call.argv)
	call.failed, call.zero = !ok, reply == lua.LNumber(0)
	s.step(call)
	return true
}

// refuse returns the error of a command inside a script. A script that has written may continue without memory.
func (s *redisServer) refuse(cmd string) string {
	if !slices.Contains(writes, cmd) {
		return ""
	}
	switch {
	case s.refuses == replica:
		return string(replica)
	case s.refuses == full && !s.wrote && !slices.Contains(frees, cmd):
		return string(full)
	}
	s.wrote = true
	return ""
}

// tickLocked updates the server's clock.
func (s *redisServer) tickLocked() { s.mini.SetTime(s.nowLocked()) }

// nowLocked returns the server's time.
func (s *redisServer) nowLocked() time.Time { return time.Now().Add(s.ahead) }

// now returns the server's time and updates its clock.
func (s *redisServer) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickLocked()
	return s.nowLocked()
}

// jump sets the server's clock. Keys expire at a time by that clock, so after a jump back they last longer.
func (s *redisServer) jump(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jumpLocked(by)
}

func (s *redisServer) jumpLocked(by time.Duration) {
	s.tickLocked()
	if by < 0 {
		for _, key := range s.mini.Keys() {
			s.mini.SetTTL(key, s.mini.TTL(key)-by)
		}
	}
	s.ahead += by
	s.tickLocked()
}

// refuseWith makes the server refuse commands, or accept them again.
func (s *redisServer) refuseWith(why refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = why
}

// freeze makes the server hold all commands until thaw.
func (s *redisServer) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen == nil {
		s.frozen = make(chan struct{})
	}
}

// thaw resumes a frozen server.
func (s *redisServer) thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		close(s.frozen)
		s.frozen = nil
	}
}

// forgetScripts runs SCRIPT FLUSH.
func (s *redisServer) forgetScripts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
}

// stop refuses new connections until start. The caller cuts existing ones.
func (s *redisServer) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
}

// start accepts connections again, with this data and without scripts.
func (s *redisServer) start(data []record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = false
	s.tickLocked()
	clear(s.known)
	s.mini.FlushAll()
	for _, k := range data {
		ttl := k.ends.Sub(s.nowLocked())
		if !k.ends.IsZero() && ttl <= 0 {
			continue
		}
		switch {
		case k.scores != nil:
			for member, score := range k.scores {
				_, _ = s.mini.ZAdd(k.key, score, member)
			}
		case k.fields != nil:
			s.mini.HSet(k.key, k.fields...)
		default:
			_ = s.mini.Set(k.key, k.text)
		}
		if !k.ends.IsZero() {
			s.mini.SetTTL(k.key, ttl)
		}
	}
}

// record is a key and its value: scores, fields, or text.
type record struct {
	key    string
	ends   time.Time // by the server's clock; zero: never
	text   string
	fields []string // and values
	scores map[string]float64
}

// data returns a copy of all data of the server.
func (s *redisServer) data() []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickLocked()
	var list []record
	for _, key := range s.mini.Keys() {
		k := record{key: key}
		if ttl := s.mini.TTL(key); ttl > 0 {
			k.ends = s.nowLocked().Add(ttl)
		}
		switch s.mini.Type(key) {
		case "zset":
			k.scores = map[string]float64{}
			scores, _ := s.mini.SortedSet(key)
			for member, score := range scores {
				k.scores[member] = score
			}
		case "hash":
			fields, _ := s.mini.HKeys(key)
			for _, field := range fields {
				k.fields = append(k.fields, field, s.mini.HGet(key, field))
			}
		default:
			k.text, _ = s.mini.Get(key)
		}
		list = append(list, k)
	}
	return list
}

// keys returns the keys of the server except metadata, and the key of a connection check that Close has interrupted, which expires.
func (s *redisServer) keys() []string {
	s.now()
	return slices.DeleteFunc(s.mini.Keys(), func(k string) bool { return strings.HasSuffix(k, ":meta") || strings.HasSuffix(k, ":connection") })
}
