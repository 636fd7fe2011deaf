package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/redis/go-redis/v9"
)

// usedCommand is a command that the library sends. Where ACL DRYRUN cannot be used, the command itself is sent, with keys of
// a name that no lock has, and in a form that changes nothing.
type usedCommand struct {
	args     []any
	harmless []any // the form that changes nothing; nil if args does not either, notSent if another check sends the command
	cluster  bool  // used only on a cluster
	wakeup   bool  // used only for wake-ups: without it waiters retry at their heartbeats
}

// notSent is the harmless form of a command that another check sends.
var notSent = []any{}

// usedCommands are the commands whose rules docs/operations.md lists.
func usedCommands(keys *protocol.Keys, plain, sharded string) []usedCommand {
	key, channel := keys.Meta, plain
	return []usedCommand{
		{args: inspectCommand(keys, true)},
		{args: inspectCommand(keys, false)},
		{args: []any{"time"}},
		{args: []any{"exists", key}},
		{args: []any{"get", key}},
		{args: []any{"get", plain}},
		{args: []any{"set", key, "v", "px", "1"}, harmless: []any{"set", key, "v", "px", "x"}}, // not a number
		{args: []any{"set", plain, "v", "px", "1"}, harmless: []any{"set", plain, "v", "px", "x"}},
		{args: []any{"del", key}},
		{args: []any{"pexpire", key, "1"}},
		{args: []any{"pttl", key}},
		{args: []any{"pexpiretime", key}},
		{args: []any{"hget", key, "f"}},
		{args: []any{"hmget", key, "f"}},
		{args: []any{"hset", key, "f", "v"}, harmless: []any{"hset", key, "f", "v", "f"}}, // without a value
		{args: []any{"hdel", key, "f"}},
		{args: []any{"zadd", key, "1", "m"}, harmless: []any{"zadd", key, "x", "m"}}, // not a number
		{args: []any{"zrem", key, "m"}},
		{args: []any{"zremrangebyscore", key, "0", "1"}},
		{args: []any{"zrange", key, "0", "0"}},
		{args: []any{"zrank", key, "m"}},
		{args: []any{"zscore", key, "m"}},
		{args: []any{"zmscore", key, "m"}},
		{args: []any{"zcard", key}},
		{args: []any{"zcount", key, "0", "1"}},
		{args: []any{"publish", channel, ""}, wakeup: true},
		{args: []any{"pubsub", "numsub", channel}, wakeup: true},
		{args: []any{"subscribe", channel}, harmless: notSent, wakeup: true},
		{args: []any{"unsubscribe", channel}, harmless: notSent, wakeup: true},
		{args: []any{"spublish", sharded, ""}, wakeup: true, cluster: true},
		{args: []any{"pubsub", "shardnumsub", sharded}, wakeup: true, cluster: true},
		{args: []any{"ssubscribe", sharded}, harmless: notSent, wakeup: true, cluster: true},
		{args: []any{"sunsubscribe", sharded}, harmless: notSent, wakeup: true, cluster: true},
		{args: []any{"ping"}},
		{args: []any{"hello"}},
		{args: []any{"cluster", "slots"}, cluster: true},
		{args: []any{"cluster", "shards"}, cluster: true},
	}
}

// rule is the ACL rule that permits the command.
func (c usedCommand) rule() string {
	if c.args[0] == "pubsub" || c.args[0] == "cluster" {
		return fmt.Sprintf("+%v|%v", c.args[0], c.args[1])
	}
	return fmt.Sprintf("+%v", c.args[0])
}

// missingRule returns the ACL rule whose absence explains the refusal of the command: the rule of the command itself, or the
// pattern of its keys or channels. Names with a hash tag have a pattern of their own.
func (c usedCommand) missingRule(refusal, prefix string) string {
	sign := ""
	switch {
	case strings.Contains(refusal, " key"):
		sign = "~"
	case strings.Contains(refusal, " channel"):
		sign = "&"
	default:
		return c.rule()
	}
	for _, arg := range c.args {
		if text, ok := arg.(string); ok && strings.HasPrefix(text, "{"+prefix) {
			return sign + "{" + prefix + "*"
		}
	}
	return sign + prefix + "*"
}

// optionCommand is a command that only an option or admin.List needs.
type optionCommand struct {
	args    []any
	options string
}

// optionCommands are the commands whose rules docs/operations.md lists as needed by options. The key is one that the user may read.
func optionCommands(key string) []optionCommand {
	return []optionCommand{
		{[]any{"wait", "0", "1"}, "Options.ReplicaAck"},
		{[]any{"waitaof", "0", "0", "1"}, "ReplicaAck.Fsync"},
		{[]any{"scan", "0"}, "admin.List"},
		{[]any{"getrange", key, "0", "0"}, "admin.List"},
		{[]any{"info", "server"}, "ReplicaAck.Majority and redlock.Options.MinUptime"},
	}
}

// checkPermissions checks that the user may send the commands that the library sends.
func (n *node) checkPermissions(ctx context.Context) {
	if n.keys == nil {
		return
	}
	r := permissionCheck{node: n, user: n.client.Options().Username}
	if r.user == "" {
		r.user = "default"
	}
	r.dryRun = n.client.Do(ctx, "acl", "dryrun", r.user, "ping").Err() == nil
	var missing []string
	status := statusOK
	for _, c := range usedCommands(n.keys, n.prefix+n.lockName, n.sharded) {
		if c.cluster && n.target.Cluster == nil {
			continue
		}
		refusal, absent, unknown := r.try(ctx, c.args, c.harmless)
		if unknown != nil {
			n.add(n, "permissions", *unknown)
			return
		}
		if refusal == "" && !absent {
			continue
		}
		rule := c.missingRule(refusal, n.prefix)
		if !slices.Contains(missing, rule) {
			missing = append(missing, rule)
		}
		if c.wakeup {
			status = max(status, statusWarning)
		} else {
			status = statusError
		}
	}
	if len(missing) > 0 {
		f := finding{Status: status, Detail: fmt.Sprintf("the user %q lacks permissions", r.user), ACLRules: strings.Join(missing, " ")}
		f.Advice = fmt.Sprintf("ACL SETUSER %s %s", r.user, f.ACLRules)
		if status == statusWarning {
			f.Detail += "; waiters are not notified, and retry only at their heartbeats"
		}
		n.add(n, "permissions", f)
		return
	}
	method := "ACL DRYRUN"
	if !r.dryRun {
		method = "sending the commands"
	}
	f := finding{Detail: fmt.Sprintf("the user %q has all required permissions, checked by %s", r.user, method)}
	// A command that the server does not have cannot be permitted.
	for _, c := range optionCommands(n.keys.Meta) {
		if refusal, _, _ := r.try(ctx, c.args, nil); refusal != "" {
			f.Detail += fmt.Sprintf("; not +%v, which is needed for %s", c.args[0], c.options)
		}
	}
	n.add(n, "permissions", f)
}

// permissionCheck checks the permissions of a user at a node.
type permissionCheck struct {
	node   *node
	user   string
	dryRun bool // by ACL DRYRUN; otherwise by sending commands
}

// try returns the error message by which the server refuses a command, and whether it does not have the command; or, if it
// cannot be found out, a finding that says why. Harmless is as in usedCommand.
func (r permissionCheck) try(ctx context.Context, args, harmless []any) (refusal string, absent bool, unknown *finding) {
	cannotTell := func(rule string, err error) (string, bool, *finding) {
		f := unavailable(rule, err)
		return "", false, &f
	}
	if r.dryRun {
		answer, err := r.node.client.Do(ctx, append([]any{"acl", "dryrun", r.user}, args...)...).Text()
		switch {
		case err != nil && isServerError(err): // the command does not exist
			return "", true, nil
		case err != nil:
			return cannotTell("+acl|dryrun", err)
		case answer != "OK":
			return answer, false, nil
		}
		return "", false, nil
	}
	if harmless != nil {
		args = harmless
	}
	if len(args) == 0 {
		return "", false, nil
	}
	err := r.node.client.Do(ctx, args...).Err()
	switch {
	case redis.IsPermissionError(err):
		return err.Error(), false, nil
	case isUnknownCommand(err):
		return "", true, nil
	case err != nil && !errors.Is(err, redis.Nil) && !isServerError(err):
		return cannotTell("", err)
	}
	return "", false, nil
}
