package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// The sample in which other libraries are looked for. A server looks at this many keys in some milliseconds.
const (
	foreignStep   = 1000
	foreignSteps  = 10
	foreignValues = 10 // keys of each step whose values are read
)

// library is another library for locks that can delete locks under the prefix.
type library struct {
	pattern string                   // of its keys
	value   string                   // what the values of its keys begin with; "": the names suffice
	harms   func(prefix string) bool // whether it can delete locks under the prefix
	detail  string
	advice  string
}

var libraries = []library{
	{
		// It releases waiters by a list, https://github.com/ionelmc/python-redis-lock.
		pattern: "lock-signal:*",
		harms:   func(prefix string) bool { return prefix == "" || strings.HasPrefix(prefix, "lock:") },
		detail:  "python-redis-lock: its reset_all() deletes all keys that begin with lock:, mutexes that are held included",
		advice:  "use another prefix or database, or make sure that reset_all() is never called",
	},
	{
		// https://github.com/lukas-krecan/ShedLock, its lock provider for Redis.
		pattern: "job-lock:*", value: "ADDED:",
		harms:  func(prefix string) bool { return prefix == "" || strings.HasPrefix(prefix, "job-lock:") },
		detail: "ShedLock: a process whose lock has expired deletes the one of the next holder, unless safeUpdate is set",
		advice: "use another prefix or database, or set safeUpdate(true) in its lock provider",
	},
}

// checkForeignKeys looks in a sample of the keys for libraries that can delete locks under the prefix.
func (n *node) checkForeignKeys(ctx context.Context) {
	const none = "no key of a library that would delete locks under this prefix"
	ok, found := finding{Detail: none}, false
	for _, l := range libraries {
		if !l.harms(n.prefix) {
			continue
		}
		key, all, err := n.findKey(ctx, l)
		switch {
		case err != nil:
			n.add(n, "foreign-keys", unavailable("+scan", err))
			return
		case key != "":
			found = true
			n.add(n, "foreign-keys", finding{Status: statusWarning, Detail: fmt.Sprintf("the key %s is of %s", output.Name(key), l.detail), Advice: l.advice})
		case !all:
			ok.Detail = fmt.Sprintf("in a sample of %d keys, %s", foreignStep*foreignSteps, none)
		}
	}
	if !found {
		n.add(n, "foreign-keys", ok)
	}
}

// findKey returns a key of the library, or "" if there is none in the sample; all reports that the sample was all keys.
func (n *node) findKey(ctx context.Context, l library) (key string, all bool, err error) {
	var cursor uint64
	for range foreignSteps {
		keys, next, err := n.client.Scan(ctx, cursor, l.pattern, foreignStep).Result()
		if err != nil {
			return "", false, err
		}
		for _, key := range keys[:min(len(keys), foreignValues)] {
			if l.value == "" || strings.HasPrefix(n.client.Get(ctx, key).Val(), l.value) { // keys of another type are not of it
				return key, false, nil
			}
		}
		if next == 0 {
			return "", true, nil
		}
		cursor = next
	}
	return "", false, nil
}
