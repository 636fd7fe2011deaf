package inspector

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/taken"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// rowsPerPage is how many holders and how many waiters the page of a lock shows.
const rowsPerPage = 100

// lockQuery is what the page of a lock shows.
type lockQuery struct {
	id             lockID
	holders, queue int // pages, from 1; 0 is 1
}

func parseLockQuery(v url.Values) (lockQuery, error) {
	q := lockQuery{id: lockID{lockkeeper.Kind(v.Get("kind")), v.Get("name")}}
	switch {
	case q.id.name == "":
		return q, badRequest("the name is empty")
	case len(q.id.name) > protocol.MaxLength:
		return q, badRequest("the name has %d bytes, the maximum is %d", len(q.id.name), protocol.MaxLength)
	case !slices.Contains(listQuery{}.Kinds(), string(q.id.kind)):
		return q, badRequest("there is no kind %q; kinds are %s", q.id.kind, strings.Join(listQuery{}.Kinds(), ", "))
	}
	var err error
	if q.holders, err = pageNumber(v, "holders"); err != nil {
		return q, err
	}
	q.queue, err = pageNumber(v, "queue")
	return q, err
}

// values is the query's URL. A name may have any bytes, which are escaped there, so it must not be the value of a form's field.
func (q lockQuery) values() url.Values {
	v := url.Values{"kind": {string(q.id.kind)}, "name": {q.id.name}}
	if q.holders > 1 {
		v.Set("holders", strconv.Itoa(q.holders))
	}
	if q.queue > 1 {
		v.Set("queue", strconv.Itoa(q.queue))
	}
	return v
}

func (q lockQuery) url() string { return "lock?" + q.values().Encode() }

func (q lockQuery) events() string {
	v := q.values()
	v.Set("of", "lock")
	return "events?" + v.Encode()
}

// breakURL is the page to break a lock. The reference is that of a holder or waiter, or "all".
func (q lockQuery) breakURL(what string) string {
	return "break?" + url.Values{"kind": {string(q.id.kind)}, "name": {q.id.name}, "what": {what}}.Encode()
}

// lockView is the data of a lock's page.
type lockView struct {
	frame
	Name     text
	Kind     lockkeeper.Kind
	Seen     seen
	Now      string // what the lock is doing, in a sentence
	Fence    uint64
	Limits   *limitsView
	Holders  []holderView
	Taken    []takenView // instead of Holders, of permits that return by the clock
	Waiters  []waiterView
	Silent   int // waiters without a heartbeat
	Held     int // holders
	Queued   int // waiters
	HPager   pager
	WPager   pager
	BreakAll string // a URL; "" if the user may not break it, or there is nothing to break
	CanBreak bool
	Modes    bool // holders and waiters read or write
	Permits  bool // holders and waiters have a number of permits
	ByClock  bool // permits return by the clock: nothing is held
	Window   string
}

// takenView is the permits of one owner that return by the clock.
type takenView struct {
	ID          string
	Owner       text
	Keeper      string
	Permits     int
	Ahead       int // of these, for callers of the process in future
	Requests    int
	First, Last string // until they return
}

type holderView struct {
	ID            string
	Owner         text
	Keeper        string
	Note          text
	Since, Left   string
	Never         bool // it does not expire
	Percent       int  // of its ttl that is left
	TTL           string
	Unconfirmed   bool
	Fence         uint64
	Mode, Permits string
	Break         string // a URL
}

type waiterView struct {
	ID            string
	Place         int // 0: none
	Owner         text
	Keeper        string
	Note          text
	Wait          string
	Alive         bool
	Heartbeat     string // how long ago it was
	Late          bool   // the next one is overdue, and the waiter is alive still
	Mode, Permits string
	Break         string
}

func newLockView(q lockQuery, s state[lockState], interval time.Duration, canBreak bool) lockView {
	v := lockView{Name: visible(q.id.name), Kind: q.id.kind, Seen: seenAt(s.at, s.err, interval), CanBreak: canBreak}
	i := s.value.LockState
	if i == nil {
		return v
	}
	v.Modes = q.id.kind == rwlock.Kind
	v.Permits = q.id.kind == semaphore.Kind || q.id.kind == ratelimit.Kind
	v.Fence, v.Held, v.Queued, v.Now = i.Fence, len(i.Holders), len(i.Waiters), sentence(i)
	v.Limits = newLimitsView(i.Limits, s.value.history)
	v.ByClock = i.Limits.ByClock()
	if canBreak && len(breakable(i))+v.Queued > 0 {
		v.BreakAll = q.breakURL("all")
	}
	v.setHolders(q, i)
	var first, last int
	v.WPager, first, last = newPager(v.Queued, rowsPerPage, q.queue, func(page int) string {
		to := q
		to.queue = page
		return to.url() + "#queue"
	})
	for n, w := range i.Waiters {
		if !w.Alive {
			v.Silent++
		}
		if first <= n && n < last {
			v.Waiters = append(v.Waiters, newWaiterView(q, n, w, v.Modes, canBreak))
		}
	}
	return v
}

// setHolders sets the rows of the holders, or of those whose permits return by the clock.
func (v *lockView) setHolders(q lockQuery, i *admin.LockState) {
	var groups []taken.Group
	rows := v.Held
	if v.ByClock {
		groups = taken.ByOwner(i.Holders)
		rows, v.Window = len(groups), exactly(i.Limits.Window)
	}
	var first, last int
	v.HPager, first, last = newPager(rows, rowsPerPage, q.holders, func(page int) string {
		to := q
		to.holders = page
		return to.url() + "#holders"
	})
	if !v.ByClock {
		for _, h := range i.Holders[first:last] {
			v.Holders = append(v.Holders, newHolderView(q, h, v.Modes, v.CanBreak))
		}
		return
	}
	for _, g := range groups[first:last] {
		v.Taken = append(v.Taken, takenView{
			reference("taken", g.Owner, g.Keeper), ownerText(g.Owner, g.Keeper), keeperText(g.Keeper), g.Permits, g.Ahead, g.Requests, duration(g.First), duration(g.Last),
		})
	}
}

// breakable are the holders whose leases can be ended. Permits that return by the clock are not held.
func breakable(i *admin.LockState) []lockkeeper.Holder {
	if i.Limits.ByClock() {
		return nil
	}
	return i.Holders
}

func newHolderView(q lockQuery, h lockkeeper.Holder, modes, canBreak bool) holderView {
	v := holderView{
		ID: holderRef(h), Owner: ownerText(h.Owner, h.Keeper), Keeper: keeperText(h.Keeper), Note: visible(h.Note), Left: expiry(h.ExpiresIn), Never: h.ExpiresIn < 0,
		Fence: h.Fence, Mode: mode(modes, h.Writes), Permits: permits(h.Permits),
	}
	if !h.Since.IsZero() {
		v.Since = instant(h.Since)
	}
	if t, ok := protocol.ParseToken(h.Token); ok && t.TTL > 0 && !v.Never {
		ttl := time.Duration(t.TTL) * time.Millisecond
		if h.Unconfirmed { // it is confirmed in a moment
			ttl = time.Duration(t.ClaimTTL) * time.Millisecond
			v.Unconfirmed = true
		}
		v.TTL = duration(ttl)
		v.Percent = int(min(100, 100*h.ExpiresIn/ttl)) // an extended lease can have more than its ttl
	}
	if canBreak {
		v.Break = q.breakURL(v.ID)
	}
	return v
}

func newWaiterView(q lockQuery, n int, w lockkeeper.Waiter, modes, canBreak bool) waiterView {
	v := waiterView{
		ID: waiterRef(w), Place: n + 1, Owner: ownerText(w.Owner, w.Keeper), Keeper: keeperText(w.Keeper), Note: visible(w.Note), Wait: duration(w.WaitTime),
		Alive: w.Alive, Heartbeat: duration(w.HeartbeatAge), Late: late(w), Mode: mode(modes, w.Writes), Permits: permits(w.Permits),
	}
	if canBreak {
		v.Break = q.breakURL(v.ID)
	}
	return v
}

// late reports whether a waiter has missed a heartbeat but not timed out. By default, three of its heartbeats are due in the time after
// which it times out.
func late(w lockkeeper.Waiter) bool {
	t, _ := protocol.ParseToken(w.Token)
	timeout := time.Duration(t.HeartbeatTimeout()) * time.Millisecond
	return w.Alive && timeout > 0 && w.HeartbeatAge > timeout/2
}

func ownerText(owner, keeper string) text {
	switch {
	case owner != "":
		return visible(owner)
	case keeper == "":
		return visible("another library")
	}
	return visible("unknown")
}

func mode(modes, writes bool) string {
	switch {
	case !modes:
		return ""
	case writes:
		return "write"
	}
	return "read"
}

func permits(n int) string {
	if n == 0 {
		return ""
	}
	return number(n)
}

// lock serves the page of one lock.
func (h *Handler) lock(w http.ResponseWriter, r *http.Request) error {
	q, err := parseLockQuery(r.URL.Query())
	if err != nil {
		return err
	}
	watch, err := h.watches.lock(q.id)
	if err != nil {
		return err
	}
	s := watch.current(r.Context(), patience)
	v := newLockView(q, s, h.opts.Interval, h.mayBreak(r))
	v.frame = h.frame(shortened(q.id.name).String(), q.events())
	h.render(w, http.StatusOK, "lock", v)
	return nil
}
