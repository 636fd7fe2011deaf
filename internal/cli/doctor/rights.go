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

// usedCommand is one that the library sends. A server that cannot tell of a right by ACL DRYRUN is sent the command itself:
// for names of the doctor's own, and in a form that changes nothing.
type usedCommand struct {
	args     []any
	harmless []any // nil: args are; none: it is tried elsewhere
	cluster  bool  // takes a cluster
	wake     bool  // without it waiters ask at heartbeats
}

// none is the harmless form of a command that other checks try.
var none = []any{}

// usedCommands is what docs/operations.md lists.
func usedCommands(keys *protocol.Keys, plain string) []usedCommand {
	key, channel, sharded := keys.Meta, plain, keys.ChannelPrefix()+"doctor"
	return []usedCommand{
		{args: inspection(keys, true)},
		{args: inspection(keys, false)},
		{args: []any{"time"}},
		{args: []any{"exists", key}},
		{args: []any{"get", key}},
		{args: []any{"get", plain}},
		{args: []any{"set", key, "v", "px", "1"}, harmless: []any{"set", key, "v", "px", "x"}}, // not a number
		{args: []any{"set", plain, "v", "px", "1"}, harmless: []any{"set", plain, "v", "px", "x"}},
		{args: []any{"del", key}},
		{args: []any{"pexpire", key, "1"}},
		{args: []any{"pttl", key}},
		{args: []any{"hget", key, "f"}},
		{args: []any{"hmget", key, "f"}},
		{args: []any{"hset", key, "f", "v"}, harmless: []any{"hset", key, "f", "v", "f"}}, // without a value
		{args: []any{"hdel", key, "f"}},
		{args: []any{"zadd", key, "1", "m"}, harmless: []any{"zadd", key, "x", "m"}}, // not a number
		{args: []any{"zrem", key, "m"}},
		{args: []any{"zrange", key, "0", "0"}},
		{args: []any{"zrank", key, "m"}},
		{args: []any{"zscore", key, "m"}},
		{args: []any{"zmscore", key, "m"}},
		{args: []any{"zcard", key}},
		{args: []any{"zcount", key, "0", "1"}},
		{args: []any{"publish", channel, ""}, wake: true},
		{args: []any{"pubsub", "numsub", channel}, wake: true},
		{args: []any{"subscribe", channel}, harmless: none, wake: true},
		{args: []any{"unsubscribe", channel}, harmless: none, wake: true},
		{args: []any{"spublish", sharded, ""}, wake: true, cluster: true},
		{args: []any{"pubsub", "shardnumsub", sharded}, wake: true, cluster: true},
		{args: []any{"ssubscribe", sharded}, harmless: none, wake: true, cluster: true},
		{args: []any{"sunsubscribe", sharded}, harmless: none, wake: true, cluster: true},
		{args: []any{"ping"}},
		{args: []any{"hello"}},
		{args: []any{"cluster", "slots"}, cluster: true},
		{args: []any{"cluster", "shards"}, cluster: true},
	}
}

// rule is the ACL rule that allows the command.
func (c usedCommand) rule() string {
	if c.args[0] == "pubsub" || c.args[0] == "cluster" {
		return fmt.Sprintf("+%v|%v", c.args[0], c.args[1])
	}
	return fmt.Sprintf("+%v", c.args[0])
}

// missing is the ACL rule whose lack a refusal of the command tells of: the command itself, or the pattern of the keys or of
// the channels that it was for. Those with a hash tag have a pattern of their own.
func (c usedCommand) missing(refusal, prefix string) string {
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

// optionCommand is one that only an option takes.
type optionCommand struct {
	args    []any
	options string
}

var optionCommands = []optionCommand{
	{[]any{"wait", "0", "1"}, "Options.ReplicaAck"},
	{[]any{"waitaof", "0", "0", "1"}, "ReplicaAck.Fsync"},
	{[]any{"info", "server"}, "ReplicaAck.Majority and redlock's MinUptime"},
}

// rights looks whether the user may do what the library does.
func (n *node) rights(ctx context.Context) {
	if n.keys == nil {
		return
	}
	r := rightsCheck{n: n, user: n.client.Options().Username}
	if r.user == "" {
		r.user = "default"
	}
	r.dry = n.client.Do(ctx, "acl", "dryrun", r.user, "ping").Err() == nil
	var lack []string
	status := fine
	for _, c := range usedCommands(n.keys, n.prefix+n.name) {
		if c.cluster && n.target.Cluster == nil {
			continue
		}
		refusal, absent, unknown := r.try(ctx, c.args, c.harmless)
		if unknown != nil {
			n.add(n, "rights", *unknown)
			return
		}
		if refusal == "" && !absent {
			continue
		}
		rule := c.missing(refusal, n.prefix)
		if !slices.Contains(lack, rule) {
			lack = append(lack, rule)
		}
		if c.wake {
			status = max(status, warning)
		} else {
			status = failure
		}
	}
	if len(lack) > 0 {
		f := finding{Status: status, Seen: fmt.Sprintf("the user %q lacks rights", r.user), Right: strings.Join(lack, " ")}
		f.Advice = fmt.Sprintf("ACL SETUSER %s %s", r.user, f.Right)
		if status == warning {
			f.Seen += "; waiters are not told, and ask at their heartbeats"
		}
		n.add(n, "rights", f)
		return
	}
	how := "by ACL DRYRUN"
	if !r.dry {
		how = "by trying"
	}
	f := finding{Seen: fmt.Sprintf("the user %q has all that are needed, %s", r.user, how)}
	// What the server does not have is not a right that could be given.
	for _, c := range optionCommands {
		if refusal, _, _ := r.try(ctx, c.args, nil); refusal != "" {
			f.Seen += fmt.Sprintf("; not +%v, which %s would take", c.args[0], c.options)
		}
	}
	n.add(n, "rights", f)
}

// rightsCheck asks a node what a user may do.
type rightsCheck struct {
	n    *node
	user string
	dry  bool // ACL DRYRUN tells; else commands are sent
}

// try says how the server refuses a command, if it does, and whether it has none of that name; or, if it cannot be told,
// what is to be said of the check. Harmless is as in usedCommand.
func (r rightsCheck) try(ctx context.Context, args, harmless []any) (refusal string, absent bool, unknown *finding) {
	told := func(right string, err error) (string, bool, *finding) {
		f := missing(right, err)
		return "", false, &f
	}
	if r.dry {
		answer, err := r.n.client.Do(ctx, append([]any{"acl", "dryrun", r.user}, args...)...).Text()
		switch {
		case err != nil && replied(err): // the command does not exist
			return "", true, nil
		case err != nil:
			return told("+acl|dryrun", err)
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
	err := r.n.client.Do(ctx, args...).Err()
	switch {
	case redis.IsPermissionError(err):
		return err.Error(), false, nil
	case lacks(err):
		return "", true, nil
	case err != nil && !errors.Is(err, redis.Nil) && !replied(err):
		return told("", err)
	}
	return "", false, nil
}
