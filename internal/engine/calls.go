package engine

import (
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file prepares the calls of all scripts. Package protocol encodes their arguments and decodes their replies.

// call prepares a call of a script with the first keys of the lock and room for that many arguments.
func (l *Lock) call(s *lua.Script, keys, room int, done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	l.setCall(call, s, keys, room)
	return call
}

// setCall is call for a Call that exists.
func (l *Lock) setCall(call *transport.Call, s *lua.Script, keys, room int) {
	call.Key = l.key(keyLock)
	call.SetCommand(s, room, l.keys[:keys]...)
}

// decode returns the reply of a call, by one of protocol's functions, or why there is none.
func decode[T any](call *transport.Call, parse func([]int64) (T, error)) (T, error) {
	if call.Err != nil {
		var none T
		return none, unavailable(call.Err)
	}
	return parse(call.Reply)
}

// setAcquire makes the call one of acquire.lua or allow.lua. Without a maxWait the request does not wait.
func (l *Lock) setAcquire(call *transport.Call, s *lua.Script, token string, policyArg, maxWait any) {
	l.setCall(call, s, 4, 6)
	call.Scalar = s != l.spec.Scripts.Allow
	call.Args = l.acquireArgs(call.Args, token, policyArg, maxWait)
}

func (l *Lock) acquireArgs(command []any, token string, policyArg, maxWait any) []any {
	queueTTL := l.args.queueTTL
	if maxWait == nil {
		queueTTL = nil
	}
	return protocol.AcquireArgs(command, token, l.args.ttl, policyArg, l.args.settings, queueTTL, maxWait)
}

// setShortAcquire makes the call one of acquire.lua for the short form alone.
func (l *Lock) setShortAcquire(call *transport.Call, token string) {
	l.setCall(call, l.spec.Scripts.Acquire, l.spec.Scripts.ShortKeys, 4)
	call.Scalar = true
	call.Args = protocol.AcquireArgs(call.Args, token, l.args.ttl, l.args.shortPolicyArg, l.args.shortSettings, nil, nil)
}

// The values of release.lua's argument cancel.
const (
	usedLease           = 0 // the lease was in use
	unusedLease         = 1 // the caller never had the lease, so nothing was done under it
	unusedUnlessGranted = 2 // as unusedLease, but a lease that replaced the origin is not released; the reply is Held
)

// setRelease makes the call a release. If tombstone is not 0, the token is not granted for that many ms.
func (l *Lock) setRelease(call *transport.Call, token string, tombstone int64, cancel int) {
	keys := 3
	if tombstone != 0 {
		keys = 4
	}
	yield := int64(0)
	if cancel == usedLease {
		yield = millis(l.spec.Yield)
	}
	l.setCall(call, l.spec.Scripts.Release, keys, 5)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.ReleaseArgs(call.Args, token, l.args.settings, tombstone, cancel, yield)
}

// setShortRelease makes the call a release in the short form, which does nothing if others wait.
func (l *Lock) setShortRelease(call *transport.Call, token string) {
	call.Key = l.key(keyLock)
	call.SetCommand(l.spec.Scripts.Release, 1, l.keys[keyLock], l.keys[keyQueue])
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.ReleaseArgs(call.Args, token, nil, 0, usedLease, 0)
}

// setBreak makes the call the end of somebody else's lease or queue entry. The notice is for its keeper.
func (l *Lock) setBreak(call *transport.Call, token, policyArg, notice string) {
	l.setCall(call, l.spec.Scripts.Break, 4, 5)
	call.Args = protocol.BreakArgs(call.Args, token, l.args.settings, millis(tombstoneTTL), policyArg, notice)
}

// setCompletion makes the call the replacement of a lease by a record that lasts for so many ms.
func (l *Lock) setCompletion(call *transport.Call, token string, recordTTL int64) {
	l.setCall(call, l.spec.Scripts.Complete, 1, 2)
	call.Scalar, call.Urgent = true, true
	call.Args = protocol.CompleteArgs(call.Args, token, recordTTL)
}

// What a renewal does, by how many of the lock's keys it takes.
const (
	renewOnly      = 1 // the lease alone, which also works while a cluster migrates the slot
	renewMetadata  = 2 // also extends the metadata, and returns the fence
	renewAndNotify = 4 // also notifies the head of the queue of the new end
)

// renewCall prepares a renewal. An exact one may shorten the lease; others must not, since a copy may run late. If the lease is
// retained, the reply says whether it was recalled.
func (l *Lock) renewCall(token string, ttl int64, keys int, exact, retained bool, done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Done: transport.Func(done)}
	l.setRenewal(call, token, ttl, keys, exact, retained)
	return call
}

// setRenewal is renewCall for a Call that exists.
func (l *Lock) setRenewal(call *transport.Call, token string, ttl int64, keys int, exact, retained bool) {
	l.setCall(call, l.spec.Scripts.Renew, keys, 5)
	call.Urgent = true
	call.Args = l.renewArgs(call.Args, token, ttl, exact, retained)
}

func (l *Lock) renewArgs(command []any, token string, ttl int64, exact, retained bool) []any {
	var ask any
	if retained {
		ask = 1
	}
	return protocol.RenewArgs(command, token, ttl, boolArg(exact), l.args.settings, ask)
}

// heartbeatCall prepares a heartbeat command of that mode, for that many waiters. The caller appends their tokens, and their places if
// they are to be queued again.
func (l *Lock) heartbeatCall(mode, waiters int, done func(*transport.Call)) *transport.Call {
	room := waiters
	if mode&protocol.HeartbeatRejoin != 0 {
		room = 2 * waiters
	}
	call := l.call(l.spec.Scripts.Heartbeat, 4, 4+room, done)
	call.Urgent = true
	call.Args = protocol.HeartbeatArgs(call.Args, l.args.settings, mode, l.args.policyArg, l.args.queueTTL)
	return call
}

// decodeHeartbeat returns the reply to a heartbeat command with that many waiters.
func decodeHeartbeat(call *transport.Call, waiters int) (protocol.HeartbeatReply, error) {
	return decode(call, func(n []int64) (protocol.HeartbeatReply, error) { return protocol.ParseHeartbeatReply(n, waiters) })
}

// setInspection makes the call the reading of one page of holders or waiters.
func (l *Lock) setInspection(call *transport.Call, subject int, after int64, count int, token string) {
	l.setCall(call, l.spec.Scripts.Inspect, 4, 4)
	call.Mixed = true
	call.Args = protocol.InspectArgs(call.Args, subject, after, count, token)
}

// setBreakerCall makes the call the question who has broken what the token had.
func (l *Lock) setBreakerCall(call *transport.Call, token string) {
	l.setCall(call, l.spec.Scripts.Inspect, 4, 4)
	call.Mixed, call.Urgent = true, true
	call.Args = protocol.InspectArgs(call.Args, protocol.InspectBreak, 0, pageSize, token)
}

// setLimitCall makes the call the reading of the limits or, if limit or pause is not 0, their change.
func (l *Lock) setLimitCall(call *transport.Call, limit int, token string, pause int64) {
	l.setCall(call, l.spec.Scripts.Limit, 4, 5)
	call.Args = protocol.LimitArgs(call.Args, l.args.settings, l.args.policyArg, limit, token, pause)
}

// raiseFenceCall prepares a call of raise_fence.lua. MinUptime is in ms.
func (l *Lock) raiseFenceCall(token string, fence, minUptime int64, done func(*transport.Call)) *transport.Call {
	call := l.call(l.spec.Scripts.RaiseFence, 2, 4, done)
	call.Args = protocol.RaiseFenceArgs(call.Args, token, fence, l.args.settings, minUptime)
	return call
}

// serverIDKey says which node of a cluster is queried for its identity: the same one for two keepers on the same cluster.
const serverIDKey = "lockkeeper"

// identityCall prepares a query of the server's run_id.
func (l *Lock) identityCall(done func(*transport.Call)) *transport.Call {
	call := &transport.Call{Key: serverIDKey, Done: transport.Func(done)}
	call.SetCommand(l.spec.Scripts.Identity, 0)
	return call
}

// boolArg encodes a boolean for scripts.
func boolArg(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
