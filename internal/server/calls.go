package server

import (
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file makes the calls of all scripts: SetAcquire makes a Call one of acquire.lua, and so on. Durations are whole milliseconds. Arguments
// that are the same in each call are of type any, so that they are boxed once. A test in package lua compares the arguments of set with
// the header of the script, by their names. The replies are read by Decode, with a function of package protocol.

// set makes the call one of script s. Arguments that are nil are left out. The keys are kept for the next call, but those of acquire.lua: it runs
// once for a new name, and a lease that nobody waits for needs two of its four keys again.
func (r *Resource) set(call *transport.Call, s *lua.Script, args ...any) {
	call.Key = r.KeyOf(LockKey)
	var keys [4]any
	for i, key := range s.Keys {
		keys[i] = r.key(key, s != r.scripts.Acquire)
	}
	call.SetCommand(s, keys[:len(s.Keys)], args...)
}

// Decode returns the reply of a call, by one of protocol's functions, or why there is none.
func Decode[T any](call *transport.Call, parse func([]int64) (T, error)) (T, error) {
	if call.Err != nil {
		var none T
		return none, Unavailable(call.Err)
	}
	return parse(call.Reply)
}

// SetAcquire makes the call one of acquire.lua. If maxWait is nil, the request does not wait. uncounted says that it does not count on the
// subscription of the keeper while it waits.
func (r *Resource) SetAcquire(call *transport.Call, token string, policyArg, maxWait any, uncounted bool) {
	var queueTTL, unsubscribed any
	if maxWait != nil {
		queueTTL = r.args.queueTTL
		if uncounted {
			unsubscribed = 1
		}
	}
	r.set(call, r.scripts.Acquire, token, r.args.ttl, policyArg, r.args.metadataTTL, queueTTL, maxWait, unsubscribed)
}

// SetAllow makes the call one of allow.lua.
func (r *Resource) SetAllow(call *transport.Call, token string) {
	r.set(call, r.scripts.Allow, token, r.args.ttl, r.args.policyArg, r.args.metadataTTL)
}

// SetFastAcquire makes the call one of the fast script that acquires.
func (r *Resource) SetFastAcquire(call *transport.Call, token string) {
	call.Scalar = true
	r.set(call, r.fast.Acquire, token, r.args.fast.ttl, r.args.fast.limits, r.args.fast.epoch)
}

// SetRelease makes the call one of release.lua. With entomb, a late copy of the request is refused. unused says that the caller never had the
// lease, so that nobody waits for its release. free is for how long the key of a mutex is left free after a lease that was used, now and then.
func (r *Resource) SetRelease(call *transport.Call, token string, entomb, unused bool, free time.Duration) {
	var tombstone, cancel, yield any
	if ms := free.Milliseconds(); ms > 0 && !unused {
		yield = ms
	}
	if entomb || unused || yield != nil {
		tombstone, cancel = 0, 0
	}
	if entomb {
		tombstone = r.args.tombstone
	}
	if unused {
		cancel = 1
	}
	call.Scalar, call.Urgent, call.Unawaited = true, true, unused
	r.set(call, r.scripts.Release, token, r.args.metadataTTL, tombstone, cancel, yield)
}

// SetFastRelease makes the call one of the fast script that releases, which does nothing if others wait.
func (r *Resource) SetFastRelease(call *transport.Call, token string) {
	call.Scalar, call.Urgent = true, true
	r.set(call, r.fast.Release, token)
}

// SetHandOn makes the call one of the fast script that releases a lock and hands it on.
func (r *Resource) SetHandOn(call *transport.Call, token string) {
	call.Scalar, call.Urgent = true, true
	r.set(call, r.fast.HandOn, token, r.args.channelPrefix, r.args.epoch, r.args.way)
}

// SetBreak makes the call one of break.lua, which ends somebody else's lease or place in the queue. protocol.BreakNotice makes the notice.
func (r *Resource) SetBreak(call *transport.Call, token, policyArg, notice string) {
	r.set(call, r.scripts.Break, token, r.args.metadataTTL, r.args.tombstone, policyArg, notice)
}

// SetComplete makes the call one of complete.lua, which replaces a lease by a record that lasts for recordTTL ms.
func (r *Resource) SetComplete(call *transport.Call, token string, recordTTL int64) {
	call.Scalar, call.Urgent = true, true
	r.set(call, r.scripts.Complete, token, recordTTL)
}

// SetDowngrade makes the call one of downgrade.lua, for a lease with that fence. upgrade is the token of the request by which the lease became
// one that writes, if a copy of this request may still be under way, and else empty.
func (r *Resource) SetDowngrade(call *transport.Call, token string, fence uint64, upgrade string) {
	call.Urgent = true
	r.set(call, r.scripts.Downgrade, token, int64(fence), r.args.metadataTTL, upgrade, r.args.tombstone)
}

// SetRenew makes the call a renewal for ms. With metadata it runs renew.lua, which also keeps the metadata and returns the fence. Without, it
// runs the fast script, which works while a cluster migrates the slot, because it takes one key.
func (r *Resource) SetRenew(call *transport.Call, token string, ms int64, metadata bool) {
	call.Urgent = true
	ttl := r.args.ttl // boxed already
	if ms != r.TTL {
		ttl = ms
	}
	if metadata {
		r.set(call, r.scripts.Renew, token, ttl, r.args.metadataTTL)
		return
	}
	call.Scalar = true
	r.set(call, r.fast.Renew, token, ttl)
}

// DecodeRenewal returns the reply to a renewal.
func (r *Resource) DecodeRenewal(call *transport.Call) (protocol.RenewReply, error) {
	if call.Script == r.fast.Renew {
		return Decode(call, protocol.ParseFastRenewReply)
	}
	return Decode(call, protocol.ParseRenewReply)
}

// SetHeartbeat makes the call one of heartbeat.lua. The caller then appends to Args the token of each waiter in the order of their places, each
// followed by its place in the queue if mode includes HeartbeatRejoin; place 0 is the end.
func (r *Resource) SetHeartbeat(call *transport.Call, mode, waiters int) {
	call.Urgent = true
	r.set(call, r.scripts.Heartbeat, r.args.metadataTTL, mode, r.args.policyArg, r.args.queueTTL)
	if mode&protocol.HeartbeatRejoin != 0 {
		waiters *= 2
	}
	call.Args = slices.Grow(call.Args, waiters)
}

// DecodeHeartbeat returns the reply to a heartbeat of that many waiters.
func DecodeHeartbeat(call *transport.Call, waiters int) (protocol.HeartbeatReply, error) {
	return Decode(call, func(n []int64) (protocol.HeartbeatReply, error) { return protocol.ParseHeartbeatReply(n, waiters) })
}

// ContinueAdmitting makes the server go on admitting waiters after a script reached the limit of one run.
func (r *Resource) ContinueAdmitting() {
	call := &transport.Call{Done: transport.Func(func(call *transport.Call) {
		if h, err := DecodeHeartbeat(call, 0); err == nil && h.More {
			r.ContinueAdmitting()
		}
	})}
	r.SetHeartbeat(call, 0, 0)
	r.s.Transport.Send(call)
}

// PageSize is the maximum number of holders or waiters that one script returns.
const PageSize = 500

// SetInspect makes the call one of inspect.lua. subject is one of protocol's, such as InspectHolders. A page begins behind the last holder that
// was listed: after is its place and token its token, or "" on the first page. For InspectBreak, token is the one that was broken.
func (r *Resource) SetInspect(call *transport.Call, subject int, after int64, count int, token string) {
	call.Mixed = true
	r.set(call, r.scripts.Inspect, subject, after, count, token)
}

// SetLimit makes the call one of limit.lua, which reads the limits or, if limit or pause is not 0, changes them.
func (r *Resource) SetLimit(call *transport.Call, limit int, token string, pause int64) {
	r.set(call, r.scripts.Limit, r.args.metadataTTL, r.args.policyArg, limit, token, pause)
}

// SetRaiseFence makes the call one of raise_fence.lua.
func (r *Resource) SetRaiseFence(call *transport.Call, token string, minFence, minUptime int64) {
	r.set(call, r.scripts.RaiseFence, token, minFence, r.args.metadataTTL, minUptime)
}
