// Package lua holds the scripts that make every transition of a lock one atomic step on the server, and the order of
// their arguments and replies.
//
// Each transition (acquire, release, renew, beat) is one file, written once for all primitives; so is inspect, which
// only looks. A primitive is a policy file, which says where its leases lie, who may have one, and when. The scripts are put together once, at
// start-up: prelude, the base of the policy, then the transition, with the other parts at the places where it includes them: what the common
// short way needs comes first, and what it does not, after the place where it returns. So the text of a script, and
// its SHA, never vary within a version.
//
// A script touches only the keys that it is given, and those of one name share a cluster slot.
package lua

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

//go:embed *.lua
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
	Kind    string // the primitive's package: "mutex"
	Keys    string // the kind that is part of the names of its keys
	Acquire *Script
	Release *Script
	Renew   *Script
	Beat    *Script
	Inspect *Script
	Limit   *Script // of the semaphore alone; else nil
	Affirm  *Script // of the redlock alone; else nil
}

// The primitives.
var (
	Mutex     = assemble("mutex")
	Fair      = assemble("fair")
	RWLock    = assemble("rwlock")
	Semaphore = assemble("semaphore", "limit")
	Redlock   = under("mutex", assemble("redlock", "affirm"))
)

// Sets is all of them, for tests and tools that go over every script.
var Sets = []*Set{Mutex, Fair, RWLock, Semaphore, Redlock}

// Scripts is the scripts of the set, for those who go over all.
func (s *Set) Scripts() []*Script {
	all := []*Script{s.Acquire, s.Release, s.Renew, s.Beat, s.Inspect}
	if s.Limit != nil {
		all = append(all, s.Limit)
	}
	if s.Affirm != nil {
		all = append(all, s.Affirm)
	}
	return all
}

// assemble puts a primitive's scripts together; more are the transitions that it alone has.
func assemble(kind string, more ...string) *Set {
	script := func(transition string) *Script {
		a := assembly{kind: kind, have: map[string]bool{}}
		a.include("prelude")
		a.include("policy.base")
		a.include(transition)
		return New(kind+"_"+transition, a.text.String())
	}
	set := &Set{
		Kind:    kind,
		Keys:    kind,
		Acquire: script("acquire"),
		Release: script("release"),
		Renew:   script("renew"),
		Beat:    script("beat"),
		Inspect: script("inspect"),
	}
	if slices.Contains(more, "limit") {
		set.Limit = script("limit")
	}
	if slices.Contains(more, "affirm") {
		set.Affirm = script("affirm")
	}
	return set
}

// under puts the primitive's keys where those of another are, so that its lock is one of that kind too.
func under(kind string, s *Set) *Set {
	s.Keys = kind
	return s
}

// assembly is a script that is being put together.
type assembly struct {
	kind string
	have map[string]bool
	text strings.Builder
}

// include appends a file without its comments, and in place of each line "-- include: name" the file of that name,
// unless it is there already. "name.part" is a part of the file, from a line "-- part: part" to the next such line;
// "policy" stands for the primitive's own file.
func (a *assembly) include(name string) {
	name, part, _ := strings.Cut(name, ".")
	if name == "policy" {
		name = a.kind
	}
	if a.have[name+"."+part] {
		return
	}
	a.have[name+"."+part] = true
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(fmt.Sprintf("bug: lua: no file %s.lua: %v", name, err))
	}
	in := part == ""
	found := in
	for line := range strings.Lines(string(text)) {
		code := strings.TrimSpace(line)
		if p, ok := strings.CutPrefix(code, "-- part: "); ok {
			in = p == part
			found = found || in
			continue
		}
		if !in {
			continue
		}
		if other, ok := strings.CutPrefix(code, "-- include: "); ok {
			a.include(other)
			continue
		}
		if code == "" || strings.HasPrefix(code, "--") {
			continue
		}
		a.text.WriteString(code)
		a.text.WriteByte('\n')
	}
	if !found {
		panic(fmt.Sprintf("bug: lua: no part %s in %s.lua", part, name))
	}
}
