package doctor

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/redis/go-redis/v9"
)

// inspectCommand runs a read-only script, by EVAL or by EVALSHA.
func inspectCommand(keys *protocol.Keys, eval bool) []any {
	script := lua.Mutex.Inspect
	var all []any
	for _, k := range keys.All() {
		all = append(all, k)
	}
	command := append(script.AppendCommand(nil, all...), protocol.InspectHolders, 0, 1, "")
	if eval {
		command[0], command[1] = "eval", script.Text
	}
	return command
}

func (n *node) inspect(ctx context.Context, eval bool) error {
	return n.client.Do(ctx, inspectCommand(n.keys, eval)...).Err()
}

// checkScripts checks that scripts run and that the server caches them. The scripts stay in the cache, as after any use of
// this version of the library. A finding of success is left to [node.recheckScripts].
func (n *node) checkScripts(ctx context.Context) {
	if n.keys == nil {
		return
	}
	if f := n.runScripts(ctx); f != nil {
		n.add(n, "scripts", *f)
		return
	}
	loaded := map[string]bool{} // primitives share scripts
	for _, set := range lua.All {
		for _, s := range set.Scripts() {
			if loaded[s.SHA] {
				continue
			}
			sha, err := n.client.ScriptLoad(ctx, s.Text).Result()
			switch {
			case redis.IsPermissionError(err): // the library does not need it
			case err != nil:
				n.add(n, "scripts", finding{Status: statusError, Detail: s.Name + ": " + err.Error(), Advice: "use a server whose Lua is compatible with Redis"})
				return
			case sha != s.SHA:
				n.add(n, "scripts", finding{Status: statusError, Detail: s.Name + ": the server returns the digest " + sha + " instead of " + s.SHA, Advice: "use a server that computes the digests of scripts as Redis does"})
				return
			default:
				loaded[sha] = true
			}
		}
	}
	n.scriptDetail = "EVALSHA works"
	if len(loaded) > 0 {
		n.scriptDetail += fmt.Sprintf(", %d scripts can be loaded", len(loaded))
	}
}

// runScripts runs a script by EVAL and then by EVALSHA. It returns nil if both work.
func (n *node) runScripts(ctx context.Context) *finding {
	failed := func(command string, err error, eval bool) *finding {
		f := &finding{Status: statusError, Detail: command + ": " + err.Error(), Advice: "permit EVAL and EVALSHA: every operation on a lock is a script"}
		if redis.IsPermissionError(err) {
			f.ACLRules = usedCommand{args: inspectCommand(n.keys, eval)}.missingRule(err.Error(), n.prefix)
			if f.ACLRules[0] == '~' {
				f.Advice = "permit the keys that scripts use: see the check permissions"
			}
		}
		return f
	}
	if err := n.inspect(ctx, true); err != nil {
		f := failed("EVAL", err, true)
		if transport.Retryable(err) {
			f.Advice = "see the error of the server: it is not a matter of permissions"
		}
		return f
	}
	err := n.inspect(ctx, false)
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return &finding{
			Status: statusWarning, Detail: "the server does not cache scripts",
			Advice: "find out what flushes the script cache: without it each operation on a lock takes a second request",
		}
	case err != nil:
		return failed("EVALSHA", err, false)
	}
	return nil
}

// recheckScripts checks after all other checks whether the scripts are still cached.
func (n *node) recheckScripts(ctx context.Context) {
	if n.scriptDetail == "" {
		return
	}
	err := n.inspect(ctx, false)
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		n.add(n, "scripts", finding{
			Status: statusWarning, Detail: n.scriptDetail + ", but the script cache was flushed during the checks",
			Advice: "find out what calls SCRIPT FLUSH: after each flush an operation on a lock takes a second request",
		})
	case err != nil:
		n.add(n, "scripts", unavailable("+evalsha", err))
	default:
		n.add(n, "scripts", finding{Detail: n.scriptDetail})
	}
}
