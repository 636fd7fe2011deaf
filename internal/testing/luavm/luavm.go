// Package luavm runs the scripts of package lua in the interpreter of the embedded server, with one Lua state for all calls,
// because creating it is most of the cost of a call. What redis.call does is for its users to say.
package luavm

import (
	"strings"

	glua "github.com/yuin/gopher-lua"
	"github.com/yuin/gopher-lua/parse"
)

// VM is a Lua state with the libraries that scripts have. It is not safe for concurrent use.
type VM struct {
	state  *glua.LState
	protos map[string]*glua.FunctionProto // by text
}

// New returns a VM. The command is redis.call if raises is set: it raises errors; else redis.pcall: it returns them.
func New(command func(l *glua.LState, raises bool) int) *VM {
	l := glua.NewState(glua.Options{SkipOpenLibs: true})
	for name, open := range map[string]glua.LGFunction{
		glua.BaseLibName: glua.OpenBase, glua.TabLibName: glua.OpenTable,
		glua.StringLibName: glua.OpenString, glua.MathLibName: glua.OpenMath,
	} {
		l.Push(l.NewFunction(open))
		l.Push(glua.LString(name))
		l.Call(1, 0)
	}
	redis := l.NewTable()
	redis.RawSetString("call", l.NewFunction(func(l *glua.LState) int { return command(l, true) }))
	redis.RawSetString("pcall", l.NewFunction(func(l *glua.LState) int { return command(l, false) }))
	l.SetGlobal("redis", redis)
	return &VM{l, map[string]*glua.FunctionProto{}}
}

// Run runs a script and returns its result. It compiles each text once. The error is that of the script, or of the text.
func (vm *VM) Run(text string, keys, argv []string) (glua.LValue, error) {
	proto := vm.protos[text]
	if proto == nil {
		chunk, err := parse.Parse(strings.NewReader(text), "script")
		if err != nil {
			return nil, err
		}
		if proto, err = glua.Compile(chunk, "script"); err != nil {
			return nil, err
		}
		vm.protos[text] = proto
	}
	l := vm.state
	defer l.SetTop(0)
	l.SetGlobal("KEYS", table(keys))
	l.SetGlobal("ARGV", table(argv))
	l.Push(l.NewFunctionFromProto(proto))
	if err := l.PCall(0, 1, nil); err != nil {
		return nil, err
	}
	return l.Get(-1), nil
}

func table(list []string) *glua.LTable {
	t := &glua.LTable{Metatable: glua.LNil}
	for _, x := range list {
		t.Append(glua.LString(x))
	}
	return t
}
