package lua

import (
	"crypto/fips140"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
)

// This file puts the scripts of each primitive together from the Lua files:
//
//   - A file in this folder, such as acquire.lua, is the general case of a transition. It is written once for all primitives.
//   - fast/ has the common case of the hot commands, a flat script for each, which includes constants only.
//   - policy/ has a file or two for each primitive, which says who may have a lease, and when: functions of a fixed contract, which is
//     policy/README.md.
//   - lib/ has the functions and constants that several scripts share.

// Script is one transition of one primitive, or a fast one, ready to be sent.
type Script struct {
	Name string // as in "mutex_acquire" or "mutex_fast_acquire"
	Text string // without comments
	SHA  string // what EVALSHA calls it
	Keys []Key  // what it takes as KEYS

	sha any // SHA, boxed once; nil: not yet
}

// Key is one of the keys of a lock. Those of one name share a cluster slot, and a script accesses no others.
type Key int

// The keys of a lock, by the names that they have in the headers of scripts.
const (
	LockKey       Key = iota // lock: the leases
	MetaKey                  // meta: the last fence and other metadata
	QueueKey                 // queue: the waiters and their heartbeats
	TombstonesKey            // tombstones: the requests that are not granted any more
)

var keyNames = []string{"lock", "meta", "queue", "tombstones"}

// String returns the name of the key in the headers of scripts.
func (k Key) String() string { return keyNames[k] }

// AppendCommand appends the beginning of the EVALSHA command that runs the script on these keys; ARGV is to follow.
func (s *Script) AppendCommand(command []any, keys ...any) []any {
	sha := s.sha
	if sha == nil {
		sha = s.SHA
	}
	command = append(command, "evalsha", sha, len(keys))
	return append(command, keys...)
}

// Set is the scripts of one primitive.
type Set struct {
	Kind      string // the primitive's package: "mutex"
	KeyKind   string // the kind in the names of its keys
	PlainKey  bool   // the lock's own key is prefix + name, shared with other libraries
	OneHolder bool   // the lock's own key is a string, the token of the holder; otherwise it is a zset of leases

	Acquire    *Script
	Release    *Script
	Renew      *Script
	Heartbeat  *Script
	Inspect    *Script
	Break      *Script
	Limit      *Script // only of the semaphore and the rate limit; else nil
	Allow      *Script // only of the rate limit; else nil
	RaiseFence *Script // only of the redlock; else nil
	Identity   *Script // only of the redlock; else nil
	Complete   *Script // only of the mutex, for once; else nil
	Downgrade  *Script // only of the rwlock; else nil

	Fast       Fast // of the semaphore and the rate limit: for permits that are held
	FastWindow Fast // of these: for one permit that returns by the clock; Acquire takes no ttl, and replies what remains as well
	FastBoth   Fast // of these: for permits that are held and return by the clock

	policies []string // its own, and those that this extends
}

// Fast is the scripts of the common cases of a primitive. One that is nil does not exist.
type Fast struct {
	Acquire *Script // grants what is free, or refuses it; queues nobody
	Release *Script // if nobody waits
	HandOn  *Script // releases, and grants the lock to the first waiter
	Renew   *Script // of the lock's key alone; it replies Granted or Refused, never Undecided
}

// The primitives. All is every one of them.
var (
	Mutex     = newSet("mutex")
	Fair      = newSet("fair", "mutex")
	RWLock    = newSet("rwlock", "leases")
	Semaphore = newSet("semaphore", "limits", "window", "leases")
	Redlock   = newSet("redlock", "mutex")
	Once      = like(Mutex, "once")
	RateLimit = like(Semaphore, "ratelimit")

	All = []*Set{Mutex, Fair, RWLock, Semaphore, Redlock, Once, RateLimit}
)

// extends reports whether the set has the policy, as its own or as the one that it extends.
func (s *Set) extends(policy string) bool { return slices.Contains(s.policies, policy) }

// Scripts returns all scripts of the set.
func (s *Set) Scripts() []*Script {
	all := []*Script{s.Acquire, s.Release, s.Renew, s.Heartbeat, s.Inspect, s.Break, s.Limit, s.Allow, s.RaiseFence, s.Identity, s.Complete, s.Downgrade}
	for _, f := range []Fast{s.Fast, s.FastWindow, s.FastBoth} {
		for _, script := range []*Script{f.Acquire, f.Release, f.HandOn, f.Renew} {
			if !slices.Contains(all, script) {
				all = append(all, script)
			}
		}
	}
	return slices.DeleteFunc(all, func(s *Script) bool { return s == nil })
}

// newSet returns the scripts of a primitive that has these policies: its own, and those that this extends.
func newSet(policies ...string) *Set {
	set := &Set{policies: policies, Kind: policies[0], KeyKind: policies[0]}
	set.OneHolder = set.extends("mutex")
	set.Acquire = set.script("acquire")
	set.Release = set.script("release")
	set.Renew = set.script("renew")
	set.Heartbeat = set.script("heartbeat")
	set.Inspect = set.script("inspect")
	set.Break = set.script("break")
	switch set.Kind {
	case "mutex":
		set.PlainKey = true
		set.Complete = set.script("complete")
		set.Fast = set.fasts("mutex_acquire", "mutex_release", "mutex_hand_on", "mutex_renew")
		set.Fast.Acquire.Keys = set.Fast.Acquire.Keys[:2] // it does not look at the queue
	case "fair":
		set.Fast = set.fasts("mutex_acquire", "mutex_release", "mutex_hand_on", "mutex_renew")
	case "redlock":
		set.KeyKind, set.PlainKey = "mutex", true // at each server it is a mutex
		set.RaiseFence, set.Identity = set.script("raise_fence"), set.script("identity")
		set.Fast = Fast{Release: set.fast("mutex_release"), Renew: set.fast("mutex_renew")} // it never waits
	case "rwlock":
		set.Downgrade = set.script("downgrade")
		set.Fast = set.fasts("rwlock_acquire", "rwlock_release", "rwlock_hand_on", "leases_renew")
	case "semaphore":
		set.Limit = set.script("limit")
		set.Fast = set.fasts("semaphore_acquire", "semaphore_release", "semaphore_hand_on", "leases_renew")
		set.FastWindow = Fast{Acquire: set.fast("window_acquire"), Renew: set.Fast.Renew}
		set.FastBoth = Fast{Acquire: set.fast("both_acquire"), Renew: set.Fast.Renew}
	}
	return set
}

// script is the general script of a transition.
func (s *Set) script(transition string) *Script {
	return s.assemble(transition, transition+".lua")
}

func (s *Set) fasts(acquire, release, handOn, renew string) Fast {
	return Fast{Acquire: s.fast(acquire), Release: s.fast(release), HandOn: s.fast(handOn), Renew: s.fast(renew)}
}

// fast is the script of a common case, such as "mutex_fast_acquire".
func (s *Set) fast(name string) *Script {
	of, transition, _ := strings.Cut(name, "_")
	if of == "window" || of == "both" {
		transition = name
	}
	return s.assemble("fast_"+transition, "fast/"+name+".lua")
}

func (s *Set) assemble(transition, path string) *Script {
	text := assemble(s.policies, path).text.String()
	var sum [sha1.Size]byte
	fips140.WithoutEnforcement(func() { sum = sha1.Sum([]byte(text)) }) // because it is what Redis names scripts by, and secures nothing
	sha := hex.EncodeToString(sum[:])
	return &Script{Name: s.Kind + "_" + transition, Text: text, SHA: sha, Keys: open(path).keys, sha: sha}
}

// like is a primitive that has the scripts of another, and keys of its own. Where it shares a script, it shares its SHA.
func like(s *Set, kind string) *Set {
	c := *s
	c.Kind, c.KeyKind, c.PlainKey = kind, kind, false
	if kind == "ratelimit" {
		c.Allow = c.script("allow")
	}
	return &c
}
