// Package lua has the scripts by which locks change on the server, for those who write a client in another language that shares
// locks with Go programs. Go programs do not need it: they use package mutex and the like.
//
// A [Set] has the scripts of one primitive, such as [Mutex] or [RateLimit]. Load the Text of a [Script] by SCRIPT LOAD, and send it by
// EVALSHA with its SHA, the keys that its Keys list, and its arguments. A transition has a general script, which handles all cases;
// frequent ones also have a fast script, which costs the server about half. A fast script replies [Undecided] if the case is not its
// own, and has written nothing: then send the general one.
//
//	to                                            send
//	acquire a lock, wait for it in its queue      Fast.Acquire, then Acquire
//	try it, without waiting                       the same, but Acquire without its arguments for waiting
//	keep a place in the queue, or find a grant    Heartbeat, at each interval, for all waiters of the process for a name
//	renew a lease                                 Fast.Renew, at each third of the ttl
//	renew the metadata of the name as well        Renew, at each half of the time for which metadata is kept
//	release a lease                               Fast.Release if nobody waits, else Fast.HandOn, then Release
//	abandon a request whose outcome is unknown    Release with a tombstone
//	take permits of a rate limit, with the quota  FastWindow.Acquire, then Allow
//	list holders and waiters, end their leases    Inspect, Break
//	read or set limits, or pause                  Limit
//	end a lease, and leave a record of success    Complete
//	a mutex on a majority of servers              Acquire at each; RaiseFence, Identity
//
// The header of a script says what it takes and replies: its KEYS and ARGV in their order, each reply, and what it writes. Text has no
// comments, so read the headers in the [source], where lua/lib/constants.lua also has how tokens and all values are encoded.
// A reply is an integer, or an array of integers that begins with one of the codes below; only that of Inspect has strings as well.
//
// A client has duties besides: it names the keys, makes the tokens, trusts a lease for less than its ttl, subscribes to the channel on
// which a grant is announced, and cleans up after a lost reply. [The protocol] describes them, and its table of scripts says when each is
// sent; the page on [operations] has the names of the keys. What may change from one version to the next is in the section on [versions]:
// keys, tokens and messages are read by both for a while, but arguments and replies are not, so take all scripts from one version.
//
// [source]: https://github.com/lockkeeper/lockkeeper/tree/main/lua
// [The protocol]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/protocol.md#scripts
// [versions]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/protocol.md#versions
// [operations]: https://github.com/lockkeeper/lockkeeper/blob/main/docs/operations.md#keys
package lua
