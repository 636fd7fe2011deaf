// Package lua holds the scripts that make every transition of a lock one atomic step on the server, and the order of
// their arguments and replies.
//
// Each transition (acquire, release, renew, beat) is one file, written once for all primitives; so is inspect, which
// only looks. A primitive is a policy file, which says where its leases lie, who may have one, and when. The scripts are
// put together once, at start-up: prelude, the base of the policy, then the transition, with the other parts at the places
// where it includes them: what the common short way needs comes first, and what it does not, after the place where it
// returns. Functions that a script does not use are left out. So the text of a script, and its SHA, never vary within a
// version.
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
	"sync"
	"unicode"
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
	Kind       string // the primitive's package: "mutex"
	Keys       string // the kind that is part of the names of its keys
	Acquire    *Script
	Release    *Script
	Renew      *Script
	Heartbeat  *Script
	Inspect    *Script
	Limit      *Script // of the semaphore and the rate limit; else nil
	Allow      *Script // of the rate limit alone; else nil
	RaiseFence *Script // of the redlock alone; else nil
	Identity   *Script // likewise
	Complete   *Script // of the mutex, for once; else nil
}

// The primitives.
var (
	Mutex     = assemble("mutex", "complete")
	Fair      = assemble("fair")
	RWLock    = assemble("rwlock")
	Semaphore = assemble("semaphore", "limit")
	Redlock   = under("mutex", assemble("redlock", "raise_fence", "identity"))
	Once      = like(Mutex, "once")
	RateLimit = allowing(like(Semaphore, "ratelimit"))
)

// Sets is all that have scripts of their own, for tests and tools that go over every script. Once has those of the mutex,
// and RateLimit, but for Allow, those of the semaphore.
var Sets = []*Set{Mutex, Fair, RWLock, Semaphore, Redlock}

// Scripts is the scripts of the set, for those who go over all.
func (s *Set) Scripts() []*Script {
	all := []*Script{s.Acquire, s.Release, s.Renew, s.Heartbeat, s.Inspect}
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

// assemble puts a primitive's scripts together; more are the transitions that it alone has.
func assemble(kind string, more ...string) *Set {
	script := func(transition string) *Script {
		a := assembly{kind: kind, have: map[string]bool{}}
		a.include("prelude")
		a.include("policy.base")
		a.include(transition)
		return New(kind+"_"+transition, a.script())
	}
	set := &Set{
		Kind:      kind,
		Keys:      kind,
		Acquire:   script("acquire"),
		Release:   script("release"),
		Renew:     script("renew"),
		Heartbeat: script("heartbeat"),
		Inspect:   script("inspect"),
	}
	if slices.Contains(more, "limit") {
		set.Limit = script("limit")
	}
	if slices.Contains(more, "raise_fence") {
		set.RaiseFence = script("raise_fence")
	}
	if slices.Contains(more, "identity") {
		set.Identity = script("identity")
	}
	if slices.Contains(more, "complete") {
		set.Complete = script("complete")
	}
	return set
}

// under puts the primitive's keys where those of another are, so that its lock is one of that kind too.
func under(kind string, s *Set) *Set {
	s.Keys = kind
	return s
}

// like is a primitive that has the scripts of another, and keys of its own.
func like(s *Set, kind string) *Set {
	c := *s
	c.Kind, c.Keys = kind, kind
	return &c
}

// allowing adds the script that acquires and says what is left of the limit: allow.lua, which calls acquire as a function.
func allowing(s *Set) *Set {
	var text strings.Builder
	for _, p := range parts()["allow"][""] {
		text.WriteString(p.text)
	}
	s.Allow = New(s.Kind+"_allow", "local function acquire()\n"+s.Acquire.Text+"end\n"+text.String())
	return s
}

// piece is a part of a file: a function that does not lie in another, the lines between two of them, or what is to be
// included.
type piece struct {
	function string // its name; "" if it is none
	include  string // the name of what comes here; "" if it is lines
	text     string
	words    map[string]bool // of the text
	locals   []string        // what it declares for all that follows
}

// parts is the files without their comments, each by its parts; what stands before the first is under "".
var parts = sync.OnceValue(func() map[string]map[string][]*piece {
	all := map[string]map[string][]*piece{}
	list, err := files.ReadDir(".")
	if err != nil {
		panic(fmt.Sprintf("bug: lua: %v", err))
	}
	for _, f := range list {
		text, err := files.ReadFile(f.Name())
		if err != nil {
			panic(fmt.Sprintf("bug: lua: %v", err))
		}
		all[strings.TrimSuffix(f.Name(), ".lua")] = cut(string(text))
	}
	return all
})

// cut makes a file's text into parts. A line "-- part: name" begins one, and in place of a line "-- include: name" comes
// another file. A function ends with a line that begins with "end".
func cut(text string) map[string][]*piece {
	cut := map[string][]*piece{}
	part, last := "", &piece{}
	open := false // last is a function that has not ended
	add := func(p *piece) {
		if open {
			panic("bug: lua: " + last.function + " does not end with a line of its own")
		}
		last, open = p, p.function != ""
		cut[part] = append(cut[part], p)
	}
	for line := range strings.Lines(text) {
		code := strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(code, "-- part: "); ok {
			part = name
			add(&piece{})
			continue
		}
		if name, ok := strings.CutPrefix(code, "-- include: "); ok {
			add(&piece{include: name})
			add(&piece{})
			continue
		}
		if code == "" || strings.HasPrefix(code, "--") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "local function "); ok {
			name, _, _ := strings.Cut(rest, "(")
			add(&piece{function: name})
		} else if len(cut[part]) == 0 {
			add(&piece{})
		}
		last.text += code + "\n"
		if rest, ok := strings.CutPrefix(line, "local "); ok {
			rest, _, _ = strings.Cut(strings.TrimPrefix(rest, "function "), "(")
			rest, _, _ = strings.Cut(rest, "=")
			last.locals = append(last.locals, strings.FieldsFunc(rest, notOfWord)...)
		}
		if open && strings.HasPrefix(line, "end") {
			open = false
			add(&piece{})
		}
	}
	add(&piece{})
	for _, list := range cut {
		for _, p := range list {
			p.words = map[string]bool{}
			for word := range strings.FieldsFuncSeq(p.text, notOfWord) {
				p.words[word] = true
			}
		}
	}
	return cut
}

// assembly is a script that is being put together.
type assembly struct {
	kind   string
	have   map[string]bool
	pieces []*piece
}

// include appends a file, and what it includes, unless it is there already. "name.part" is a part of the file; "policy"
// stands for the primitive's own file.
func (a *assembly) include(name string) {
	name, part, _ := strings.Cut(name, ".")
	if name == "policy" {
		name = a.kind
	}
	if a.have[name+"."+part] {
		return
	}
	a.have[name+"."+part] = true
	list := parts()[name][part]
	if list == nil {
		panic(fmt.Sprintf("bug: lua: no part %q in %s.lua", part, name))
	}
	for _, p := range list {
		if p.include != "" {
			a.include(p.include)
		} else {
			a.pieces = append(a.pieces, p)
		}
	}
}

// script is the pieces put together. Scripts make their functions anew in each run, and one that is not called costs as much
// as one that is; so those that nothing names are left out, and the others come as late as they may, where a run that has
// returned before does not make them.
func (a *assembly) script() string {
	a.drop()
	a.sink()
	var text strings.Builder
	for _, p := range a.pieces {
		text.WriteString(p.text)
	}
	return text.String()
}

// drop leaves out the functions that no other piece names.
func (a *assembly) drop() {
	uses := map[string]int{} // in how many pieces a word stands
	for _, p := range a.pieces {
		for word := range p.words {
			uses[word]++
		}
	}
	for dropped := true; dropped; {
		dropped = false
		a.pieces = slices.DeleteFunc(a.pieces, func(p *piece) bool {
			if p.function == "" || uses[p.function] > 1 {
				return false
			}
			for word := range p.words {
				uses[word]--
			}
			dropped = true
			return true
		})
	}
}

// globals is what scripts use of Lua's own and of Redis's.
var globals = []string{
	"ARGV", "KEYS", "ipairs", "math", "next", "pairs", "redis", "select", "string", "tonumber", "type", "unpack",
}

// sink puts each function before the first piece that names it. What it names itself means the same there, because nothing
// is declared twice, nor as a global is.
func (a *assembly) sink() {
	declared := map[string]bool{}
	for _, name := range globals {
		declared[name] = true
	}
	for _, p := range a.pieces {
		for _, name := range p.locals {
			if declared[name] {
				panic(fmt.Sprintf("bug: lua: %s declares %s, which is there already", a.kind, name))
			}
			declared[name] = true
		}
	}
	for i, p := range slices.Backward(a.pieces) {
		if p.function == "" {
			continue
		}
		uses := func(other *piece) bool { return other.words[p.function] }
		if n := slices.IndexFunc(a.pieces[i+1:], uses); n > 0 {
			copy(a.pieces[i:], a.pieces[i+1:i+1+n])
			a.pieces[i+n] = p
		}
	}
}

func notOfWord(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }
