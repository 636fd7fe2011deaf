package protocol

import (
	"strings"

	"github.com/lockkeeper/lockkeeper/lua"
)

// KeyPart says which of the keys of a name a key is, by its index in Keys.All.
type KeyPart int

// The keys of a name.
const (
	KeyLock KeyPart = iota
	KeyMeta
	KeyQueue
	KeyTombstones
)

// keyParts are the ends of the keys that KeysOf derives.
var keyParts = map[string]KeyPart{"holders": KeyLock, "meta": KeyMeta, "queue": KeyQueue, "tombstones": KeyTombstones}

// keySets are the scripts by the kind in the names of their keys. Primitives that share keys are found as the first of them: the mutex.
var keySets = func() map[string]*lua.Set {
	sets := map[string]*lua.Set{}
	for _, set := range lua.All {
		if sets[set.KeyKind] == nil {
			sets[set.KeyKind] = set
		}
	}
	return sets
}()

// ParsedKey is what the name of a key says.
type ParsedKey struct {
	Set  *lua.Set // of the primitive
	Name string
	Part KeyPart
}

// ParseKey is the inverse of KeysOf: it returns which name has the key, and which of the name's keys it is. It reports false if no name has the
// key under the prefix, or if it is the key of a keeper. Every other key that begins with the prefix is that of a mutex, because other libraries
// use keys of mutexes as well.
func ParseKey(prefix, key string) (p ParsedKey, ok bool) {
	if tag, kind, end, found := cutKey(key); found {
		part, known := keyParts[end]
		set := keySets[kind]
		if known && set != nil && !(part == KeyLock && set.PlainKey) {
			base := tag
			if tag != "" && isOnlyTag(tag) {
				base = tag[1 : len(tag)-1]
			}
			if name, ok := nameOf(prefix, base, set, part, key); ok {
				return ParsedKey{set, name, part}, true
			}
		}
	}
	if isOwnerKey(key) {
		return ParsedKey{}, false
	}
	name, ok := nameOf(prefix, key, lua.Mutex, KeyLock, key)
	return ParsedKey{lua.Mutex, name, KeyLock}, ok
}

// cutKey takes the last two parts off a key: tag:kind:end.
func cutKey(key string) (tag, kind, end string, found bool) {
	j := strings.LastIndexByte(key, ':')
	if j < 0 {
		return "", "", "", false
	}
	i := strings.LastIndexByte(key[:j], ':')
	if i < 0 {
		return "", "", "", false
	}
	return key[:i], key[i+1 : j], key[j+1:], true
}

// nameOf returns the name of a base, if KeysOf makes this key of it for the part.
func nameOf(prefix, base string, set *lua.Set, part KeyPart, key string) (name string, ok bool) {
	name, ok = strings.CutPrefix(base, prefix)
	if !ok {
		return "", false
	}
	keys, err := KeysOf(prefix, name, set.KeyKind, set.PlainKey)
	if err != nil || keys.All()[part] != key {
		return "", false
	}
	return name, true
}

// isOwnerKey reports whether a key is that of a keeper's label, or of its connection, under any prefix; see OwnerKey and ConnectionKey.
func isOwnerKey(key string) bool {
	key = strings.TrimSuffix(key, connectionPart)
	i := strings.LastIndexByte(key, ':') + 1
	return strings.HasSuffix(key[:i], ownerPart) && IsKeeperID(key[i:])
}
