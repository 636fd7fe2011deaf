package server

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file prepares the calls of all scripts. Package protocol encodes their arguments and decodes their replies.

// call prepares a call of a script with room for that many arguments.
func (l *Lock) call(s *lua.Script, room int, done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	l.SetCall(call, s, room)
	return call
}

// SetCall is call for a Call that exists.
func (l *Lock) SetCall(call *transport.Call, s *lua.Script, room int) {
	call.Key = l.KeyOf(LockKey)
	var keys [4]any
	for i, key := range s.Keys {
		keys[i] = l.keys[key]
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
func (l *Lock) SetAcquire(call *transport.Call, token string, policyArg, maxWait any, unsubscribed bool) {
	l.SetCall(call, l.scripts.Acquire, 7)
	call.Args = l.AcquireArgs(call.Args, token, policyArg, maxWait, unsubscribed)
}

// AcquireArgs appends the arguments of acquire.lua to a command.
func (l *Lock) AcquireArgs(command []any, token string, policyArg, maxWait any, unsubscribed bool) []any {
	queueTTL, uncounted := l.args.queueTTL, any(nil)
	if maxWait == nil {
		queueTTL = nil
	}
	if unsubscribed {
		uncounted = 1
	}
	return protocol.AcquireArgs(command, token, l.args.leaseTTL, policyArg, l.args.metadataTTL, queueTTL, maxWait, uncounted)
}

// SetAllow makes the call one of allow.lua.
func (l *Lock) SetAllow(call *transport.Call, token string) {
	l.SetCall(call, l.scripts.Allow, 4)
	call.Args = protocol.AllowArgs(call.Args, token, l.args.leaseTTL, l.args.policyArg, l.args.metadataTTL)
}

// SetFastAcquire makes the call one of the fast script that acquires.
func (l *Lock) SetFastAcquire(call *transport.Call, token string) {
	l.SetCall(call, l.fast.Acquire, 4)
	call.Scalar = true
	call.Args = protocol.FastAcquireArgs(call.Args, token, l.args.fastTTL, l.args.fastLimits, l.args.fastEpoch)
}

// The values of release.lua's argument cancel.
const (
	UsedLease           = 0 // the lease was in use
	UnusedLease         = 1 // the caller never had the lease, so nothing was done under it
	UnusedUnlessGranted = 2 // as UnusedLease, but a lease that replaced the origin is not released; the reply is Held
)

// SetRelease makes the call a release. If tombstone is not 0, the token is not granted for that many ms. yield is for how long the release of a
// lease that was in use leaves the key of a mutex free, now and then. Nobody waits for the release of one that nobody ever had.
func (l *Lock) SetRelease(call *transport.Call, token string, tombstone int64, cancel int, yield time.Duration) {
	var leaveFree int64
	if cancel == UsedLease {
		leaveFree = Millis(yield)
	}
	l.SetCall(call, l.scripts.Release, 5)
	call.Scalar, call.Urgent, call.Unawaited = true, true, cancel == UnusedLease
	call.Args = protocol.ReleaseArgs(call.Args, token, l.args.metadataTTL, tombstone, cancel, leaveFree)
}

// SetFastRelease makes the call one of the fast script that releases, which does nothing if others wait.
func (l *Lock) SetFastRelease(call *transport.Call, token string) {
	l.SetCall(call, l.fast.Release, 1)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.FastReleaseArgs(call.Args, token)
}

// SetHandOn makes the call one of the fast script that releases a lock and hands it on.
func (l *Lock) SetHandOn(call *transport.Call, token string) {
	l.SetCall(call, l.fast.HandOn, 4)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.HandOnArgs(call.Args, token, l.args.channelPrefix, l.args.epoch, l.args.way)
}

// SetBreak makes the call the end of somebody else's lease or queue entry. The notice is for its keeper.
func (l *Lock) SetBreak(call *transport.Call, token, policyArg, notice string) {
	l.SetCall(call, l.scripts.Break, 5)
	call.Args = protocol.BreakArgs(call.Args, token, l.args.metadataTTL, Millis(TombstoneTTL), policyArg, notice)
}

// SetCompletion makes the call the replacement of a lease by a record that lasts for so many ms.
func (l *Lock) SetCompletion(call *transport.Call, token string, recordTTL int64) {
	l.SetCall(call, l.scripts.Complete, 2)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.CompleteArgs(call.Args, token, recordTTL)
}

// RenewCall prepares a renewal. With metadata it also extends those, and returns the fence. Without, it takes one key, so that it works while a
// cluster migrates the slot.
func (l *Lock) RenewCall(token string, ttl int64, metadata bool, done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	l.SetRenewal(call, token, ttl, metadata)
	return call
}

// SetRenewal is RenewCall for a Call that exists.
func (l *Lock) SetRenewal(call *transport.Call, token string, ttl int64, metadata bool) {
	call.Urgent = true
	if metadata {
		l.SetCall(call, l.scripts.Renew, 3)
		call.Args = l.RenewArgs(call.Args, token, ttl)
		return
	}
	l.SetCall(call, l.fast.Renew, 2)
	call.Scalar = true
	call.Args = protocol.FastRenewArgs(call.Args, token, ttl)
}

// DecodeRenewal returns the reply to a renewal.
func (l *Lock) DecodeRenewal(call *transport.Call) (protocol.RenewReply, error) {
	if call.Script == l.fast.Renew {
		return Decode(call, protocol.ParseFastRenewReply)
	}
	return Decode(call, protocol.ParseRenewReply)
}

// RenewArgs appends the arguments of renew.lua to a command.
func (l *Lock) RenewArgs(command []any, token string, ttl int64) []any {
	return protocol.RenewArgs(command, token, ttl, l.args.metadataTTL)
}

// HeartbeatCall prepares a heartbeat command of that mode, for that many waiters. The caller appends their tokens, and their places if
// they are to be queued again.
func (l *Lock) HeartbeatCall(mode, waiters int, done func(*transport.Call)) *transport.Call {
	room := waiters
	if mode&protocol.HeartbeatRejoin != 0 {
		room = 2 * waiters
	}
	call := l.call(l.scripts.Heartbeat, 4+room, done)
	call.Urgent = true
	call.Args = protocol.HeartbeatArgs(call.Args, l.args.metadataTTL, mode, l.args.policyArg, l.args.queueTTL)
	return call
}

// DecodeHeartbeat returns the reply to a heartbeat command with that many waiters.
func DecodeHeartbeat(call *transport.Call, waiters int) (protocol.HeartbeatReply, error) {
	return Decode(call, func(n []int64) (protocol.HeartbeatReply, error) { return protocol.ParseHeartbeatReply(n, waiters) })
}

// PageSize is the maximum number of holders or waiters that one script returns.
const PageSize = 500

// SetInspection makes the call the reading of one page of holders or waiters.
func (l *Lock) SetInspection(call *transport.Call, subject int, after int64, count int, token string) {
	l.SetCall(call, l.scripts.Inspect, 4)
	call.Mixed = true
	call.Args = protocol.InspectArgs(call.Args, subject, after, count, token)
}

// SetBreakerCall makes the call the question who has broken what the token had.
func (l *Lock) SetBreakerCall(call *transport.Call, token string) {
	l.SetCall(call, l.scripts.Inspect, 4)
	call.Mixed, call.Urgent = true, true
	call.Args = protocol.InspectArgs(call.Args, protocol.InspectBreak, 0, PageSize, token)
}

// SetLimitCall makes the call the reading of the limits or, if limit or pause is not 0, their change.
func (l *Lock) SetLimitCall(call *transport.Call, limit int, token string, pause int64) {
	l.SetCall(call, l.scripts.Limit, 5)
	call.Args = protocol.LimitArgs(call.Args, l.args.metadataTTL, l.args.policyArg, limit, token, pause)
}

// RaiseFenceCall prepares a call of raise_fence.lua. MinUptime is in ms.
func (l *Lock) RaiseFenceCall(token string, fence, minUptime int64, done func(*transport.Call)) *transport.Call {
	call := l.call(l.scripts.RaiseFence, 4, done)
	call.Args = protocol.RaiseFenceArgs(call.Args, token, fence, l.args.metadataTTL, minUptime)
	return call
}

// serverIDKey says which node of a cluster is queried for its identity: the same one for two keepers on the same cluster.
const serverIDKey = "lockkeeper"

// identityCall prepares a query of the server's run_id.
func (l *Lock) identityCall(done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Key: serverIDKey, Done: transport.Func(done)}
	call.SetCommand(l.scripts.Identity, 0)
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
func (l *Lock) ContinueAdmitting() {
	l.s.Transport.Send(l.HeartbeatCall(0, 0, func(call *transport.Call) {
		if h, err := DecodeHeartbeat(call, 0); err == nil && h.More {
			l.ContinueAdmitting()
		}
	}))
}
