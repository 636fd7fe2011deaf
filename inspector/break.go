package inspector

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// maxReason is the maximum length of the reason for a break, in bytes.
const maxReason = 200

// mayBreak reports whether the user may break locks.
func (h *Handler) mayBreak(r *http.Request) bool {
	if h.opts.AllowBreak == nil {
		return false
	}
	_, err := h.opts.AllowBreak(r)
	return err == nil
}

// breakView is the data of the pages on which a lock is broken: the one that asks, and the one that says what was done.
type breakView struct {
	frame
	query   lockQuery
	Name    text
	Kind    lockkeeper.Kind
	Lock    string // URL of the lock's page
	Form    string // URL that the form is sent to
	What    string // what is done, as in "End 1 lease"
	Holders []holderView
	Waiters []waiterView
	More    int // how many more there are
	Modes   bool
	Permits bool

	Reason string // as it was entered
	Error  string // what is wrong with the form
	User   text

	Result     string // what was done; "" on the page that asks
	Unnotified int    // of those that were ended, how many were not notified
	Lasts      string // the longest remaining lease of those
}

// breakLock serves the page that asks whether a lock is to be broken (GET), and breaks it (POST).
func (h *Handler) breakLock(w http.ResponseWriter, r *http.Request) error {
	if h.opts.AllowBreak == nil {
		return &refused{http.StatusForbidden, errors.New("locks cannot be broken here: these pages are read-only")}
	}
	q, err := parseLockQuery(r.URL.Query())
	if err != nil {
		return err
	}
	log := h.opts.Logger.With("kind", q.id.kind, "name", q.id.name, "remote", r.RemoteAddr)
	user, err := h.opts.AllowBreak(r)
	if err == nil {
		err = h.origin.Check(r)
	}
	if err != nil {
		log.Warn("inspector: breaking a lock was refused", "method", r.Method, "err", err)
		return &refused{http.StatusForbidden, err}
	}
	ctx, cancel := context.WithTimeout(r.Context(), lockTimeout)
	defer cancel()
	i, err := h.watches.source.inspect(ctx, q.id)
	if err != nil {
		return err
	}
	what := r.URL.Query().Get("what")
	opts, err := target(i, what)
	if err != nil {
		return err
	}
	v := newBreakView(q)
	v.setEnded(breakable(i), i.Waiters, what)
	v.frame, v.User = h.frame("Break", ""), visible(user)
	if r.Method != http.MethodPost {
		h.render(w, http.StatusOK, "break", v)
		return nil
	}
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	if err := r.ParseForm(); err != nil {
		return badRequest("the form cannot be read: %w", err)
	}
	v.Reason = strings.TrimSpace(r.PostForm.Get("reason"))
	if v.Error = checkReason(v.Reason); v.Error != "" {
		h.render(w, http.StatusBadRequest, "break", v)
		return nil
	}
	opts.Reason, opts.By = v.Reason, user
	// Once it is sent, a browser that goes away does not matter: the log must say what was done.
	broken, err := h.watches.source.breakLock(context.WithoutCancel(ctx), q.id, opts)
	if err != nil {
		log.Error("inspector: a lock could not be broken", "by", user, "reason", v.Reason, "what", v.What, "ended", ended(broken), "err", err)
		return err
	}
	log.Warn("inspector: a lock was broken", "by", user, "reason", v.Reason, "holders", len(broken.Holders), "waiters", len(broken.Waiters),
		"notified", broken.Notified)
	v.setResult(broken)
	h.render(w, http.StatusOK, "broken", v)
	return nil
}

// target returns what a reference of a page stands for.
func target(i *admin.LockState, what string) (admin.BreakOptions, error) {
	if what == "all" {
		switch {
		case len(breakable(i))+len(i.Waiters) > 0:
			return admin.BreakOptions{All: true}, nil
		case len(i.Holders) > 0:
			return admin.BreakOptions{}, &refused{http.StatusConflict, errors.New("nobody waits, and permits that return by the clock cannot be ended: nothing was changed")}
		}
		return admin.BreakOptions{}, &refused{http.StatusConflict, errors.New("nobody holds the lock any more, and nobody waits for it: nothing was changed")}
	}
	for _, h := range breakable(i) {
		if holderRef(h) == what {
			return admin.BreakOptions{Token: h.Token}, nil
		}
	}
	for _, w := range i.Waiters {
		if waiterRef(w) == what {
			return admin.BreakOptions{Token: w.Token}, nil
		}
	}
	return admin.BreakOptions{}, &refused{http.StatusConflict, errors.New("this lease or request has ended in the meantime: nothing was changed")}
}

func checkReason(reason string) string {
	switch {
	case reason == "":
		return "Enter a reason: holders and the log are told."
	case len(reason) > maxReason:
		return "The reason is longer than 200 bytes."
	case !utf8.ValidString(reason) || visible(reason).String() != reason:
		return "The reason has characters that cannot be printed."
	}
	return ""
}

// ended is how many leases and requests were ended, of a break that may have failed on the way.
func ended(b *admin.BreakResult) int {
	if b == nil {
		return 0
	}
	return len(b.Holders) + len(b.Waiters)
}

// maxListed is how many of those that are ended a page lists.
const maxListed = 10

func newBreakView(q lockQuery) breakView {
	return breakView{
		query: q, Name: visible(q.id.name), Kind: q.id.kind, Lock: q.url(),
		Modes: q.id.kind == rwlock.Kind, Permits: q.id.kind == semaphore.Kind || q.id.kind == ratelimit.Kind,
	}
}

// setEnded sets which of some holders and waiters are, or were, ended: what is a reference, or "all".
func (v *breakView) setEnded(all []lockkeeper.Holder, queue []lockkeeper.Waiter, what string) {
	v.Form = v.query.breakURL(what)
	v.Holders, v.Waiters = nil, nil
	holders, waiters := 0, 0
	for _, h := range all {
		if what == "all" || holderRef(h) == what {
			holders++
			if len(v.Holders) < maxListed {
				v.Holders = append(v.Holders, newHolderView(v.query, h, v.Modes, false))
			}
		}
	}
	for n, w := range queue {
		if what == "all" || waiterRef(w) == what {
			waiters++
			if len(v.Waiters) < maxListed {
				v.Waiters = append(v.Waiters, newWaiterView(v.query, n, w, v.Modes, false))
			}
		}
	}
	v.What = action(holders, waiters)
	v.More = holders + waiters - len(v.Holders) - len(v.Waiters)
}

// action says what a break does to a number of leases and of waiters.
func action(holders, waiters int) string {
	h, w := count(holders, "lease", "leases"), count(waiters, "waiter", "waiters")
	switch {
	case waiters == 0:
		return "End " + h
	case holders == 0:
		return "Remove " + w
	}
	return "End " + h + " and remove " + w
}

// setResult sets what is shown after a break.
func (v *breakView) setResult(b *admin.BreakResult) {
	v.setEnded(b.Holders, b.Waiters, "all") // what had ended by itself meanwhile is not among them
	for i := range v.Waiters {
		v.Waiters[i].Place = 0 // it has none any more
	}
	holders, waiters := len(b.Holders), len(b.Waiters)
	v.Unnotified = max(0, holders+waiters-b.Notified)
	switch {
	case holders+waiters == 0:
		v.Result = "It had ended already. Nothing was changed."
	case waiters == 0:
		v.Result = "Ended " + count(holders, "lease", "leases") + "."
	case holders == 0:
		v.Result = "Removed " + count(waiters, "waiter", "waiters") + " from the queue."
	default:
		v.Result = "Ended " + count(holders, "lease", "leases") + ", and removed " + count(waiters, "waiter", "waiters") + " from the queue."
	}
	for _, h := range b.Holders {
		if h.ExpiresIn < 0 {
			v.Lasts = "until its process notices by itself: its lease never expires"
			return
		}
	}
	if longest := longestLeft(b.Holders); longest > 0 {
		v.Lasts = "for up to " + duration(longest)
	}
}

func longestLeft(holders []lockkeeper.Holder) (d time.Duration) {
	for _, h := range holders {
		d = max(d, h.ExpiresIn)
	}
	return d
}
