package proptest

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// name is what is locked in every world.
const name = "x"

// terms is what a token says.
type terms struct {
	number  int    // of the request
	keeper  string // the process
	ttl     int64  // ms
	use     string // flags without that of who cannot be told
	count   int    // permits, or the bound of a streak
	cannot  bool   // it cannot be told by a message
	foreign bool   // none of ours
}

// terms takes a token apart. The ttl of a request has its number in it.
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
	t.use, t.cannot = strings.CutSuffix(t.use, "s")
	return t
}

// requestLocked is the request of a token, or nil.
func (w *world) requestLocked(token string) *request {
	if n := w.terms(token).number; n >= 0 && n < len(w.requests) {
		return w.requests[n]
	}
	return nil
}

// lease is one that lies at the server.
type lease struct {
	ends  int64 // µs, by the server's clock
	fence uint64
}

// waiting is somebody in line.
type waiting struct {
	token string
	at    float64
}

// view is what lies at the server, at one moment by its clock.
type view struct {
	now    int64 // µs
	seq    uint64
	leases map[string]lease // those that are held
	queue  []waiting        // in order
	lapse  map[string]int64 // µs, when heartbeats do
	pass   float64          // of a read-write lock: the place up to which readers go first
	limits string           // of a semaphore: those in force,
	taken  []taking         // and what was taken that returns by the clock
}

// stands is where a token stands in line.
func (v *view) stands(token string) (at float64, yes bool) {
	for _, y := range v.queue {
		if y.token == token {
			return y.at, true
		}
	}
	return 0, false
}

// history is what the world has seen of the server.
type history struct {
	scripts  map[string]string // names of the transitions, by their text
	keys     protocol.Keys
	last     *view                // after the last script; nil: it may have changed in another way
	top      uint64               // the largest fence
	lost     bool                 // data was lost once
	ends     map[string]int64     // µs, by the server's clock: when each lease ends or has ended
	void     map[string]bool      // leases that the server may not know any more
	gone     map[string]bool      // tokens that were given up, since data was last lost or the clock set forward
	left     map[string]bool      // tokens that ever were
	passed   map[string]int       // by how many writers a reader was passed that waits
	row      int                  // writers in a row that have passed readers
	heard    map[string]bool      // tokens that a message has brought a lease
	granting map[string]bool      // tokens that were granted one
	owed     map[string]time.Time // since when somebody could have been granted a lease
	granted  time.Time            // when somebody last was
	held     time.Time            // when the lock was last seen held
	instant  time.Time            // of the last script
	asked    int                  // scripts at that instant
}

// begin prepares the history, when the primitive and the server are there.
func (w *world) begin() {
	set := w.kind.scripts()
	keys, err := protocol.KeysOf("lock:", name, set.Kind, w.kind.bare())
	if err != nil {
		panic(err)
	}
	w.history = history{
		keys: keys, scripts: map[string]string{}, ends: map[string]int64{}, void: map[string]bool{}, gone: map[string]bool{},
		left: map[string]bool{}, passed: map[string]int{}, heard: map[string]bool{}, granting: map[string]bool{}, owed: map[string]time.Time{},
	}
	for _, s := range set.Scripts() {
		_, w.history.scripts[s.Text], _ = strings.Cut(s.Name, "_")
	}
	w.history.last = w.view()
}

// view reads what lies at the server, when no script runs.
func (w *world) view() *view {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.server.tickLocked()
	return w.viewInside()
}

// viewInside is view for a caller that has the server's lock and has brought its clock up to date.
func (w *world) viewInside() *view {
	mini, keys := w.server.mini, w.history.keys
	v := &view{now: w.server.nowLocked().UnixMicro(), leases: map[string]lease{}, lapse: map[string]int64{}}
	v.seq, _ = strconv.ParseUint(mini.HGet(keys.Meta, "seq"), 10, 64)
	w.kind.leases(mini, keys, v)
	for token, l := range v.leases {
		if l.ends <= v.now {
			delete(v.leases, token)
		}
	}
	stands, _ := mini.SortedSet(keys.Queue)
	for token, at := range stands {
		v.queue = append(v.queue, waiting{token, at})
	}
	slices.SortFunc(v.queue, func(a, b waiting) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.token, b.token))
	})
	beats, _ := mini.SortedSet(keys.Heartbeats)
	for token, at := range beats {
		v.lapse[token] = int64(at) * 1000
	}
	return v
}

// leasesInString reads the lease of a lock that is one string key.
func leasesInString(mini *miniredis.Miniredis, keys protocol.Keys, v *view) {
	if token, err := mini.Get(keys.Lock); err == nil {
		v.leases[token] = lease{v.now + mini.TTL(keys.Lock).Microseconds(), v.seq}
	}
}

// leasesInSet reads the leases of a set of them; see lua/policy/leases/scores.lua.
func leasesInSet(mini *miniredis.Miniredis, keys protocol.Keys, v *view) {
	scores, _ := mini.SortedSet(keys.Lock)
	for member, at := range scores {
		if at < 9e14 {
			v.leases[member] = lease{int64(at) * 1000, uint64(scores["#"+member])}
		}
	}
}

// connected says whether a waiter can be told of a grant: its process is subscribed, and its heartbeat has not lapsed.
// Only then is it in line for sure. One that could not subscribe when it came counts too, unless others of its process
// could, who cannot be told now: then the process is taken to be gone.
func (w *world) connected(v *view, token string) bool {
	t := w.terms(token)
	if t.foreign || v.lapse[token] <= v.now {
		return false
	}
	channel := "lock:wake:" + t.keeper
	if w.server.mini.PubSubNumSub(channel)[channel] > 0 {
		return true
	}
	return t.cannot && !slices.ContainsFunc(v.queue, func(y waiting) bool {
		other := w.terms(y.token)
		return other.keeper == t.keeper && !other.cannot
	})
}

// step is a script that has run, and what lay at the server before and after it.
type step struct {
	script        string
	askers        map[string]bool    // the tokens that it was called with
	token         string             // of acquire, release and renew
	unused        bool               // of release: nobody learned of the lease
	back          map[string]float64 // places to which askers come back
	before, after *view
}

// stepped is called after each script; the server runs no other meanwhile.
func (w *world) stepped(call script) {
	name, ours := w.history.scripts[call.text]
	if !ours {
		panic("a script that is none of ours")
	}
	s := &step{script: name, askers: map[string]bool{}, back: map[string]float64{}, before: w.history.last, after: w.viewInside()}
	w.history.last = s.after
	switch name {
	case "inspect":
		return
	case "acquire":
		s.token = call.argv[0]
	case "release":
		s.token, s.unused = call.argv[0], call.argv[5] == "1"
	case "renew":
		s.token = call.argv[0]
	case "heartbeat":
		n := 1
		if call.argv[4] == "1" {
			n = 2
		}
		for i := 6; i < len(call.argv); i += n {
			s.askers[call.argv[i]] = true
			if n == 2 && call.argv[i+1] != "0" {
				s.back[call.argv[i]], _ = strconv.ParseFloat(call.argv[i+1], 64)
			}
		}
	}
	if s.token != "" {
		s.askers[s.token] = true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for token, l := range s.after.leases {
		w.history.ends[token] = l.ends
		w.history.held = time.Now()
	}
	w.tally["scripts"]++
	if w.checkPace(); w.history.asked > 1990 {
		w.noteLocked("%s %v %v", name, call.argv, s.askers)
	}
	s.before = s.before.until(s.after.now)
	w.checkStep(s)
	if name == "release" && !call.failed {
		w.history.gone[s.token], w.history.left[s.token] = true, true
	}
}

// until is what was left of a view at a later moment: leases and heartbeats end by themselves.
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

// messageReceived notes that a message has brought a lease.
func (w *world) messageReceived(token string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history.heard[token] = true
}

// dataLost notes what is void after the server has lost what it knew, or has come to think that much time has passed.
// What was granted before may be over at the server, or known to it no more; what was given back may be held again; who was
// given up may be granted something by a late copy.
func (w *world) dataLost(data bool) {
	v := w.view()
	w.mu.Lock()
	defer w.mu.Unlock()
	h := &w.history
	for _, leases := range []*view{h.last, v} {
		for token := range leases.leases {
			h.void[token] = true
		}
	}
	for _, q := range w.requests {
		if q.lease != nil && q.ended.IsZero() {
			h.void[q.lease.Token()] = true
		}
		q.well, q.stood = time.Time{}, false
	}
	h.last = v
	h.lost = h.lost || data
	h.row = math.MaxInt32
	w.kind.serverDegraded(true, v.now, v.now)
	clear(h.gone)
	clear(h.passed)
	clear(h.owed)
}
