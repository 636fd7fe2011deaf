package explore

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/testing/luavm"
	glua "github.com/yuin/gopher-lua"
)

// interpreter runs scripts on stores. It is for one goroutine.
type interpreter struct {
	vm *luavm.VM

	// Of the current script.
	store      *store
	subscribed func(channel string) bool
	published  []published
}

type published struct{ channel, text string }

func newInterpreter() *interpreter {
	in := &interpreter{}
	in.vm = luavm.New(in.command)
	return in
}

// run runs a script, which changes the store, and returns its reply and what it has published. A reply of one number is a list of one.
// subscribed says which channels have a subscriber.
func (in *interpreter) run(s *store, subscribed func(channel string) bool, text string, keys, argv []string) ([]int64, []published, error) {
	s.expire()
	in.store, in.subscribed, in.published = s, subscribed, nil
	v, err := in.vm.Run(text, keys, argv)
	if err != nil {
		return nil, nil, err
	}
	switch v := v.(type) {
	case glua.LNumber:
		return []int64{int64(v)}, in.published, nil
	case *glua.LTable:
		reply := make([]int64, v.Len())
		for i := range reply {
			n, ok := v.RawGetInt(i + 1).(glua.LNumber)
			if !ok {
				return nil, nil, fmt.Errorf("the reply has %v at %d", v.RawGetInt(i+1), i)
			}
			reply[i] = int64(n)
		}
		return reply, in.published, nil
	}
	return nil, nil, fmt.Errorf("the reply is %v", v)
}

// command is redis.call, which raises errors, and redis.pcall, which returns them.
func (in *interpreter) command(l *glua.LState, raises bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		if n, ok := l.Get(i + 1).(glua.LNumber); ok {
			args[i] = number(float64(n))
		} else {
			args[i] = l.Get(i + 1).String()
		}
	}
	var reply any
	switch {
	case args[0] == "PUBSUB" && args[1] == "NUMSUB":
		count := int64(0)
		if in.subscribed(args[2]) {
			count = 1
		}
		reply = []any{args[2], count}
	case args[0] == "PUBLISH":
		reply = int64(0)
		if in.subscribed(args[1]) {
			in.published = append(in.published, published{args[1], args[2]})
			reply = int64(1)
		}
	default:
		reply = in.store.run(args)
	}
	if f, failed := reply.(failure); failed && raises {
		l.Error(glua.LString(f), 0)
	}
	l.Push(luaValue(reply))
	return 1
}

// luaValue converts a reply to Lua as Redis does.
func luaValue(reply any) glua.LValue {
	t := &glua.LTable{Metatable: glua.LNil}
	switch r := reply.(type) {
	case int64:
		return glua.LNumber(r)
	case string:
		return glua.LString(r)
	case status:
		t.RawSetString("ok", glua.LString(r))
		return t
	case failure:
		t.RawSetString("err", glua.LString(r))
		return t
	case []any:
		for i, x := range r {
			t.RawSetInt(i+1, luaValue(x))
		}
		return t
	}
	return glua.LFalse
}
