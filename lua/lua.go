// Package lua holds the scripts that make every transition of a lock one atomic step on the server, and the codes of their
// replies. Package protocol encodes their arguments and decodes their replies.
//
//   - A transition is a file in this folder, such as acquire.lua. It is written once for all primitives.
//   - policy/ has a folder for each primitive, which says who may have a lease, and when; policy/README.md says what it has to
//     define.
//   - lib/ has what several transitions share.
//
// A script is a transition for one primitive. It is put together once, at start-up, by including text: a line
// "-- include: lib/clock" stands for that file, where it has not been included before, and "-- include: policy/KIND/place"
// for the file of the primitive, or of the policy that it extends. "-- inline: lib/listens" stands for that file each time. A
// run creates each function of its script up to the place where it returns, at a third of the price of a call to Redis. So a file
// includes what it needs and no more: the parts of the common path first, and the others after the place where that returns.
//
// A script accesses only the keys that it is given, and those of one name share a cluster slot.
package lua

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed *.lua lib/*.lua policy/*/*.lua
var files embed.FS

// Script is one transition of one primitive, ready to be sent.
type Script struct {
	Name string // as in "mutex_acquire"
	Text string
	SHA  string // what EVALSHA calls it

	head [2]any // of the command
}

// New is a script of a text.
func New(name, text string) *Script {
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &Script{name, text, sha, [2]any{"evalsha", sha}}
}

// AppendCommand appends the beginning of the command that runs the script on these keys; ARGV is to follow.
func (s *Script) AppendCommand(command []any, keys ...any) []any {
	command = append(command, s.head[0], s.head[1], len(keys))
	return append(command, keys...)
}

// Set is the scripts of one primitive.
type Set struct {
	Kind       string // the primitive's package: "mutex"
	KeyKind    string // the kind in the names of its keys
	PlainKey   bool   // the lock's own key is prefix + name, shared with other libraries
	ShortKeys  int    // how many keys the short form of Acquire takes; 0: it has none
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

	policies []string // its own, and the one that this extends
}

// The primitives, each with the policies that it is made of: its own, and the one that this extends.
var (
	Mutex     = newSet("mutex")
	Fair      = newSet("fair", "mutex")
	RWLock    = newSet("rwlock", "leases")
	Semaphore = newSet("semaphore", "leases")
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
	all := []*Script{s.Acquire, s.Release, s.Renew, s.Heartbeat, s.Inspect, s.Break}
	if s.Limit != nil {
		all = append(all, s.Limit)
	}
	if s.Allow != nil {
		all = append(all, s.Allow)
	}
	if s.RaiseFence != nil {
		all = append(all, s.RaiseFence)
	}
	if s.Identity != nil {
		all = append(all, s.Identity)
	}
	if s.Complete != nil {
		all = append(all, s.Complete)
	}
	return all
}

func newSet(policies ...string) *Set {
	set := &Set{policies: policies, Kind: policies[0], KeyKind: policies[0]}
	set.ShortKeys = 3
	set.Acquire = set.script("acquire")
	set.Release = set.script("release")
	set.Renew = set.script("renew")
	set.Heartbeat = set.script("heartbeat")
	set.Inspect = set.script("inspect")
	set.Break = set.script("break")
	switch set.Kind {
	case "mutex":
		set.ShortKeys, set.PlainKey = 2, true
		set.Complete = set.script("complete")
	case "semaphore":
		set.Limit = set.script("limit")
	case "redlock":
		set.KeyKind, set.PlainKey, set.ShortKeys = "mutex", true, 0 // at each server it is a mutex
		set.RaiseFence, set.Identity = set.script("raise_fence"), set.script("identity")
	}
	return set
}

func (s *Set) script(transition string) *Script {
	return New(s.Kind+"_"+transition, assemble(s.policies, transition).text.String())
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

// source is the text of a script that is being put together.
type source struct {
	policies []string
	included map[string]bool // by path; false: only where "inline" names it
	text     strings.Builder
}

// assemble puts a transition of a primitive together.
func assemble(policies []string, transition string) *source {
	s := &source{policies: policies, included: map[string]bool{}}
	s.include("lib/prelude")
	s.include(transition)
	return s
}

// include appends a file that has not been included before.
func (s *source) include(name string) {
	if path := s.path(name); !s.included[path] {
		s.included[path] = true
		s.appendFile(path)
	}
}

// inline appends a file wherever it is named.
func (s *source) inline(name string) {
	path := s.path(name)
	if !s.included[path] {
		s.included[path] = false
	}
	s.appendFile(path)
}

// appendFile appends a file without its comments and indentation, and at their places those that it includes.
func (s *source) appendFile(path string) {
	text, err := files.ReadFile(path)
	if err != nil {
		panic(fmt.Sprintf("bug: lua: %v", err))
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, found := strings.CutPrefix(line, "-- include: "); found {
			s.include(name)
		} else if name, found := strings.CutPrefix(line, "-- inline: "); found {
			s.inline(name)
		} else if line != "" && !strings.HasPrefix(line, "--") {
			s.text.WriteString(line + "\n")
		}
	}
}

// path is the file that an included name stands for.
func (s *source) path(name string) string {
	part, found := strings.CutPrefix(name, "policy/KIND/")
	if !found {
		return name + ".lua"
	}
	for _, policy := range s.policies {
		path := "policy/" + policy + "/" + part + ".lua"
		if _, err := fs.Stat(files, path); err == nil {
			return path
		}
	}
	panic(fmt.Sprintf("bug: lua: the policy %s has no %s", s.policies[0], part))
}
