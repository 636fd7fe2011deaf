// Package protocol has what goes over the wire, without I/O and without mutexes. In the order of a request, packages server and keeper use it for
// the Redis keys and channels of a name (keys.go), the token of the request (token.go), the arguments of the scripts (args.go), their replies
// (reply.go, acquirereply.go), and the messages that scripts publish (message.go). Package views reads keys, holders and limits back
// (parsekey.go, inspected.go, summary.go). The reply codes are in package lua, beside the scripts.
//
// All keys of a name are in the same slot of a cluster: either the name contains a hash tag, or the other keys enclose the lock's own key in one.
// (Cluster specification, "Hash tags": https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags)
package protocol

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/lua"
)

// MaxLength is the maximum length of a name, and of a prefix, in bytes.
const MaxLength = 1024

// ErrBadName is wrapped by every error about a name or a prefix.
var ErrBadName = errors.New("bad name")

// Keys are the Redis keys of one name of one kind of lock.
type Keys struct {
	Lock       string // the leases; for a mutex the key that other libraries use as well
	Meta       string // hash: metadata, such as the last fence
	Queue      string // zset: the waiters' tokens by place, and their heartbeats; see HEARTBEATS in lua/lib/constants.lua
	Tombstones string // zset: tokens by the time until which their requests are refused
}

// KeysOf derives the keys of a name. If plain is set, the lock's own key is prefix + name, so that it can be shared with
// other libraries; otherwise it is named like the other keys.
func KeysOf(prefix, name, kind string, plain bool) (Keys, error) {
	if err := CheckName(prefix, name, plain); err != nil {
		return Keys{}, err
	}
	of := func(key lua.Key) string { return KeyOf(prefix, name, kind, plain, key) }
	return Keys{of(lua.LockKey), of(lua.MetaKey), of(lua.QueueKey), of(lua.TombstonesKey)}, nil
}

// KeyOf returns one of the keys that KeysOf derives, of a name that CheckName accepts.
func KeyOf(prefix, name, kind string, plain bool, key lua.Key) string {
	part := key.String()
	if key == lua.LockKey {
		if plain {
			return prefix + name
		}
		part = "holders"
	}
	base := prefix + name
	if hasTag(base) {
		return base + ":" + kind + ":" + part
	}
	return "{" + base + "}:" + kind + ":" + part
}

// CheckName returns an error if a name has no keys under the prefix.
func CheckName(prefix, name string, plain bool) error {
	if name == "" {
		return fmt.Errorf("%w: the name is empty", ErrBadName)
	}
	if len(name) > MaxLength {
		return fmt.Errorf("%w: %q… has %d bytes, the maximum is %d", ErrBadName, name[:32], len(name), MaxLength)
	}
	base := prefix + name
	if err := checkTag(base); err != nil {
		return err
	}
	if hasTag(base) && isOnlyTag(base) {
		return fmt.Errorf("%w: %q consists of a hash tag alone, so it would share its keys with %q; leave out the braces", ErrBadName, base, base[1:len(base)-1])
	}
	if suffix := reservedSuffix(base); plain && hasTag(base) && suffix != "" {
		return fmt.Errorf("%w: %q ends in %q, which is reserved for the keys of other locks; choose another ending", ErrBadName, name, suffix)
	}
	return nil
}

// CheckPrefix returns an error if names cannot follow the prefix.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxLength {
		return fmt.Errorf("%w: %q… has %d bytes, the maximum is %d", ErrBadName, prefix[:32], len(prefix), MaxLength)
	}
	return checkTag(prefix)
}

// OwnerKey returns the key of a keeper's label, which no name has. The labels of all keepers of a prefix are in one slot of a cluster.
func OwnerKey(prefix, keeper string) string {
	tag := "{lockkeeper}"
	if prefix != "" {
		tag = hashTag(prefix)
	}
	return tag + ownerPart + keeper
}

// ConnectionKey returns the key by which a keeper checks to which server a connection of its own leads.
func ConnectionKey(prefix, keeper string) string { return OwnerKey(prefix, keeper) + connectionPart }

// connectionPart is the end of a ConnectionKey.
const connectionPart = ":connection"

// ownerPart precedes the keeper's id in the key of its label.
const ownerPart = ":owner:"

// All returns the keys in the order in which scripts take them.
func (k Keys) All() []string { return []string{k.Lock, k.Meta, k.Queue, k.Tombstones} }

// ChannelPrefix returns the prefix of the sharded channels of a name. A keeper's id follows it.
func ChannelPrefix(prefix, name string) string { return hashTag(prefix+name) + ":wake:" }

// hashTag returns the base if it contains a hash tag, and otherwise encloses it in one, so that keys that start with the
// result are in the same slot as base.
func hashTag(base string) string {
	if hasTag(base) {
		return base
	}
	return "{" + base + "}"
}

// hasTag reports whether a base contains a hash tag.
func hasTag(base string) bool {
	open := strings.IndexByte(base, '{')
	return open >= 0 && strings.IndexByte(base[open+1:], '}') > 0
}

// checkTag returns an error if a base cannot be enclosed in a hash tag and contains none.
func checkTag(base string) error {
	if !hasTag(base) && strings.IndexByte(base, '}') >= 0 {
		return fmt.Errorf("%w: %q contains a } but no hash tag such as {user}, so its keys could be in different slots of a cluster; remove the } or add a { before it", ErrBadName, base)
	}
	return nil
}

// isOnlyTag reports whether a base that contains a hash tag consists of that tag alone. The name within the braces would
// then have the same keys, and two names that share a queue would be granted each other's locks. It can only happen with
// an empty prefix, or with one that starts with the opening brace.
func isOnlyTag(base string) bool {
	return base[0] == '{' && strings.IndexByte(base, '}') == len(base)-1
}

// reservedSuffix returns the suffix of a base with a hash tag that makes it look like a key of another lock, or "".
func reservedSuffix(base string) string {
	for _, set := range lua.All {
		for _, part := range []string{"holders", "meta", "queue", "tombstones"} {
			if end := ":" + set.KeyKind + ":" + part; strings.HasSuffix(base, end) {
				return end
			}
		}
	}
	return ""
}
