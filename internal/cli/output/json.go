package output

import (
	"encoding/json"
	"io"
	"time"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

// The types of this file are what --json writes. Their field names are documented in the help of ls and show, and do not change within
// a major version. Durations are integers in milliseconds.

// Lock identifies a lock.
type Lock struct {
	Kind lockkeeper.Kind `json:"kind"`
	Name string          `json:"name"`
	// Bytes is the name in base64 if it is not valid UTF-8, which JSON cannot represent.
	Bytes []byte `json:"name_base64,omitempty"`
}

// Entry is a line of ls and top.
type Entry struct {
	Lock
	Holders       int   `json:"holders"`
	Waiters       int   `json:"waiters"`
	ExpiresInMS   int64 `json:"expires_in_ms"` // -1: never
	LongestWaitMS int64 `json:"longest_wait_ms"`
}

// Holder is a lease.
type Holder struct {
	Token       string     `json:"token"`
	Keeper      string     `json:"keeper"`
	Owner       string     `json:"owner"`
	Since       *time.Time `json:"since,omitempty"`
	Fence       uint64     `json:"fence"`
	ExpiresInMS int64      `json:"expires_in_ms"` // -1: never
	Permits     int        `json:"permits,omitempty"`
	Mode        string     `json:"mode,omitempty"` // read or write, of a read-write lock
	Ahead       bool       `json:"ahead,omitempty"`
	Note        string     `json:"note,omitempty"`
}

// Waiter is a queued request.
type Waiter struct {
	Token     string `json:"token"`
	Keeper    string `json:"keeper"`
	Owner     string `json:"owner"`
	WaitMS    int64  `json:"wait_ms"`
	Alive     bool   `json:"alive"`
	Permits   int    `json:"permits,omitempty"`
	Mode      string `json:"mode,omitempty"`
	Note      string `json:"note,omitempty"`
	BlockedBy string `json:"blocked_by,omitempty"` // for people

	HeartbeatAgeMS int64 `json:"heartbeat_age_ms"`
}

// Limits are those of a semaphore or rate limit.
type Limits struct {
	Limit         int   `json:"limit"`
	Used          int   `json:"used"`
	WindowMS      int64 `json:"window_ms,omitempty"`
	MaxConcurrent int   `json:"max_concurrent,omitempty"`
	Held          int   `json:"held,omitempty"`
	PausedForMS   int64 `json:"paused_for_ms,omitempty"`
}

// Inspection is the state of one lock.
type Inspection struct {
	Lock
	Fence   uint64   `json:"fence"`
	Limits  *Limits  `json:"limits,omitempty"`
	Holders []Holder `json:"holders"`
	Waiters []Waiter `json:"waiters"`

	RunAgainInMS int64 `json:"run_again_in_ms,omitempty"` // of a job that has succeeded
}

// NewLock returns the JSON form of a kind and name.
func NewLock(kind lockkeeper.Kind, name string) Lock {
	l := Lock{Kind: kind, Name: name}
	if !utf8.ValidString(name) {
		l.Bytes = []byte(name)
	}
	return l
}

// NewEntry returns the JSON form of e.
func NewEntry(e admin.LockSummary) Entry {
	return Entry{NewLock(e.Kind, e.Name), e.Holders, e.Waiters, expiryMS(e.ExpiresIn), e.LongestWait.Milliseconds()}
}

// NewInspection returns the JSON form of i.
func NewInspection(i *admin.LockState) Inspection {
	r := Inspection{Lock: NewLock(i.Kind, i.Name), Fence: i.Fence, Holders: NewHolders(i.Kind, i.Holders), Waiters: NewWaiters(i.Kind, i.Waiters)}
	r.RunAgainInMS = i.RunAgainIn.Milliseconds()
	for n, text := range BlockedBy(i) {
		r.Waiters[n].BlockedBy = text
	}
	if l := i.Limits; l != nil {
		r.Limits = &Limits{l.Limit, l.Used, l.Window.Milliseconds(), l.MaxConcurrent, l.Held, l.PausedFor.Milliseconds()}
	}
	return r
}

// NewHolders returns the JSON form of the holders of a lock; never nil.
func NewHolders(kind lockkeeper.Kind, list []lockkeeper.Holder) []Holder {
	all := make([]Holder, len(list))
	for i, h := range list {
		all[i] = Holder{h.Token, h.Keeper, h.Owner, nil, h.Fence, expiryMS(h.ExpiresIn), h.Permits, Mode(kind, h.Writes), h.Ahead, h.Note}
		if !h.Since.IsZero() {
			since := h.Since.UTC()
			all[i].Since = &since
		}
	}
	return all
}

// NewWaiters returns the JSON form of the waiters for a lock; never nil.
func NewWaiters(kind lockkeeper.Kind, list []lockkeeper.Waiter) []Waiter {
	all := make([]Waiter, len(list))
	for i, w := range list {
		all[i] = Waiter{w.Token, w.Keeper, w.Owner, w.WaitTime.Milliseconds(), w.Alive, w.Permits, Mode(kind, w.Writes), w.Note, "", w.HeartbeatAge.Milliseconds()}
	}
	return all
}

// Mode is "read" or "write" of a read-write lock, and "" of another lock.
func Mode(kind lockkeeper.Kind, writes bool) string {
	switch {
	case kind != rwlock.Kind:
		return ""
	case writes:
		return "write"
	}
	return "read"
}

func expiryMS(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

// JSON writes a value as one line.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
