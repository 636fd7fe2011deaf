package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/names"
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
func usedCommands(keys *names.Keys, plain string) []usedCommand {
	key, channel, sharded := keys.Meta, plain, keys.Channels()+"doctor"
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

// rights looks whether the user may do what the library does.
func (n *node) rights(ctx context.Context) {
	if n.keys == nil {
		return
	}
	user := n.client.Options().Username
	if user == "" {
		user = "default"
	}
	dry, first := true, n.client.Do(ctx, "acl", "dryrun", user, "ping")
	if first.Err() != nil {
		dry = false
	}
	var lack []string
	status := fine
	plain := n.prefix + n.name
	for _, c := range usedCommands(n.keys, plain) {
		if c.cluster && n.target.cluster == nil {
			continue
		}
		var refusal string
		if dry {
			answer, err := n.client.Do(ctx, append([]any{"acl", "dryrun", user}, c.args...)...).Text()
			switch {
			case err != nil && replied(err): // the command does not exist
				refusal = err.Error()
			case err != nil:
				n.add(n, "rights", missing("+acl|dryrun", err))
				return
			case answer != "OK":
				refusal = answer
			}
		} else {
			args := c.args
			if c.harmless != nil {
				args = c.harmless
			}
			if len(args) == 0 {
				continue
			}
			err := n.client.Do(ctx, args...).Err()
			switch {
			case redis.IsPermissionError(err), lacks(err):
				refusal = err.Error()
			case err != nil && !errors.Is(err, redis.Nil) && !replied(err):
				n.add(n, "rights", missing("", err))
				return
			}
		}
		if refusal == "" {
			continue
		}
		rule := c.rule()
		switch {
		case strings.Contains(refusal, " key"):
			rule = "~" + n.prefix + "* ~{" + n.prefix + "*"
		case strings.Contains(refusal, " channel"):
			rule = "&" + n.prefix + "* &{" + n.prefix + "*"
		}
		if !slices.Contains(lack, rule) {
			lack = append(lack, rule)
		}
		if c.wake {
			status = max(status, warning)
		} else {
			status = failure
		}
	}
	how := "all that are needed, by ACL DRYRUN"
	if !dry {
		how = "all that are needed, by trying"
	}
	if len(lack) == 0 {
		n.add(n, "rights", finding{Seen: fmt.Sprintf("the user %q has %s", user, how)})
		return
	}
	f := finding{Status: status, Seen: fmt.Sprintf("the user %q lacks rights", user), Right: strings.Join(lack, " ")}
	f.Advice = fmt.Sprintf("ACL SETUSER %s %s", user, f.Right)
	if status == warning {
		f.Seen += "; waiters are not told, and ask at their heartbeats"
	}
	n.add(n, "rights", f)
}
