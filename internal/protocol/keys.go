// Package protocol turns what a user calls a lock into the Redis keys and channels that belong to it.
//
// All keys of a name lie in one slot of a cluster: either the name brings a hash tag of its own, or the keys beside
// the lock's own wrap it in one. (Cluster specification, "Hash tags":
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags)
package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// MaxLength is the longest name or prefix that is taken, in bytes.
const MaxLength = 1024

// ErrBadName is what every refusal of a name or a prefix is.
var ErrBadName = errors.New("bad name")

// Keys are the Redis keys of one name of one kind of lock.
type Keys struct {
	Lock       string // where the leases lie; for a mutex the very key that other libraries use
	Meta       string // hash: small facts, the sequence of numbers
	Queue      string // zset: who waits, by place
	Heartbeats string // zset: until when a waiter's heartbeat counts

	tag string
}

// KeysOf derives the keys of a name. Bare says that the lock's own key is prefix + name itself, so that it can be shared
// with other libraries; the other kinds keep it among the rest.
func KeysOf(prefix, name, kind string, bare bool) (Keys, error) {
	if name == "" {
		return Keys{}, fmt.Errorf("%w: it is empty", ErrBadName)
	}
	if len(name) > MaxLength {
		return Keys{}, fmt.Errorf("%w: %q… has %d bytes, the most is %d", ErrBadName, name[:32], len(name), MaxLength)
	}
	base := prefix + name
	tag, err := hashTag(base)
	if err != nil {
		return Keys{}, err
	}
	if tag == base && isOnlyTag(base) {
		return Keys{}, fmt.Errorf("%w: %q is nothing but a hash tag, so its keys would be those of %q", ErrBadName, base, base[1:len(base)-1])
	}
	own := tag + ":" + kind + ":"
	k := Keys{Lock: own + "holders", Meta: own + "meta", Queue: own + "queue", Heartbeats: own + "heartbeats", tag: tag}
	if bare {
		if part := reservedSuffix(base); tag == base && part != "" {
			return Keys{}, fmt.Errorf("%w: %q ends in %q, where another lock keeps its keys", ErrBadName, name, part)
		}
		k.Lock = base
	}
	return k, nil
}

// CheckPrefix says whether names can be put behind the prefix.
func CheckPrefix(prefix string) error {
	if len(prefix) > MaxLength {
		return fmt.Errorf("%w: %q… has %d bytes, the most is %d", ErrBadName, prefix[:32], len(prefix), MaxLength)
	}
	if _, err := hashTag(prefix); err != nil && prefix != "" {
		return err
	}
	return nil
}

// All is the keys in the order in which scripts take them.
func (k Keys) All() []string { return []string{k.Lock, k.Meta, k.Queue, k.Heartbeats} }

// ChannelPrefix is the prefix of the sharded channels for this name: a keeper's id completes it.
func (k Keys) ChannelPrefix() string { return k.tag + ":wake:" }

// hashTag is base so written that Redis hashes the whole of it as it hashes base alone.
func hashTag(base string) (string, error) {
	open := strings.IndexByte(base, '{')
	if open >= 0 {
		if length := strings.IndexByte(base[open+1:], '}'); length > 0 {
			return base, nil // it has a hash tag
		}
	}
	if strings.IndexByte(base, '}') >= 0 {
		return "", fmt.Errorf("%w: %q has a } without a hash tag such as {user}, so its keys would lie apart on a cluster", ErrBadName, base)
	}
	return "{" + base + "}", nil
}

// isOnlyTag says whether a tagged base is its hash tag and nothing else. What wrap makes of the untagged base within the
// braces is the same, and two names that share a queue would be granted each other's locks. It takes an empty prefix, or
// one that ends in a brace.
func isOnlyTag(base string) bool {
	return base[0] == '{' && strings.IndexByte(base, '}') == len(base)-1
}

// reservedSuffix is the end of a tagged base that makes it look like a key beside another lock, or "".
func reservedSuffix(base string) string {
	for _, kind := range []string{"mutex", "fair", "rwlock", "semaphore", "ratelimit", "once"} {
		for _, part := range []string{"holders", "meta", "queue", "heartbeats"} {
			if end := ":" + kind + ":" + part; strings.HasSuffix(base, end) {
				return end
			}
		}
	}
	return ""
}
