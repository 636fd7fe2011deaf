// Package lua holds the scripts that make every transition of a lock one atomic step on the server, and the codes of their
// replies. Package protocol encodes their arguments and decodes their replies.
//
//   - A file in this folder, such as acquire.lua, is the general case of a transition. It is written once for all primitives.
//   - fast/ has the common case of the hot commands, a flat script for each, which includes constants only. Such a script
//     decides, or replies UNDECIDED and has written nothing; then the general script has to be sent.
//   - policy/ has a file or two for each primitive, which says who may have a lease, and when: functions of a fixed contract, which is
//     policy/README.md.
//   - lib/ has the functions and constants that several scripts share.
//
// A file names at its top what it uses: "-- include: lib/queue" makes the functions and constants of that file known, and
// "-- include: policy/KIND" those of the primitive's policy, and of the one that it extends, where its own does not define them. A
// script is put together once, at start-up. A run creates each function of its script up to the place where it returns, at a third of
// the price of a call to Redis. So a script has what it uses and no more, and each function stands in front of the first
// statement of the script that needs it.
//
// A script accesses only the keys that it is given, and those of one name share a cluster slot.
package lua

import (
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
)

// Script is one transition of one primitive, or a fast one, ready to be sent.
type Script struct {
	Name string // as in "mutex_acquire"
	Text string
	SHA  string // what EVALSHA calls it
	Keys []Key  // what it takes as KEYS

	head [2]any // of the command
}

// Key is one of the keys of a lock.
type Key int

// The keys of a lock, by the names that they have in the headers of scripts.
const (
	LockKey       Key = iota // lock
	MetaKey                  // meta
	QueueKey                 // queue
	TombstonesKey            // tombstones
)

var keyNames = []string{"lock", "meta", "queue", "tombstones"}

// New is a script of a text.
func New(name, text string, keys ...Key) *Script {
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &Script{name, text, sha, keys, [2]any{"evalsha", sha}}
}

// AppendCommand appends the beginning of the command that runs the script on these keys; ARGV is to follow.
func (s *Script) AppendCommand(command []any, keys ...any) []any {
	command = append(command, s.head[0], s.head[1], len(keys))
	return append(command, keys...)
}

// Set is the scripts of one primitive.
type Set struct {
	Kind     string // the primitive's package: "mutex"
	KeyKind  string // the kind in the names of its keys
	PlainKey bool   // the lock's own key is prefix + name, shared with other libraries

	Acquire    *Script
	Release    *Script
	Renew      *Script
	Shorten    *Script
	Heartbeat  *Script
	Inspect    *Script
	Break      *Script
	Limit      *Script // only of the semaphore and the rate limit; else nil
	Allow      *Script // only of the rate limit; else nil
	RaiseFence *Script // only of the redlock; else nil
	Identity   *Script // only of the redlock; else nil
	Complete   *Script // only of the mutex, for once; else nil

	// Fast is the scripts of the common cases; of the semaphore and the rate limit, those for permits that are held. See FastFor.
	Fast, fastWindow, fastBoth Fast

	policies []string // its own, and those that this extends
}

// Fast is the scripts of the common cases. One that is nil does not exist.
type Fast struct {
	Acquire *Script
	Release *Script
	HandOn  *Script
	Renew   *Script

	TakesLimits bool // Acquire takes the limits
	OfWindow    bool // Acquire is window_acquire.lua, which takes one permit and no ttl, and replies what remains as well
}

// FastFor returns the scripts of the common cases for requests with that policy_arg, which is the limits of a semaphore or a rate limit.
func (s *Set) FastFor(policyArg string) *Fast {
	if s.Limit != nil {
		atOnce, rest, _ := strings.Cut(policyArg, ":")
		switch window, _, _ := strings.Cut(rest, ":"); {
		case atOnce == "0":
			return &s.fastWindow
		case window != "0":
			return &s.fastBoth
		}
	}
	return &s.Fast
}

// The primitives, each with the policies that it is made of: its own, and the one that this extends.
var (
	Mutex     = newSet("mutex")
	Fair      = newSet("fair", "mutex")
	RWLock    = newSet("rwlock", "leases")
	Semaphore = newSet("semaphore", "limits", "window", "leases")
	Redlock   = newSet("redlock", "mutex")
	Once      = like(Mutex, "once")
	RateLimit = like(Semaphore, "ratelimit")
)

// Sets is the primitives that have a policy of their own; All is those too that have the scripts of another. Everything that
// goes over the kinds of locks is derived from these.
var (
	Sets = []*Set{Mutex, Fair, RWLock, Semaphore, Redlock}
	All  = append(slices.Clone(Sets), Once, RateLimit)
)

// Extends reports whether the set has the policy, as its own or as the one that it extends.
func (s *Set) Extends(policy string) bool { return slices.Contains(s.policies, policy) }

// Scripts is all scripts of the set.
func (s *Set) Scripts() []*Script {
	all := []*Script{s.Acquire, s.Release, s.Renew, s.Shorten, s.Heartbeat, s.Inspect, s.Break, s.Limit, s.Allow, s.RaiseFence, s.Identity, s.Complete}
	for _, f := range []Fast{s.Fast, s.fastWindow, s.fastBoth} {
		for _, script := range []*Script{f.Acquire, f.Release, f.HandOn, f.Renew} {
			if !slices.Contains(all, script) {
				all = append(all, script)
			}
		}
	}
	return slices.DeleteFunc(all, func(s *Script) bool { return s == nil })
}

func newSet(policies ...string) *Set {
	set := &Set{policies: policies, Kind: policies[0], KeyKind: policies[0]}
	set.Acquire = set.script("acquire")
	set.Release = set.script("release")
	set.Renew = set.script("renew")
	set.Shorten = set.script("shorten")
	set.Heartbeat = set.script("heartbeat")
	set.Inspect = set.script("inspect")
	set.Break = set.script("break")
	switch set.Kind {
	case "mutex":
		set.PlainKey = true
		set.Complete = set.script("complete")
		set.Fast = set.fasts("mutex_acquire", "mutex_release", "mutex_hand_on", "mutex_renew")
	case "fair":
		set.Fast = set.fasts("fair_acquire", "mutex_release", "mutex_hand_on", "mutex_renew")
	case "redlock":
		set.KeyKind, set.PlainKey = "mutex", true // at each server it is a mutex
		set.RaiseFence, set.Identity = set.script("raise_fence"), set.script("identity")
		set.Fast = Fast{Release: set.fast("mutex_release"), Renew: set.fast("mutex_renew")} // it never waits
	case "rwlock":
		set.Fast = set.fasts("rwlock_acquire", "rwlock_release", "rwlock_hand_on", "leases_renew")
	case "semaphore":
		set.Limit = set.script("limit")
		set.Fast = set.fasts("semaphore_acquire", "semaphore_release", "semaphore_hand_on", "leases_renew")
		set.fastWindow = Fast{Acquire: set.fast("window_acquire"), Renew: set.Fast.Renew, OfWindow: true}
		set.fastBoth = Fast{Acquire: set.fast("both_acquire"), Renew: set.Fast.Renew}
		set.Fast.TakesLimits, set.fastWindow.TakesLimits, set.fastBoth.TakesLimits = true, true, true
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
	return New(s.Kind+"_"+transition, assemble(s.policies, path).text.String(), open(path).keys...)
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
