package explore

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// A world has so many requests, in so many keepers.
const (
	maxRequests = 4
	maxKeepers  = 2
)

// Times of all worlds, in ms. The clock moves by ticks, which divide all of them, so no instant at which something ends lies between two.
const (
	start        = 1_800_000_000_000
	tick         = 1000
	ttl          = 2 * tick
	heartbeatTTL = 2 * tick // HeartbeatTimeout; the interval is a tick
	claimTTL     = 2 * tick
	metadataTTL  = 3600 * tick
	tombstoneTTL = 60 * tick
	wakePrefix   = "lock:wake:"
	way          = ".5" // of all keepers: their ids end so
)

// script is a transition that keepers send.
type script uint8

const (
	none script = iota
	fastAcquire
	acquire
	fastRelease
	handOn
	release
	breaking
	fastRenew
	renew
	downgrade
	heartbeat
	rejoin
)

func (s script) renews() bool { return s == fastRenew || s == renew }

// call is one call of a script. Equal calls have equal arguments.
type call struct {
	script    script
	requests  uint8              // bits of the requests that it names
	try       bool               // of an acquire: it does not wait
	tombstone bool               // of a release
	unused    bool               // of a release: nobody had the lease
	ttl       int16              // ms, of a renewal
	fence     int64              // of a downgrade
	upgrade   int8               // of a downgrade: the request that is tombstoned, counted from 1; 0: none
	uncounted bool               // of an acquire and of heartbeats: the keeper does not count on its subscription
	places    [maxRequests]int64 // of a heartbeat of several or a rejoin
}

func (c call) has(r int) bool { return c.requests&(1<<r) != 0 }

// serverState is an immutable state of the server.
type serverState struct {
	data     *store
	known    uint8 // bits of the requests that have a lease or a place
	upgraded uint8 // the bit of the one by which the lease of another writes
	held     int64 // ms until which somebody has a lease; 0: nobody
}

// runKey is all that the outcome of a script depends on.
type runKey struct {
	server, call int32
	tick         int8
	subscribed   uint8
}

type runResult struct {
	server int32
	reply  int32
	sent   []int32 // messages
}

// server runs calls on server states. All states, calls, replies and messages have numbers, and each run is remembered: in most states
// of a world the server does what it has done in another.
type server struct {
	set    *lua.Set
	text   map[script]string
	keysOf map[script][]string
	tokens [maxRequests]string
	origin [maxRequests]int // which lease a request makes write, counted from 1; 0: none
	keys   []string
	in     *interpreter

	states   []serverState
	stateIDs map[string]int32
	calls    []call // 0: none
	callIDs  map[call]int32
	replies  [][]int64 // 0: none
	replyIDs map[string]int32
	messages []published // 0: none
	msgIDs   map[published]int32
	runs     map[runKey]runResult
}

const semaphoreLimit = 2

// limits returns the limits as scripts know them, or "".
func (s *server) limits() string {
	if s.set != lua.Semaphore {
		return ""
	}
	return protocol.LimitsArg(semaphoreLimit, 0, 0)
}

// newServer returns a server with the scripts of a primitive. change may alter their texts.
func newServer(set *lua.Set, tokens [maxRequests]string, change func(string) string) *server {
	keys, err := protocol.KeysOf("lock:", "x", set.KeyKind, set.Kind == "mutex")
	if err != nil {
		panic(err)
	}
	all := keys.All()
	s := &server{
		set: set, tokens: tokens, keys: all[:], in: newInterpreter(), text: map[script]string{}, keysOf: map[script][]string{},
		stateIDs: map[string]int32{}, calls: make([]call, 1), callIDs: map[call]int32{}, replies: make([][]int64, 1),
		replyIDs: map[string]int32{}, messages: make([]published, 1), msgIDs: map[published]int32{}, runs: map[runKey]runResult{},
	}
	for name, x := range map[script]*lua.Script{
		fastAcquire: set.Fast.Acquire, acquire: set.Acquire, fastRelease: set.Fast.Release, handOn: set.Fast.HandOn, release: set.Release,
		breaking: set.Break, fastRenew: set.Fast.Renew, renew: set.Renew, downgrade: set.Downgrade, heartbeat: set.Heartbeat,
		rejoin: set.Heartbeat,
	} {
		if x == nil {
			continue
		}
		s.text[name] = x.Text
		if change != nil {
			s.text[name] = change(x.Text)
		}
		for _, key := range x.Keys {
			s.keysOf[name] = append(s.keysOf[name], all[key])
		}
	}
	s.state(&store{now: start, keys: map[string]*value{}})
	return s
}

// state returns the number of a server state.
func (s *server) state(data *store) int32 {
	text := data.String()
	if id, found := s.stateIDs[text]; found {
		return id
	}
	st := serverState{data: data}
	for r, token := range s.tokens {
		for _, key := range []string{s.keys[0], s.keys[2]} {
			if v := data.get(key); v.text == token || v.member(token) >= 0 {
				st.known |= 1 << r
			}
		}
		if s.hasUpgraded(data, r) {
			st.upgraded |= 1 << r
		}
	}
	for _, token := range s.tokens {
		switch v := data.get(s.keys[0]); {
		case v.text == token:
			st.held = v.expires
		case v.member(token) >= 0:
			st.held = max(st.held, int64(math.Ceil(v.members[v.member(token)].score)))
		}
	}
	id := int32(len(s.states))
	s.states, s.stateIDs[text] = append(s.states, st), id
	return id
}

// hasUpgraded reports whether the lease of another request writes by this one.
func (s *server) hasUpgraded(data *store, r int) bool {
	o := s.origin[r] - 1
	if o < 0 {
		return false
	}
	lock, last := data.get(s.keys[0]), data.get(s.keys[1]).hget("upgrade")
	i := lock.member(s.tokens[o])
	if i < 0 || last != s.tokens[r]+" "+s.tokens[o] {
		return false
	}
	origin, _ := protocol.ParseToken(s.tokens[o])
	return (origin.Flags == protocol.FlagRead) == (math.Mod(lock.members[i].score, 1) > 0)
}

func (s *server) call(c call) int32 {
	id, found := s.callIDs[c]
	if !found {
		id = int32(len(s.calls))
		s.calls, s.callIDs[c] = append(s.calls, c), id
	}
	return id
}

// run runs a call in a state, at a tick. subscribed has the bits of the keepers with a subscription.
func (s *server) run(state, c int32, at int8, subscribed uint8) runResult {
	key := runKey{state, c, at, subscribed}
	if r, found := s.runs[key]; found {
		return r
	}
	data := s.states[state].data.clone()
	data.now = start + int64(at)*tick
	listens := func(channel string) bool {
		return subscribed&(1<<(channel[len(wakePrefix)]-'a')) != 0
	}
	keys, argv := s.arguments(s.calls[c])
	reply, sent, err := s.in.run(data, listens, s.text[s.calls[c].script], keys, argv)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", s.describe(c), err))
	}
	r := runResult{server: s.state(data)}
	text := fmt.Sprint(reply)
	var found bool
	if r.reply, found = s.replyIDs[text]; !found {
		r.reply = int32(len(s.replies))
		s.replies, s.replyIDs[text] = append(s.replies, reply), r.reply
	}
	for _, m := range sent {
		id, found := s.msgIDs[m]
		if !found {
			id = int32(len(s.messages))
			s.messages, s.msgIDs[m] = append(s.messages, m), id
		}
		r.sent = append(r.sent, id)
	}
	s.runs[key] = r
	return r
}

// passedOver returns a request that was in the queue before another one that a call has granted a lease, and has none, though it is alive and does
// not count on its subscription; -1: there is none. The call is of another request.
func (s *server) passedOver(before, after, id int32, now int64) int {
	const unsubscribed = 3_600_000_000_000 // see UNSUBSCRIBED in lua/lib/constants.lua
	place := func(state int32, token string) float64 {
		if at, queued := s.states[state].data.get(s.keys[2]).zscore(token).(string); queued {
			return float(at)
		}
		return -1
	}
	holds := func(r int) bool {
		v := s.states[after].data.get(s.keys[0])
		return v.text == s.tokens[r] || v.member(s.tokens[r]) >= 0 || s.states[after].upgraded&(1<<r) != 0
	}
	for r, token := range s.tokens {
		at, lapse := place(before, token), int64(place(before, "+"+token))-protocol.Heartbeats
		if at < 0 || s.calls[id].has(r) || holds(r) || lapse < unsubscribed || lapse-unsubscribed <= now {
			continue
		}
		for x, other := range s.tokens {
			if place(before, other) > at && place(after, other) < 0 && holds(x) {
				return r
			}
		}
	}
	return -1
}

// arguments returns KEYS and ARGV of a call, as the keeper encodes them.
func (s *server) arguments(c call) (keys, argv []string) {
	var args []any
	token, policyArg := "", s.limits()
	for r := range s.tokens {
		if !c.has(r) {
			continue
		}
		token = s.tokens[r]
		if o := s.origin[r]; o > 0 {
			policyArg = s.tokens[o-1]
		}
	}
	switch c.script {
	case fastAcquire:
		var limits any
		if s.limits() != "" {
			limits = s.limits()
		}
		args = protocol.AppendArgs(nil, token, ttl, limits, protocol.EpochArg(metadataTTL))
	case acquire:
		args = []any{token, ttl, policyArg, int64(metadataTTL)}
		if !c.try {
			args = append(args, protocol.QueueTTL(heartbeatTTL), 0)
			if c.uncounted {
				args = append(args, 1)
			}
		}
	case fastRelease:
		args = []any{token}
	case handOn:
		args = []any{token, wakePrefix, protocol.EpochOf(metadataTTL), way}
	case release:
		args = []any{token, int64(metadataTTL)}
		switch {
		case c.tombstone && c.unused:
			args = append(args, tombstoneTTL, 1)
		case c.tombstone:
			args = append(args, tombstoneTTL, 0)
		case c.unused:
			args = append(args, 0, 1)
		}
	case breaking:
		args = []any{token, int64(metadataTTL), tombstoneTTL, policyArg, protocol.BreakNotice(protocol.Breaker{By: "x", Reason: "y"})}
	case fastRenew:
		args = []any{token, int64(c.ttl)}
	case renew:
		args = []any{token, int64(c.ttl), int64(metadataTTL)}
	case downgrade:
		upgrade := ""
		if c.upgrade > 0 {
			upgrade = s.tokens[c.upgrade-1]
		}
		args = []any{token, c.fence, int64(metadataTTL), upgrade, tombstoneTTL}
	case heartbeat:
		mode := 0
		if c.uncounted {
			mode = protocol.HeartbeatUnsubscribed
		}
		args = []any{int64(metadataTTL), mode, s.limits(), protocol.QueueTTL(heartbeatTTL)}
		for _, r := range c.list() {
			args = append(args, s.tokens[r])
		}
	case rejoin:
		mode := protocol.HeartbeatRejoin + protocol.HeartbeatUnsubscribed
		args = []any{int64(metadataTTL), mode, s.limits(), protocol.QueueTTL(heartbeatTTL)}
		for _, r := range c.list() {
			args = append(args, s.tokens[r], c.places[r])
		}
	}
	for _, x := range args {
		argv = append(argv, fmt.Sprint(x))
	}
	return s.keysOf[c.script], argv
}

func serial(x protocol.Wakeup) int { return parsed(strconv.Atoi(x.Serial)) - 1 }

func (c call) list() (list []int) {
	for r := range maxRequests {
		if c.has(r) {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(c.places[a], c.places[b]) })
	return list
}

func (s *server) describe(id int32) string {
	c := s.calls[id]
	var b strings.Builder
	b.WriteString([]string{
		"?", "fast acquire", "acquire", "fast release", "hand_on", "release", "break", "fast renew", "renew", "downgrade", "heartbeat", "rejoin",
	}[c.script])
	for i, r := range c.list() {
		if i > 0 {
			b.WriteString(" and")
		}
		fmt.Fprintf(&b, " %s", requestName(r))
	}
	if c.tombstone {
		b.WriteString(" with a tombstone")
	}
	if c.upgrade > 0 {
		fmt.Fprintf(&b, " with a tombstone of %s", requestName(int(c.upgrade-1)))
	}
	if c.ttl > 0 {
		fmt.Fprintf(&b, " for %d ms", c.ttl)
	}
	return b.String()
}

func requestName(r int) string { return fmt.Sprintf("request %d", r+1) }
