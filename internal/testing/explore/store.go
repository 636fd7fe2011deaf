package explore

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// store is a Redis server in memory with the commands that the scripts use. It is small, so that it can be copied and compared as a
// whole. A test compares it with a real server.
type store struct {
	now  int64             // its clock, in ms; set before each script
	keys map[string]*value // without expired ones, after expire
}

// value is a key's value: a string, a hash or a sorted set.
type value struct {
	text    string
	fields  []field  // sorted by name
	members []member // sorted by score, then by name
	expires int64    // ms by the server's clock; 0: never
}

type field struct{ name, text string }

type member struct {
	score float64
	name  string
}

// status is a status reply, and failure an error reply.
type (
	status  string
	failure string
)

func (s *store) clone() *store {
	c := &store{now: s.now, keys: make(map[string]*value, len(s.keys))}
	for name, v := range s.keys {
		c.keys[name] = &value{v.text, slices.Clone(v.fields), slices.Clone(v.members), v.expires}
	}
	return c
}

func (s *store) expire() {
	for name, v := range s.keys {
		if v.expires != 0 && v.expires <= s.now {
			delete(s.keys, name)
		}
	}
}

// String returns all data in one order, so that equal stores have equal texts.
func (s *store) String() string {
	names := make([]string, 0, len(s.keys))
	for name := range s.keys {
		names = append(names, name)
	}
	slices.Sort(names)
	var b strings.Builder
	for _, name := range names {
		v := s.keys[name]
		fmt.Fprintf(&b, "%s until %d: %q", name, v.expires, v.text)
		for _, f := range v.fields {
			fmt.Fprintf(&b, " %s=%s", f.name, f.text)
		}
		for _, m := range v.members {
			fmt.Fprintf(&b, " %s@%s", m.name, number(m.score))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// number formats a score or a Lua number as Redis does.
func number(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e17 {
		return strconv.FormatInt(int64(f), 10)
	}
	return strconv.FormatFloat(f, 'g', 17, 64)
}

func (s *store) get(key string) *value {
	if v := s.keys[key]; v != nil {
		return v
	}
	return &value{}
}

func (s *store) make(key string) *value {
	v := s.keys[key]
	if v == nil {
		v = &value{}
		s.keys[key] = v
	}
	return v
}

func (v *value) field(name string) (int, bool) {
	return slices.BinarySearchFunc(v.fields, name, func(f field, name string) int { return strings.Compare(f.name, name) })
}

func (v *value) hget(name string) any {
	if i, found := v.field(name); found {
		return v.fields[i].text
	}
	return nil
}

func (v *value) member(name string) int {
	return slices.IndexFunc(v.members, func(m member) bool { return m.name == name })
}

func (v *value) zscore(name string) any {
	if i := v.member(name); i >= 0 {
		return number(v.members[i].score)
	}
	return nil
}

func (s *store) removeIfEmpty(key string) {
	if v := s.keys[key]; v != nil && len(v.fields) == 0 && len(v.members) == 0 {
		delete(s.keys, key)
	}
}

// run runs a command. The reply is nil, an int64, a string, a status, a failure or a []any.
func (s *store) run(args []string) any {
	command := strings.ToUpper(args[0])
	if command == "TIME" {
		return []any{strconv.FormatInt(s.now/1000, 10), strconv.FormatInt(s.now%1000*1000, 10)}
	}
	key, rest := args[1], args[2:]
	switch command {
	case "GET":
		if v := s.keys[key]; v != nil {
			return v.text
		}
		return nil
	case "SET":
		return s.set(key, rest)
	case "DEL":
		n := s.count(args[1:])
		for _, key := range args[1:] {
			delete(s.keys, key)
		}
		return n
	case "EXISTS":
		return s.count(args[1:])
	case "PTTL", "PEXPIRETIME":
		v := s.keys[key]
		switch {
		case v == nil:
			return int64(-2)
		case v.expires == 0:
			return int64(-1)
		case command == "PTTL":
			return v.expires - s.now
		}
		return v.expires
	case "PEXPIRE":
		return s.pexpire(key, rest)
	case "HGET":
		return s.get(key).hget(rest[0])
	case "HMGET":
		return each(rest, s.get(key).hget)
	case "HSET":
		v, added := s.make(key), int64(0)
		for pair := range slices.Chunk(rest, 2) {
			i, found := v.field(pair[0])
			if found {
				v.fields[i].text = pair[1]
			} else {
				v.fields = slices.Insert(v.fields, i, field{pair[0], pair[1]})
				added++
			}
		}
		return added
	case "HDEL":
		removed := int64(0)
		for _, name := range rest {
			if i, found := s.get(key).field(name); found {
				s.keys[key].fields = slices.Delete(s.keys[key].fields, i, i+1)
				removed++
			}
		}
		s.removeIfEmpty(key)
		return removed
	case "ZADD":
		return s.zadd(key, rest)
	case "ZREM":
		removed := int64(0)
		for _, name := range rest {
			if i := s.get(key).member(name); i >= 0 {
				s.keys[key].members = slices.Delete(s.keys[key].members, i, i+1)
				removed++
			}
		}
		s.removeIfEmpty(key)
		return removed
	case "ZSCORE":
		return s.get(key).zscore(rest[0])
	case "ZMSCORE":
		return each(rest, s.get(key).zscore)
	case "ZRANK":
		if i := s.get(key).member(rest[0]); i >= 0 {
			return int64(i)
		}
		return nil
	case "ZCARD":
		return int64(len(s.get(key).members))
	case "ZCOUNT":
		return int64(len(between(s.get(key).members, rest[0], rest[1])))
	case "ZRANGE":
		return s.zrange(key, rest)
	}
	return failure("ERR unknown command " + command)
}

func (s *store) count(keys []string) (n int64) {
	for _, key := range keys {
		if s.keys[key] != nil {
			n++
		}
	}
	return n
}

func each(names []string, get func(string) any) []any {
	list := make([]any, len(names))
	for i, name := range names {
		list[i] = get(name)
	}
	return list
}

func (s *store) set(key string, args []string) any {
	v := &value{text: args[0]}
	for i := 1; i < len(args); i++ {
		switch strings.ToUpper(args[i]) {
		case "NX":
			if s.keys[key] != nil {
				return nil
			}
		case "PX":
			i++
			v.expires = s.now + integer(args[i])
		case "PXAT":
			i++
			v.expires = integer(args[i])
		case "KEEPTTL":
			v.expires = s.get(key).expires
		default:
			return failure("ERR syntax error")
		}
	}
	s.keys[key] = v
	return status("OK")
}

func (s *store) pexpire(key string, args []string) any {
	v := s.keys[key]
	if v == nil {
		return int64(0)
	}
	at := s.now + integer(args[0])
	if len(args) > 1 {
		switch args[1] {
		case "NX":
			if v.expires != 0 {
				return int64(0)
			}
		case "GT":
			if v.expires == 0 || at <= v.expires {
				return int64(0)
			}
		default:
			return failure("ERR unsupported option " + args[1])
		}
	}
	v.expires = at
	s.expire()
	return int64(1)
}

func (s *store) zadd(key string, args []string) any {
	flag := func(name string) bool {
		has := args[0] == name
		if has {
			args = args[1:]
		}
		return has
	}
	onlyNew, onlyGreater, onlyOld, countChanged, increment := flag("NX"), flag("GT"), flag("XX"), flag("CH"), flag("INCR")
	v, count := s.make(key), int64(0)
	for pair := range slices.Chunk(args, 2) {
		m := member{float(pair[0]), pair[1]}
		i := v.member(m.name)
		if increment && i >= 0 {
			m.score += v.members[i].score
		}
		switch {
		case i < 0 && onlyOld || i >= 0 && onlyNew || i >= 0 && onlyGreater && m.score <= v.members[i].score:
			continue
		case i < 0:
			count++
		default:
			if countChanged && m.score != v.members[i].score {
				count++
			}
			v.members = slices.Delete(v.members, i, i+1)
		}
		at, _ := slices.BinarySearchFunc(v.members, m, func(a, b member) int {
			return cmp.Or(cmp.Compare(a.score, b.score), strings.Compare(a.name, b.name))
		})
		v.members = slices.Insert(v.members, at, m)
		if increment {
			return s.get(key).zscore(m.name)
		}
	}
	s.removeIfEmpty(key)
	return count
}

func (s *store) zrange(key string, args []string) any {
	from, to := args[0], args[1]
	list := s.get(key).members
	byScore, reverse, scores := false, false, false
	skip, limit := 0, -1
	for i := 2; i < len(args); i++ {
		switch args[i] {
		case "BYSCORE":
			byScore = true
		case "REV":
			reverse = true
		case "WITHSCORES":
			scores = true
		case "LIMIT":
			skip, limit = int(integer(args[i+1])), int(integer(args[i+2]))
			i += 2
		default:
			return failure("ERR syntax error")
		}
	}
	if byScore && reverse {
		from, to = to, from
	}
	if byScore {
		list = between(list, from, to)
	}
	if reverse {
		list = slices.Clone(list)
		slices.Reverse(list)
	}
	if byScore {
		list = list[min(skip, len(list)):]
		if limit >= 0 {
			list = list[:min(limit, len(list))]
		}
	} else {
		list = ranks(list, int(integer(from)), int(integer(to)))
	}
	reply := []any{}
	for _, m := range list {
		reply = append(reply, m.name)
		if scores {
			reply = append(reply, number(m.score))
		}
	}
	return reply
}

// ranks returns the members of these ranks; negative ones count from the end.
func ranks(list []member, from, to int) []member {
	if from < 0 {
		from = max(from+len(list), 0)
	}
	if to < 0 {
		to += len(list)
	}
	to = min(to, len(list)-1)
	if from > to {
		return nil
	}
	return list[from : to+1]
}

// between returns the members with scores in a range as ZRANGE BYSCORE takes it.
func between(list []member, low, high string) []member {
	above := bound(low, func(score, bound float64, open bool) bool { return score > bound || !open && score == bound })
	below := bound(high, func(score, bound float64, open bool) bool { return score < bound || !open && score == bound })
	var in []member
	for _, m := range list {
		if above(m.score) && below(m.score) {
			in = append(in, m)
		}
	}
	return in
}

func bound(text string, within func(score, bound float64, open bool) bool) func(float64) bool {
	text, open := strings.CutPrefix(text, "(")
	b := float(text)
	return func(score float64) bool { return within(score, b, open) }
}

func integer(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("a script passes %q for an integer", text))
	}
	return n
}

func float(text string) float64 {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(fmt.Sprintf("a script passes %q for a number", text))
	}
	return f
}
