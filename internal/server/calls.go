package server

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file prepares the calls of all scripts. Package protocol encodes their arguments and decodes their replies.

// call prepares a call of a script with room for that many arguments.
func (r *Resource) call(s *lua.Script, room int, done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	r.SetCall(call, s, room)
	return call
}

// SetCall is call for a Call that exists.
func (r *Resource) SetCall(call *transport.Call, s *lua.Script, room int) {
	call.Key = r.KeyOf(LockKey)
	var keys [4]any
	for i, key := range s.Keys {
		keys[i] = r.keys[key]
	}
	call.SetCommand(s, room, keys[:len(s.Keys)]...)
}

// Decode returns the reply of a call, by one of protocol's functions, or why there is none.
func Decode[T any](call *transport.Call, parse func([]int64) (T, error)) (T, error) {
	if call.Err != nil {
		var none T
		return none, Unavailable(call.Err)
	}
	return parse(call.Reply)
}

// SetAcquire makes the call one of acquire.lua. Without a maxWait the request does not wait. unsubscribed says that it does not count on
// the subscription of the keeper if it has to.
func (r *Resource) SetAcquire(call *transport.Call, token string, policyArg, maxWait any, unsubscribed bool) {
	r.SetCall(call, r.scripts.Acquire, 7)
	call.Args = r.AcquireArgs(call.Args, token, policyArg, maxWait, unsubscribed)
}

// AcquireArgs appends the arguments of acquire.lua to a command.
func (r *Resource) AcquireArgs(command []any, token string, policyArg, maxWait any, unsubscribed bool) []any {
	queueTTL, uncounted := r.args.queueTTL, any(nil)
	if maxWait == nil {
		queueTTL = nil
	}
	if unsubscribed {
		uncounted = 1
	}
	return protocol.AcquireArgs(command, token, r.args.leaseTTL, policyArg, r.args.metadataTTL, queueTTL, maxWait, uncounted)
}

// SetAllow makes the call one of allow.lua.
func (r *Resource) SetAllow(call *transport.Call, token string) {
	r.SetCall(call, r.scripts.Allow, 4)
	call.Args = protocol.AllowArgs(call.Args, token, r.args.leaseTTL, r.args.policyArg, r.args.metadataTTL)
}

// SetFastAcquire makes the call one of the fast script that acquires.
func (r *Resource) SetFastAcquire(call *transport.Call, token string) {
	r.SetCall(call, r.fast.Acquire, 4)
	call.Scalar = true
	call.Args = protocol.FastAcquireArgs(call.Args, token, r.args.fastTTL, r.args.fastLimits, r.args.fastEpoch)
}

// The values of release.lua's argument cancel.
const (
	UsedLease   = 0 // the lease was in use
	UnusedLease = 1 // the caller never had the lease, so nothing was done under it
)

// SetRelease makes the call a release. If tombstone is not 0, the token is not granted for that many ms. yield is for how long the release of a
// lease that was in use leaves the key of a mutex free, now and then. Nobody waits for the release of one that nobody ever had.
func (r *Resource) SetRelease(call *transport.Call, token string, tombstone int64, cancel int, yield time.Duration) {
	var leaveFree int64
	if cancel == UsedLease {
		leaveFree = Millis(yield)
	}
	r.SetCall(call, r.scripts.Release, 5)
	call.Scalar, call.Urgent, call.Unawaited = true, true, cancel == UnusedLease
	call.Args = protocol.ReleaseArgs(call.Args, token, r.args.metadataTTL, tombstone, cancel, leaveFree)
}

// SetFastRelease makes the call one of the fast script that releases, which does nothing if others wait.
func (r *Resource) SetFastRelease(call *transport.Call, token string) {
	r.SetCall(call, r.fast.Release, 1)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.FastReleaseArgs(call.Args, token)
}

// SetHandOn makes the call one of the fast script that releases a lock and hands it on.
func (r *Resource) SetHandOn(call *transport.Call, token string) {
	r.SetCall(call, r.fast.HandOn, 4)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.HandOnArgs(call.Args, token, r.args.channelPrefix, r.args.epoch, r.args.way)
}

// SetBreak makes the call the end of somebody else's lease or queue entry. The notice is for its keeper.
func (r *Resource) SetBreak(call *transport.Call, token, policyArg, notice string) {
	r.SetCall(call, r.scripts.Break, 5)
	call.Args = protocol.BreakArgs(call.Args, token, r.args.metadataTTL, Millis(TombstoneTTL), policyArg, notice)
}

// SetCompletion makes the call the replacement of a lease by a record that lasts for so many ms.
func (r *Resource) SetCompletion(call *transport.Call, token string, recordTTL int64) {
	r.SetCall(call, r.scripts.Complete, 2)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.CompleteArgs(call.Args, token, recordTTL)
}

// SetDowngrade makes the call the downgrade of a lease with that fence. upgrade is the token of the request by which it writes, if a copy of
// that may still be under way.
func (r *Resource) SetDowngrade(call *transport.Call, token string, fence uint64, upgrade string) {
	r.SetCall(call, r.scripts.Downgrade, 5)
	call.Urgent = true
	call.Args = protocol.DowngradeArgs(call.Args, token, int64(fence), r.args.metadataTTL, upgrade, Millis(TombstoneTTL))
}

// RenewCall prepares a renewal. With metadata it also extends those, and returns the fence. Without, it takes one key, so that it works while a
// cluster migrates the slot.
func (r *Resource) RenewCall(token string, ttl int64, metadata bool, done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	r.SetRenewal(call, token, ttl, metadata)
	return call
}

// SetRenewal is RenewCall for a Call that exists.
func (r *Resource) SetRenewal(call *transport.Call, token string, ttl int64, metadata bool) {
	call.Urgent = true
	if metadata {
		r.SetCall(call, r.scripts.Renew, 3)
		call.Args = r.RenewArgs(call.Args, token, ttl)
		return
	}
	r.SetCall(call, r.fast.Renew, 2)
	call.Scalar = true
	call.Args = protocol.FastRenewArgs(call.Args, token, ttl)
}

// DecodeRenewal returns the reply to a renewal.
func (r *Resource) DecodeRenewal(call *transport.Call) (protocol.RenewReply, error) {
	if call.Script == r.fast.Renew {
		return Decode(call, protocol.ParseFastRenewReply)
	}
	return Decode(call, protocol.ParseRenewReply)
}

// RenewArgs appends the arguments of renew.lua to a command.
func (r *Resource) RenewArgs(command []any, token string, ttl int64) []any {
	return protocol.RenewArgs(command, token, ttl, r.args.metadataTTL)
}

// HeartbeatCall prepares a heartbeat command of that mode, for that many waiters. The caller appends their tokens, and their places if
// they are to be queued again.
func (r *Resource) HeartbeatCall(mode, waiters int, done func(*transport.Call)) *transport.Call {
	room := waiters
	if mode&protocol.HeartbeatRejoin != 0 {
		room = 2 * waiters
	}
	call := r.call(r.scripts.Heartbeat, 4+room, done)
	call.Urgent = true
	call.Args = protocol.HeartbeatArgs(call.Args, r.args.metadataTTL, mode, r.args.policyArg, r.args.queueTTL)
	return call
}

// DecodeHeartbeat returns the reply to a heartbeat command with that many waiters.
func DecodeHeartbeat(call *transport.Call, waiters int) (protocol.HeartbeatReply, error) {
	return Decode(call, func(n []int64) (protocol.HeartbeatReply, error) { return protocol.ParseHeartbeatReply(n, waiters) })
}

// PageSize is the maximum number of holders or waiters that one script returns.
const PageSize = 500

// SetInspection makes the call the reading of one page of holders or waiters.
func (r *Resource) SetInspection(call *transport.Call, subject int, after int64, count int, token string) {
	r.SetCall(call, r.scripts.Inspect, 4)
	call.Mixed = true
	call.Args = protocol.InspectArgs(call.Args, subject, after, count, token)
}

// SetBreakerCall makes the call the question who has broken what the token had.
func (r *Resource) SetBreakerCall(call *transport.Call, token string) {
	r.SetCall(call, r.scripts.Inspect, 4)
	call.Mixed, call.Urgent = true, true
	call.Args = protocol.InspectArgs(call.Args, protocol.InspectBreak, 0, PageSize, token)
}

// SetLimitCall makes the call the reading of the limits or, if limit or pause is not 0, their change.
func (r *Resource) SetLimitCall(call *transport.Call, limit int, token string, pause int64) {
	r.SetCall(call, r.scripts.Limit, 5)
	call.Args = protocol.LimitArgs(call.Args, r.args.metadataTTL, r.args.policyArg, limit, token, pause)
}

// RaiseFenceCall prepares a call of raise_fence.lua. MinUptime is in ms.
func (r *Resource) RaiseFenceCall(token string, fence, minUptime int64, done func(*transport.Call)) *transport.Call {
	call := r.call(r.scripts.RaiseFence, 4, done)
	call.Args = protocol.RaiseFenceArgs(call.Args, token, fence, r.args.metadataTTL, minUptime)
	return call
}

// serverIDKey says which node of a cluster is queried for its identity: the same one for two keepers on the same cluster.
const serverIDKey = "lockkeeper"

// identityCall prepares a query of the server's run_id.
func (r *Resource) identityCall(done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Key: serverIDKey, Done: transport.Func(done)}
	call.SetCommand(r.scripts.Identity, 0)
	return call
}

// BoolArg encodes a boolean for scripts.
func BoolArg(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// ContinueAdmitting makes the server go on admitting waiters after a script reached the limit of one run.
func (r *Resource) ContinueAdmitting() {
	r.s.Transport.Send(r.HeartbeatCall(0, 0, func(call *transport.Call) {
		if h, err := DecodeHeartbeat(call, 0); err == nil && h.More {
			r.ContinueAdmitting()
		}
	}))
}
