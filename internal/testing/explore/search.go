package explore

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// result is what a search has found.
type result struct {
	states  int // different ones
	runs    int // of scripts; others were remembered
	depth   int // steps on the longest of the shortest paths
	ended   bool
	problem string   // "" if nothing is wrong
	path    []string // the shortest one to it
}

// visited is how a state was reached: from which, and by which step.
type visited struct {
	from int32
	step step
}

// search visits all worlds, breadth first, until one breaks a promise, or until it has seen limit states, if that is not 0. States
// are recognised by a hash of 64 bits.
func search(c *config, limit int) result {
	m := newModel(c)
	seed := maphash.MakeSeed()
	ids := map[uint64]int32{}
	var how []visited
	served := map[uint64]bool{}
	first := m.initial()
	level := &worlds{}
	level.add(0, &first)
	ids[maphash.Comparable(seed, first)] = 0
	how = append(how, visited{from: -1})
	r := result{}
	fail := func(id int32, problem string, more []string) result {
		r.states, r.runs, r.problem = len(how), len(m.srv.runs), problem
		r.path = append(m.path(how, id), more...)
		return r
	}
	for ; level.n > 0; r.depth++ {
		next := &worlds{}
		for e := range level.take {
			if problem := m.problem(&e.world); problem != "" {
				return fail(e.id, problem, nil)
			}
			if more, ok := m.isServed(e.world, func(w world) bool {
				h := maphash.Comparable(seed, w)
				known := served[h]
				served[h] = true
				return known
			}); !ok {
				return fail(e.id, "without any more faults, a live request is not served in time", more)
			}
			m.steps(&e.world, func(s step) {
				w := e.world
				m.apply(&w, s)
				h := maphash.Comparable(seed, w)
				if _, known := ids[h]; known {
					return
				}
				id := int32(len(how))
				ids[h] = id
				how = append(how, visited{e.id, s})
				next.add(id, &w)
			})
			if limit > 0 && len(how) > limit {
				r.states, r.runs = len(how), len(m.srv.runs)
				return r
			}
		}
		level = next
	}
	r.states, r.runs, r.ended = len(how), len(m.srv.runs), true
	return r
}

// worlds is a list of worlds, with their numbers as states. It is in pieces, so that it grows without being copied, and shrinks as it is
// taken from: the worlds of one level may need gigabytes.
type worlds struct {
	n      int
	pieces [][]entry
}

type entry struct {
	id    int32
	world world
}

const piece = 1024

func (l *worlds) add(id int32, w *world) {
	if l.n%piece == 0 {
		l.pieces = append(l.pieces, make([]entry, 0, piece))
	}
	last := &l.pieces[l.n/piece]
	*last = append(*last, entry{id, *w})
	l.n++
}

func (l *worlds) take(yield func(*entry) bool) {
	for i := range l.pieces {
		for j := range l.pieces[i] {
			if !yield(&l.pieces[i][j]) {
				return
			}
		}
		l.pieces[i] = nil
	}
}

func (m *model) path(how []visited, id int32) []string {
	var steps []step
	for ; how[id].from >= 0; id = how[id].from {
		steps = append(steps, how[id].step)
	}
	w := m.initial()
	var list []string
	for i := len(steps) - 1; i >= 0; i-- {
		list = append(list, m.line(&w, steps[i]))
	}
	return list
}

// line makes a step and describes it.
func (m *model) line(w *world, s step) string {
	text := fmt.Sprintf("%5d ms  %s", w.now(), m.describe(w, s))
	m.apply(w, s)
	var believers []string
	for r := range m.requests {
		if m.believes(w, r) {
			believers = append(believers, requestName(r))
		}
	}
	if len(believers) > 0 {
		text += " [" + strings.Join(believers, " and ") + " held]"
	}
	return text
}

// patience is the ticks within which everybody must be served once there are no more faults: a lease of a process that is gone, and a
// heartbeat timeout for all waiters that are.
const patience = (ttl + heartbeatTTL) / tick

// isIdle reports whether somebody waits though nobody has a lease at the server.
func (m *model) isIdle(w *world) bool {
	for k := range w.keepers {
		if m.queued(w, k) != 0 {
			return m.srv.states[w.server].held <= start+w.now()
		}
	}
	return false
}

// isServed reports whether all requests that have begun and whose processes run end in time if there are no more faults, and nobody waits for
// a free lock for longer than a heartbeat interval: replies and messages arrive, holders release at once, and heartbeats are sent when they
// are due. Otherwise it returns the steps taken. known notes a
// world and reports whether it was noted before.
func (m *model) isServed(w world, known func(world) bool) (path []string, ok bool) {
	w.faults, w.slow, w.renewals, w.cancels, w.crashes, w.closes, w.extends, w.downgrades, w.breaks = 0, 0, 0, 0, 0, 0, 0, 0, 0
	w.calm, w.late = true, [4]int32{}
	begin, idle := w, 0
	for int(w.tick-begin.tick) <= patience {
		if known(w) {
			return nil, true
		}
		s, more := m.faultless(&w)
		if !more {
			return nil, true
		}
		if s.kind == stepTick && m.isIdle(&w) {
			idle++
		} else if s.kind == stepTick {
			idle = 0
		}
		if idle > 1 { // longer than a heartbeat interval
			break
		}
		m.apply(&w, s)
	}
	path = append(path, "and from here on without faults:")
	for w = begin; len(path) < 16; {
		s, _ := m.faultless(&w)
		path = append(path, m.line(&w, s))
	}
	return append(path, "and so on"), false
}

// faultless returns the next step of a world without faults, or false if all its requests have ended.
func (m *model) faultless(w *world) (step, bool) {
	var found step
	best, open := leastPreferred+1, false
	for r := range m.requests {
		open = open || w.requests[r].phase == begun && m.alive(w, r)
	}
	if !open {
		return step{}, false
	}
	m.steps(w, func(s step) {
		if rank := preference[s.kind][s.of]; rank > 0 && rank < best {
			found, best = s, rank
		}
	})
	if best > leastPreferred && w.tick >= m.ticks { // beyond the bound
		return step{kind: stepTick}, true
	}
	return found, true
}

// preference has the steps of worlds without faults, in their order. The others are 0.
var preference = [stepTick + 1][ofHeartbeat + 1]int{
	stepAnswer:  {ofAsk: 1, ofChange: 2, ofExtend: 2, ofDowngrade: 2, ofHeartbeat: 3},
	stepWhy:     {1},
	stepMessage: {4},
	stepRun:     {ofAsk: 5, ofChange: 6, ofExtend: 6, ofDowngrade: 6, ofHeartbeat: 7},
	stepRelease: {8}, stepSubscribe: {9}, stepHeartbeat: {10}, stepTimer: {11}, stepTick: {leastPreferred},
}

const leastPreferred = 12

// requestSteps and keeperSteps are the names of the steps that are about a request or a keeper alone.
var (
	requestSteps = map[stepKind]string{
		stepBegin:     "%s begins",
		stepCancel:    "%s is cancelled",
		stepRelease:   "%s releases",
		stepTimer:     "the timer of %s fires",
		stepExtend:    "%s extends its lease",
		stepDowngrade: "%s downgrades its lease",
		stepBreak:     "somebody breaks %s",
		stepWhy:       "the server says who has broken %s",
	}
	keeperSteps = map[stepKind]string{
		stepClose:       "%s is closed",
		stepHeartbeat:   "%s sends a heartbeat",
		stepCrash:       "%s crashes",
		stepFreeze:      "%s freezes for good",
		stepUnsubscribe: "%s loses its subscription",
		stepSubscribe:   "%s subscribes again",
	}
	messageSteps = map[stepKind]string{
		stepMessage:     "%s receives %q",
		stepLoseMessage: "a message to %s is lost: %q",
	}
)

func (m *model) describe(w *world, s step) string {
	i := int(s.at)
	keeperName := func(k int) string { return "keeper " + keeperID(k) }
	if text, found := requestSteps[s.kind]; found {
		return fmt.Sprintf(text, requestName(i)) + " in " + keeperName(m.keeperOf[i])
	}
	if text, found := keeperSteps[s.kind]; found {
		return fmt.Sprintf(text, keeperName(i))
	}
	if text, found := messageSteps[s.kind]; found {
		return fmt.Sprintf(text, keeperName(m.addressee(w.messages[i])), m.srv.messages[w.messages[i]].text)
	}
	switch s.kind {
	case stepRun, stepSlow:
		ran, c := *w, *w.slot(s)
		m.run(&ran, &c)
		text := fmt.Sprintf("the server runs: %s, and replies %v", m.srv.describe(c.call), m.srv.replies[c.reply])
		if s.kind == stepSlow {
			text += ", which arrives later"
		}
		return text
	case stepAnswer:
		c := w.slot(s)
		return fmt.Sprintf("%s is answered %v", m.srv.describe(c.call), m.srv.replies[c.reply])
	case stepFail:
		return "no reply comes, and a copy may run later: " + m.srv.describe(w.slot(s).call)
	case stepRunLate:
		return "the server runs a late copy: " + m.srv.describe(w.late[i])
	}
	return fmt.Sprintf("time passes: %d ms", int64(w.tick+1)*tick)
}
