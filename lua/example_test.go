package lua_test

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/lua"
)

// What a client in another language loads to acquire and to release a mutex: the texts, and the keys that each script takes.
func Example() {
	m := lua.Mutex
	for _, s := range []*lua.Script{m.Fast.Acquire, m.Acquire, m.Fast.Release, m.Fast.HandOn, m.Release} {
		fmt.Println(s.Name, s.Keys, len(s.Text) > 0)
	}
	// Output:
	// mutex_fast_acquire [lock meta] true
	// mutex_acquire [lock meta queue tombstones] true
	// mutex_fast_release [lock queue] true
	// mutex_fast_hand_on [lock meta queue] true
	// mutex_release [lock meta queue tombstones] true
}
