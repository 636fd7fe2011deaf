package proptest

import (
	"bufio"
	"bytes"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/luavm"
	lua "github.com/yuin/gopher-lua"
)

// interpreter runs scripts as the embedded server does, but faster. It can also refuse commands of scripts. All worlds share
// it, because they run one after the other.
type interpreter struct {
	mu sync.Mutex // held while a script runs; guards the fields below
	vm *luavm.VM

	// Of the current script.
	srv    *server.Server
	refuse func(command string) string // the error of a command, or ""

	out    bytes.Buffer
	writer *bufio.Writer
	reader *bufio.Reader
}

// inScript is the client name for commands of scripts.
const inScript = "script"

var theInterpreter = newInterpreter()

func newInterpreter() *interpreter {
	in := &interpreter{}
	in.writer, in.reader = bufio.NewWriter(&in.out), bufio.NewReader(&in.out)
	in.vm = luavm.New(in.command)
	return in
}

// run runs a script on the server and writes its reply to the caller. It reports whether the script succeeded.
func (in *interpreter) run(srv *server.Server, refuse func(string) string, caller *server.Peer, text string, keys, argv []string) (reply lua.LValue, ok bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.srv, in.refuse = srv, refuse
	reply, err := in.vm.Run(text, keys, argv)
	if err != nil {
		text := err.Error()
		if e, is := err.(*lua.ApiError); is {
			text = e.Object.String()
		}
		caller.WriteError(strings.ReplaceAll(text, "\n", " "))
		return nil, false
	}
	answer(caller, reply)
	return reply, true
}

// answer writes the result of a script: an array or an error.
func answer(caller *server.Peer, v lua.LValue) {
	switch v := v.(type) {
	case *lua.LTable:
		if err, is := v.RawGetString("err").(lua.LString); is {
			caller.WriteError(string(err))
			return
		}
		caller.WriteLen(v.Len())
		for i := 1; i <= v.Len(); i++ {
			answer(caller, v.RawGetInt(i))
		}
	case lua.LNumber:
		caller.WriteInt(int(v))
	case lua.LString:
		caller.WriteBulk(string(v))
	default:
		caller.WriteNull()
	}
}

// command is redis.call, which raises errors, and redis.pcall, which returns them. It is atomic with the rest of the
// script because scripts run one at a time, and other commands touch no key.
func (in *interpreter) command(l *lua.LState, raises bool) int {
	args := make([]string, l.GetTop())
	for i := range args {
		args[i] = l.Get(i + 1).String()
	}
	problem := in.refuse(strings.ToUpper(args[0]))
	var reply any
	if problem == "" {
		in.out.Reset()
		peer := server.NewPeer(in.writer)
		peer.ClientName = inScript
		in.srv.Dispatch(peer, args)
		_ = in.writer.Flush()
		in.reader.Reset(&in.out)
		var err error
		if reply, err = server.ParseReply(in.reader); err != nil {
			problem = err.Error()
		}
	}
	switch {
	case problem == "":
		l.Push(value(reply))
	case raises:
		l.Error(lua.LString(problem), 0)
	default:
		t := l.NewTable()
		t.RawSetString("err", lua.LString(problem))
		l.Push(t)
	}
	return 1
}

// value converts a reply of the server to Lua.
func value(reply any) lua.LValue {
	switch r := reply.(type) {
	case int:
		return lua.LNumber(r)
	case string:
		return lua.LString(r)
	case server.Simple:
		t := &lua.LTable{Metatable: lua.LNil}
		t.RawSetString("ok", lua.LString(r))
		return t
	case []any:
		t := &lua.LTable{Metatable: lua.LNil}
		for _, x := range r {
			t.Append(value(x))
		}
		return t
	}
	return lua.LFalse
}
