package proptest

import (
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"pgregory.net/rapid"
)

// readWriteLock: any number of readers, or one writer. Upgrades precede writers, and writers precede readers, each
// in order of arrival. After a number of consecutive writers that went before waiting readers, those readers go
// before the next writer. A newcomer is behind all, except that a writer precedes readers.
type readWriteLock struct {
	streak int // MaxWriterStreak; negative: unlimited
}

// Uses of a lease in tokens.
const (
	reads      = "r"
	writing    = "w"
	upgrades   = "u"
	downgrades = "d"
)

// readers is the smallest place of readers.
const readers = 4.5e15

func (*readWriteLock) scripts() *lua.Set { return lua.RWLock }
func (*readWriteLock) bare() bool        { return false }
func (*readWriteLock) queuesAll() bool   { return true }

func (*readWriteLock) lingers() time.Duration            { return 0 }
func (*readWriteLock) serverDegraded(bool, int64, int64) {}
func (*readWriteLock) vacant(v *view) bool               { return len(v.leases) == 0 }
func (*readWriteLock) free(v *view) bool                 { return len(v.leases) == 0 && len(v.queue) == 0 }

func (*readWriteLock) leases(m *miniredis.Miniredis, k protocol.Keys, v *view) {
	leasesInSet(m, k, v)
	for token, l := range v.leases {
		l.writes = writesBy(token, l)
		v.leases[token] = l
	}
	v.upgrade, v.upgradeOf, _ = strings.Cut(m.HGet(k.Meta, "upgrade"), " ")
	v.pass, _ = strconv.ParseFloat(m.HGet(k.Meta, "pass"), 64)
}

func (l *readWriteLock) settings(r *rapid.T) {
	l.streak = rapid.SampledFrom([]int{1, 2, 3, -1}).Draw(r, "writer streak")
}

func (*readWriteLock) wants(r *rapid.T, q *request) {
	q.use = rapid.SampledFrom([]string{reads, writing}).Draw(r, "use")
}

func (l *readWriteLock) get(q *request) (*lockkeeper.Lease, error) {
	lock, err := rwlock.New(q.p.Keeper, name, &rwlock.Options{TTL: q.ttl(), NoRenewal: q.fixed, MaxLifetime: q.lifetime(), MaxWriterStreak: l.streak})
	if err != nil {
		panic(err)
	}
	switch {
	case q.adopts != nil:
		return lock.Adopt(q.ctx, q.adopts.lease.Token())
	case q.use == upgrades:
		return q.origin.lease, lock.Upgrade(q.ctx, q.origin.lease)
	case q.use == downgrades:
		return q.origin.lease, lock.Downgrade(q.ctx, q.origin.lease)
	case q.use == reads && q.try:
		return lock.TryRLock(q.ctx)
	case q.use == reads:
		return lock.RLock(q.ctx)
	case q.try:
		return lock.TryLock(q.ctx)
	}
	return lock.Lock(q.ctx)
}

func (*readWriteLock) together(_ *world, v *view) bool { return len(v.leases) <= 1 || !v.writer() }

// writer reports whether a lease of a read-write lock is there that writes.
func (v *view) writer() bool {
	for _, l := range v.leases {
		if l.writes {
			return true
		}
	}
	return false
}

// writesBy reports whether a lease of a read-write lock is for writing.
func writesBy(token string, l lease) bool {
	t, _ := protocol.ParseToken(token)
	return (t.Flags != reads) != l.converted
}

func (*readWriteLock) before(w *world, s *step, y waiting, token string, at float64, stood bool) bool {
	t := w.terms(token)
	passes := y.at >= readers && y.at <= s.before.pass // the waiter is a reader that goes before the next writer
	q := w.requestLocked(token)
	switch {
	case t.use == upgrades:
		return false
	case q != nil && q.try:
		return true
	case t.use == writing && stood:
		return y.at < at || passes
	case t.use == writing:
		return y.at < readers || passes
	case stood && at <= s.before.pass:
		return y.at < at && y.at >= readers
	case stood:
		return y.at < at
	}
	return true
}

// excused: an upgrade ends when its lease writes or has ended, or when another of the same lease is asked for.
func (*readWriteLock) excused(w *world, s *step, token string) bool {
	q := w.requestLocked(token)
	if q == nil || q.use != upgrades {
		return false
	}
	of := q.origin.token
	if q.origin.lease != nil {
		of = q.origin.lease.Token()
	}
	l, held := s.after.leases[of]
	return !held || l.writes || s.after.upgrade != token && s.after.upgradeOf == of
}

// stepped counts the writers that overtake waiting readers.
func (l *readWriteLock) stepped(w *world, s *step) {
	h := &w.history
	for i, y := range s.after.queue {
		if i > 0 && w.terms(y.token).use == upgrades && w.terms(s.after.queue[i-1].token).use != upgrades {
			w.breaksLocked(order, "%s waits behind %s", w.tokenName(y.token), w.tokenName(s.after.queue[i-1].token))
		}
	}
	wrote := false
	for token := range s.after.leases {
		if _, had := s.before.leases[token]; !had && w.terms(token).use == writing {
			wrote = true
		}
	}
	here := map[string]bool{}
	for _, y := range s.after.queue {
		if y.at >= readers {
			here[y.token] = true
		}
	}
	for token := range h.passed {
		if !here[token] || !w.connected(s.after, token) {
			delete(h.passed, token)
		}
	}
	if wrote {
		if waited := s.before.queue; len(here) > 0 || len(waited) > 0 && waited[len(waited)-1].at >= readers {
			h.writerStreak++
		}
		for token := range here {
			if _, waited := s.before.position(token); !waited || !w.connected(s.after, token) {
				continue
			}
			h.passed[token]++
			if l.streak > 0 && h.passed[token] > l.streak {
				w.breaksLocked(streaks, "%s was overtaken by %d consecutive writers", w.tokenName(token), h.passed[token])
			}
		}
	}
	if s.after.pass > 0 && s.after.pass != s.before.pass {
		if l.streak < 0 || h.writerStreak < l.streak {
			w.breaksLocked(streaks, "readers go first after %d writers", h.writerStreak)
		}
		h.writerStreak = 0
		w.tally["readers go before the next writer"]++
	}
}

// streaks: a connected waiting reader is overtaken by at most MaxWriterStreak consecutive writers, and readers go
// before a waiting writer only after so many writers, these or others, went before readers.
const streaks = "writers overtake readers up to the streak"

func (l *readWriteLock) owed(w *world, v *view) []string {
	if v.writer() {
		return nil
	}
	y := w.firstConnected(v)
	switch {
	case y == nil:
		return nil
	case y.at < readers && w.terms(y.token).use == upgrades:
		if _, held := v.leases[v.upgradeOf]; held && len(v.leases) == 1 && y.token == v.upgrade {
			return []string{y.token}
		}
		return nil
	case y.at < readers && len(v.leases) == 0:
		return []string{y.token}
	case y.at < readers:
		return nil
	}
	var list []string
	for _, y := range v.queue {
		if w.connected(v, y.token) {
			list = append(list, y.token)
		}
	}
	return list
}

func (l *readWriteLock) actions(w *world) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"one upgrades":       func(r *rapid.T) { l.converts(w, r, upgrades) },
		"another upgrades":   func(r *rapid.T) { l.converts(w, r, upgrades) },
		"one downgrades":     func(r *rapid.T) { l.converts(w, r, downgrades) },
		"another downgrades": func(r *rapid.T) { l.converts(w, r, downgrades) },
		"a newcomer converts": func(r *rapid.T) {
			q := w.newRequest(r, draw(r, w.in(running), "process"), false)
			q.hold = max(q.hold, w.scaled(20*time.Second))
			w.launch(q)
			w.advance(w.while(r, time.Second))
			w.mu.Lock()
			held, use := q.believesHeld() && q.p.state == running, upgrades
			if q.writes {
				use = downgrades
			}
			w.mu.Unlock()
			if held {
				l.convert(w, r, q, use)
			}
		},
	}
}

// converts lets a holder convert its lease.
func (l *readWriteLock) converts(w *world, r *rapid.T, use string) {
	var list []*request
	for _, q := range w.holders() {
		if q.writes == (use == downgrades) && !q.converting && len(q.convertTo) == 0 && q.p.state == running {
			list = append(list, q)
			if q.adopts != nil { // of which there are few
				list = append(list, q, q, q)
			}
		}
	}
	l.convert(w, r, draw(r, list, "holder"), use)
}

// convert lets a holder convert its lease, and perhaps back, again and again.
func (*readWriteLock) convert(w *world, r *rapid.T, from *request, use string) {
	if len(w.requests) >= w.most() {
		r.Skip("too many")
	}
	q := w.requestOf(from.p)
	if rapid.IntRange(0, 2).Draw(r, "extended before") == 0 {
		q.extendOrigin = from.drawExtension(r)
	}
	q.use, q.origin = use, from
	hold := w.scaled(time.Duration(rapid.SampledFrom([]int{100, 1000, 5000, 20000}).Draw(r, "hold ms")) * time.Millisecond)
	q.patience = w.scaled(time.Duration(rapid.SampledFrom([]int{0, 10000, 1000, 100, 1}).Draw(r, "patience ms")) * time.Millisecond)
	q.again = rapid.IntRange(0, 3).Draw(r, "again")
	q.begins(hold)
	if !w.noFaults && rapid.IntRange(0, 3).Draw(r, "its reply is lost") == 0 {
		fault := rapid.SampledFrom(replyFaults).Draw(r, "fault")
		if rapid.Bool().Draw(r, "and its request comes late") {
			fault |= faultnet.Copy
			w.after(w.while(r, time.Second), func() { w.replay(q.p) })
		}
		q.p.link.Break("evalsha", rapid.IntRange(1, 3).Draw(r, "how many"), fault)
		q.p.degrade(lossy, w.while(r, 3*time.Second))
	}
	from.convertTo <- q
}
