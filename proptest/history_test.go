package proptest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// name is the name of the lock in every world.
const name = "x"

// terms is the content of a token.
type terms struct {
	number  int    // of the request
	keeper  string // the process
	ttl     int64  // ms
	use     string // flags without the one for no notifications
	count   int    // permits, or the maximum writer streak
	foreign bool   // not a token of this module
}

// terms parses a token. The ttl of a request contains its number.
func (w *world) terms(token string) terms {
	keeper, rest, _ := strings.Cut(token, ":")
	_, rest, _ = strings.Cut(rest, ":")
	ttl, rest, ours := strings.Cut(rest, ".")
	if !ours {
		return terms{number: -1, foreign: true}
	}
	t := terms{keeper: keeper}
	t.ttl, _ = strconv.ParseInt(ttl, 10, 64)
	t.number = int(t.ttl - w.ttl.Milliseconds())
	flags := strings.TrimLeft(rest, "0123456789")
	t.use = strings.TrimRight(flags, "0123456789")
	t.count, _ = strconv.Atoi(flags[len(t.use):])
	return t
}

// requestLocked returns the request of a token, or nil.
func (w *world) requestLocked(token string) *request {
	if n := w.terms(token).number; n >= 0 && n < len(w.requests) {
		return w.requests[n]
	}
	return nil
}

// lease is a lease at the server.
type lease struct {
	ends      int64 // µs, by the server's clock
	fence     uint64
	converted bool // it does not do what its token says
	writes    bool // of a read-write lock
}

// waiting is a queue entry.
type waiting struct {
	token string
	at    float64
}

// view is the state of the server at one moment of its clock.
type view struct {
	now       int64         // µs
	rest      time.Duration // of now, less than a microsecond
	seq       uint64
	leases    map[string]lease // not expired
	queue     []waiting        // in order
	lapse     map[string]int64 // µs, when heartbeats lapse
	uncounted map[string]bool  // of the waiters: the keeper does not count on its subscription
	odd       string           // a waiter without a heartbeat, or a heartbeat without a waiter
	pass      float64          // of a read-write lock: the place up to which readers go first
	upgrade   string           // and the token of the upgrade that was asked for last
	upgradeOf string           // and that of its lease
	limits    string           // of a semaphore: the limits in force
	taken     []taking         // and the permits taken from a window

	freeUntil, freeFor int64 // of a mutex, in ms: until when its key was last left free for other libraries, and for how long
}

// leftFree reports whether the key of a mutex is left free for other libraries.
func (v *view) leftFree() bool {
	left := v.freeUntil - v.now/1000
	return left > 0 && left <= v.freeFor
}

// position returns the place of a token in the queue.
func (v *view) position(token string) (at float64, yes bool) {
	for _, y := range v.queue {
		if y.token == token {
			return y.at, true
		}
	}
	return 0, false
}

// history is what the world has observed of the server.
type history struct {
	scripts       map[string]*lua.Script // by their text
	keys          protocol.Keys
	last          *view                // after the last script; nil: it may have changed since
	maxFence      uint64               // the largest fence
	lost          bool                 // data was lost
	lostAt        time.Time            // when data was last lost
	ends          map[string]int64     // µs, by the server's clock: when each lease expires
	unknownLeases map[string]bool      // leases that the server may have lost
	givenUp       map[string]bool      // tokens that were given up, since data was last lost or the clock set forward
	everGivenUp   map[string]bool      // tokens that were ever given up
	brokenAt      map[string]time.Time // when tokens were broken, since data was last lost or the clock set forward
	passed        map[string]int       // by how many writers a waiting reader was overtaken
	writerStreak  int                  // consecutive writers that overtook readers
	notified      map[string]bool      // tokens that were granted a lease by a message
	granting      map[string]bool      // tokens that were granted a lease
	owed          map[string]time.Time // since when a waiter could have been granted a lease
	lastGrant     time.Time            // when a lease was last granted
	heldAt        time.Time            // when the lock was last seen held
	instant       time.Time            // of the last script
	asked         int                  // scripts at that instant
}

// begin prepares the history when the primitive and the server exist.
func (w *world) begin() {
	set := w.kind.scripts()
	keys, err := protocol.KeysOf("lock:", name, set.Kind, w.kind.bare())
	if err != nil {
		panic(err)
	}
	w.history = history{
		keys: keys, scripts: map[string]*lua.Script{}, ends: map[string]int64{}, unknownLeases: map[string]bool{}, givenUp: map[string]bool{},
		everGivenUp: map[string]bool{}, brokenAt: map[string]time.Time{}, passed: map[string]int{}, notified: map[string]bool{}, granting: map[string]bool{}, owed: map[string]time.Time{},
	}
	for _, s := range set.Scripts() {
		w.history.scripts[s.Text] = s
	}
	w.history.last = w.view()
}

// transitionOf is what a script does: a fast one does what the general one does.
func transitionOf(s *lua.Script) string {
	_, name, _ := strings.Cut(s.Name, "_")
	switch {
	case name == "fast_hand_on" || name == "fast_release":
		return "release"
	case name == "fast_renew":
		return "renew"
	case strings.HasPrefix(name, "fast_"):
		return "acquire"
	}
	return name
}

// view reads the state of the server while no script runs.
func (w *world) view() *view {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.server.tickLocked()
	return w.viewInside()
}

// viewInside is view for a caller that holds the server's mutex and has updated its clock.
func (w *world) viewInside() *view {
	mini, keys := w.server.mini, w.history.keys
	now := w.server.nowLocked()
	v := &view{now: now.UnixMicro(), rest: time.Duration(now.Nanosecond() % 1000), leases: map[string]lease{}, lapse: map[string]int64{}, uncounted: map[string]bool{}}
	v.seq, _ = strconv.ParseUint(strings.TrimPrefix(mini.HGet(keys.Meta, "seq"), "-"), 10, 64) // negative while there may be tombstones
	w.kind.leases(mini, keys, v)
	_, _ = fmt.Sscan(mini.HGet(keys.Meta, "yield"), &v.freeUntil, &v.freeFor)
	for token, l := range v.leases {
		if l.ends <= v.now {
			delete(v.leases, token)
		}
	}
	stands, _ := mini.SortedSet(keys.Queue)
	for member, at := range stands {
		if at < protocol.Heartbeats {
			v.queue = append(v.queue, waiting{member, at})
		} else {
			const unsubscribed = 3_600_000_000_000 // see UNSUBSCRIBED in lua/lib/constants.lua
			token, ms := strings.TrimPrefix(member, "+"), int64(at)-protocol.Heartbeats
			v.lapse[token], v.uncounted[token] = ms%unsubscribed*1000, ms >= unsubscribed
		}
	}
	for token := range v.lapse {
		if _, waits := stands[token]; !waits {
			v.odd = token
		}
	}
	for _, y := range v.queue {
		if v.lapse[y.token] == 0 {
			v.odd = y.token
		}
	}
	slices.SortFunc(v.queue, func(a, b waiting) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.token, b.token))
	})
	return v
}

// leasesInString reads the lease of a lock whose key is a string.
func leasesInString(mini *miniredis.Miniredis, keys protocol.Keys, v *view) {
	if token, err := mini.Get(keys.Lock); err == nil {
		left := v.rest + mini.TTL(keys.Lock) + time.Microsecond - 1 // rounded up: the key exists for what is left of a microsecond
		v.leases[token] = lease{ends: v.now + left.Microseconds(), fence: v.seq}
	}
}

// leasesInSet reads the leases of a lock whose key is a sorted set; see lua/lib/constants.lua.
func leasesInSet(mini *miniredis.Miniredis, keys protocol.Keys, v *view) {
	scores, _ := mini.SortedSet(keys.Lock)
	for member, at := range scores {
		if at < 9e14 {
			ends := math.Ceil(at)
			v.leases[member] = lease{ends: int64(ends) * 1000, fence: uint64(scores["#"+member]), converted: at < ends}
		}
	}
}

// connected reports whether a waiter is certain of its place in the queue: its heartbeat has not lapsed, and its process is subscribed or
// does not count on that.
func (w *world) connected(v *view, token string) bool {
	t := w.terms(token)
	if t.foreign || v.lapse[token] <= v.now {
		return false
	}
	channel := "lock:wake:" + t.keeper
	return v.uncounted[token] || w.server.mini.PubSubNumSub(channel)[channel] > 0
}

// step is a script that has run, with the state before and after it.
type step struct {
	script        string
	askers        map[string]bool    // the tokens in its arguments
	token         string             // of acquire, release, renew, break and downgrade
	fence         uint64             // of downgrade: the one that it names
	unused        bool               // of release: the leases were never returned to a caller
	released      []string           // of release: its tokens
	rejoinAt      map[string]float64 // places at which tokens rejoin
	before, after *view
}

// stepped is called after each script, while the server runs no other.
func (w *world) stepped(call script) {
	ours := w.history.scripts[call.text]
	if ours == nil {
		panic("unknown script")
	}
	name := transitionOf(ours)
	undecided := strings.Contains(ours.Name, "_fast_") && call.zero // it has done nothing; a duplicate is not followed by the general script
	s := &step{script: name, askers: map[string]bool{}, rejoinAt: map[string]float64{}, before: w.history.last, after: w.viewInside()}
	w.history.last = s.after
	switch name {
	case "inspect":
		return
	case "acquire":
		s.token = call.argv[0]
	case "release":
		s.token, s.released = call.argv[0], call.argv[:1:1]
		if s.unused = len(call.argv) > 3 && call.argv[3] == "1"; s.unused {
			s.released = append(s.released, call.argv[4:]...)
		}
	case "renew", "break":
		s.token = call.argv[0]
	case "downgrade":
		s.token = call.argv[0]
		s.fence, _ = strconv.ParseUint(call.argv[1], 10, 64)
	case "heartbeat":
		n := 1
		if mode := call.argv[1]; mode == "1" || mode == "3" { // see heartbeat.lua
			n = 2
		}
		for i := 4; i < len(call.argv); i += n {
			s.askers[call.argv[i]] = true
			if n == 2 && call.argv[i+1] != "0" {
				s.rejoinAt[call.argv[i]], _ = strconv.ParseFloat(call.argv[i+1], 64)
			}
		}
	}
	if s.token != "" && name != "break" && name != "downgrade" {
		s.askers[s.token] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for token, l := range s.after.leases {
		w.history.ends[token] = l.ends
		w.history.heldAt = time.Now()
	}
	w.tally["scripts"]++
	if w.checkPace(); w.history.asked > 1990 {
		w.noteLocked("%s %v %v", name, call.argv, s.askers)
	}
	s.before = s.before.until(s.after.now)
	w.checkStep(s)
	if name == "break" && !call.failed {
		w.brokenLocked(s)
	}
	if name == "release" && !call.failed && !undecided {
		for _, token := range s.released {
			w.history.givenUp[token], w.history.everGivenUp[token] = true, true
		}
	}
	if name == "downgrade" && s.before.leases[s.token].writes && !s.after.leases[s.token].writes && s.before.upgradeOf == s.token {
		w.history.givenUp[s.before.upgrade] = true
	}
}

// until returns what is left of a view at a later moment: leases expire by themselves.
func (v *view) until(now int64) *view {
	later := *v
	later.now = now
	for _, l := range v.leases {
		if l.ends <= now {
			later.leases = map[string]lease{}
			for token, l := range v.leases {
				if l.ends > now {
					later.leases[token] = l
				}
			}
			break
		}
	}
	return &later
}

// messageReceived records that a message has granted a lease.
func (w *world) messageReceived(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history.notified[token] = true
}

// dataLost records what is unknown after the server has lost data, or its clock jumped forward. Earlier leases may
// have expired at the server or be unknown to it; released ones may be held again; requests that were given up may
// be granted a lease by a late duplicate.
func (w *world) dataLost(data bool) {
	v := w.view()
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &w.history
	for _, leases := range []*view{h.last, v} {
		for token := range leases.leases {
			h.unknownLeases[token] = true
		}
	}
	for _, q := range w.requests {
		if q.lease != nil && q.ended.IsZero() {
			h.unknownLeases[q.lease.Token()] = true
		}
		q.healthySince, q.positionKnown = time.Time{}, false
	}
	h.last = v
	if data {
		h.lost, h.lostAt = true, time.Now()
	}
	h.writerStreak = math.MaxInt32
	w.kind.serverDegraded(true, v.now, v.now)
	clear(h.givenUp)
	clear(h.brokenAt)
	clear(h.passed)
	clear(h.owed)
}
