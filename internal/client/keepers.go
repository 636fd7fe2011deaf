package client

import "sync"

// Many is how many open keepers of one client are reported: more than a process has on purpose, and far fewer than would use up a server's
// connections, of which each keeper takes one or two.
const Many = 36

// keepers counts the open keepers of each client, by its options, which the wrappers of a client share.
var keepers = struct {
	sync.Mutex
	of map[any]*openKeepers
}{of: map[any]*openKeepers{}}

type openKeepers struct {
	n        int
	reported bool
}

// Opened counts one more open keeper of the client, and reports, once, that there are many.
func (c *Client) Opened() (many bool) {
	keepers.Lock()
	defer keepers.Unlock()
	open := keepers.of[c.options]
	if open == nil {
		open = &openKeepers{}
		keepers.of[c.options] = open
	}
	open.n++
	many = open.n >= Many && !open.reported
	open.reported = open.reported || many
	return many
}

// Closed counts one open keeper less.
func (c *Client) Closed() {
	keepers.Lock()
	defer keepers.Unlock()
	open := keepers.of[c.options]
	if open.n--; open.n == 0 {
		delete(keepers.of, c.options)
	}
}
