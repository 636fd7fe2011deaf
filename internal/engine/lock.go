package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Bounds of what users may ask for. A lease shorter than the shortest would be over before its answer is read; the
// longest keeps every sum of milliseconds far from overflow.
const (
	ShortestTTL = 10 * time.Millisecond
	LongestTTL  = 365 * 24 * time.Hour
)

// Spec says what a lock is.
type Spec struct {
	Scripts     *lua.Set
	Name        string
	PlainKey    bool          // the lock's own key is prefix + name, shared with other libraries
	TTL         time.Duration // of its leases
	MaxLifetime time.Duration // after which a lease is not renewed any more; 0: no bound
	NoRenewal   bool          // leases are not renewed
	LocalQueue  bool          // the waiters of this process stand in line here, and one of them at the server
	Limits      *Limits       // of a semaphore, else nil
}

// Lock is one name of one kind, as one user set it up. It is immutable and safe for concurrent use.
type Lock struct {
	*sharedParams
	e        *Engine
	spec     Spec
	keys     [4]any // those of every command, as strings; see the places below
	claimTTL int64  // ms, of a lease that is granted by message and not yet confirmed
}

// The places of keys.
const (
	keyLock = iota
	keyMeta
	keyQueue
	keyHeartbeats
)

// scriptArgs is what of ARGV is always the same.
type scriptArgs struct{ ttl, metadataTTL, heartbeatTimeout, channelPrefix, sharded, extra any }

// sharedParams is what a lock has in common with others that ask in the same way, for there may be a hundred thousand of them.
type sharedParams struct {
	ttl     int64  // ms
	channel string // on which this keeper is woken
	args    scriptArgs
}

// Terms are what a request asks for beyond the lock itself; the policy reads flags and permits out of the token.
type Terms struct {
	Flags   string // lower-case letters; those of a semaphore come from its limits
	Permits int    // 0: not said
	Direct  bool   // of a conversion: it waits for nobody, and what comes allows less

	origin  *Lease // in whose place the lease comes, see Convert
	noLease bool   // the permits return by the clock alone: the request is granted without a lease
	quota   *Quota // what the answer says of the window, if a caller who does not wait wants to know
}

// Lock checks a spec and returns the lock.
func (e *Engine) Lock(spec Spec) (*Lock, error) {
	if e == nil {
		return nil, Invalid("the keeper is nil")
	}
	keys, err := protocol.KeysOf(e.cfg.Prefix, spec.Name, spec.Scripts.Keys, spec.PlainKey)
	if err != nil {
		return nil, Invalid("%w", err)
	}
	idle := e.cfg.MetadataTTL
	if spec.Limits != nil {
		idle += spec.Limits.Per
		if spec.Limits.receipts() {
			spec.TTL = e.cfg.HeartbeatTimeout // how long a grant that was not heard of yet is good for
		}
	}
	if err := CheckTTL("TTL", spec.TTL); err != nil {
		return nil, err
	}
	switch ack := e.cfg.ReplicaAck; {
	case !ack.enabled():
	case spec.Limits.receipts() && ack.Timeout >= spec.Limits.Per:
		return nil, Invalid("window %v is not longer than the keeper's ReplicaAck.Timeout %v", spec.Limits.Per, ack.Timeout)
	case !spec.Limits.receipts() && ack.Timeout >= spec.TTL:
		return nil, Invalid("TTL %v is not longer than the keeper's ReplicaAck.Timeout %v", spec.TTL, ack.Timeout)
	}
	if spec.MaxLifetime < 0 || spec.MaxLifetime > 0 && spec.MaxLifetime < spec.TTL {
		return nil, Invalid("MaxLifetime %v is shorter than TTL %v (0 means no bound)", spec.MaxLifetime, spec.TTL)
	}
	ttl := millis(spec.TTL)
	l := &Lock{e: e, spec: spec, claimTTL: min(ttl, millis(e.cfg.HeartbeatTimeout))}
	for i, key := range keys.All() {
		l.keys[i] = key
	}
	wake, sharded, extra := e.cfg.Prefix+"wake:", 0, ""
	if e.subscriber.Sharded() {
		wake, sharded = keys.ChannelPrefix(), 1
	}
	if spec.Limits != nil {
		extra = spec.Limits.extra()
	}
	l.sharedParams = e.paramsOf(sharedParams{ttl: ttl, args: scriptArgs{ttl, ttl + millis(idle), millis(e.cfg.HeartbeatTimeout), wake, sharded, extra}})
	return l, nil
}

// paramsOf is a manner like this one that other locks have as well, if the last one was like it.
func (e *Engine) paramsOf(m sharedParams) *sharedParams {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.params == nil || e.params.args != m.args {
		m.channel = m.args.channelPrefix.(string) + e.id
		e.params = &m
	}
	return e.params
}

// key is one of the lock's keys.
func (l *Lock) key(place int) string { return l.keys[place].(string) }

// allKeys is the keys in the order in which scripts take them.
func (l *Lock) allKeys() []string {
	return []string{l.key(keyLock), l.key(keyMeta), l.key(keyQueue), l.key(keyHeartbeats)}
}

// CheckTTL refuses a duration that cannot be a lease.
func CheckTTL(option string, d time.Duration) error {
	switch {
	case d < ShortestTTL:
		return Invalid("%s %v is shorter than %v, the time that an answer and clock drift may take", option, d, ShortestTTL)
	case d > LongestTTL:
		return Invalid("%s %v is longer than %v", option, d, LongestTTL)
	}
	return nil
}

// token names one request, and says what it asks for; TERMS in queue.lua takes it apart.
func (l *Lock) token(serial string, t Terms) string {
	flags := t.Flags
	if l.spec.Limits != nil {
		flags = l.spec.Limits.flags() + flags
	}
	return protocol.Token{
		Keeper: l.e.id, Serial: serial, TTL: l.ttl, ClaimTTL: l.claimTTL, Flags: flags, Number: int64(t.Permits),
	}.String()
}

func (l *Lock) event(what EventType) Event {
	return Event{Type: what, Kind: l.spec.Scripts.Kind, Name: l.spec.Name}
}

// Acquire waits for a lease until ctx ends.
func (l *Lock) Acquire(ctx context.Context, t Terms) (*Lease, error) {
	return l.obtainLease(ctx, t, true)
}

// Try asks once for a lease and never waits for another holder.
func (l *Lock) Try(ctx context.Context, t Terms) (*Lease, error) {
	return l.obtainLease(ctx, t, false)
}

func (l *Lock) obtainLease(ctx context.Context, t Terms, wait bool) (*Lease, error) {
	w, err := l.obtain(ctx, t, wait)
	if err != nil {
		return nil, err
	}
	return w.lease, nil
}

// obtain is one acquisition with its events. The request was granted if there is no error.
func (l *Lock) obtain(ctx context.Context, t Terms, wait bool) (*request, error) {
	if l.e.cfg.Observe == nil {
		w, err := l.request(ctx, t, wait)
		return w, l.alsoEnded(ctx, err)
	}
	began := time.Now()
	l.e.observe(l.event(AcquireStart))
	w, err := l.request(ctx, t, wait)
	err = l.alsoEnded(ctx, err)
	ev := l.event(AcquireDone)
	ev.Duration, ev.Err = time.Since(began), err
	if err == nil {
		ev.Token, ev.Fence = w.token, w.fence
	}
	l.e.observe(ev)
	return w, err
}

func (l *Lock) request(ctx context.Context, t Terms, wait bool) (*request, error) {
	if err := ctx.Err(); err != nil {
		return nil, l.fail(err) // nothing was asked, so nothing is known
	}
	if l.e.closing.Err() != nil {
		return nil, l.fail(ErrClosed)
	}
	w, err := l.ask(ctx, t, wait)
	if err == nil && l.e.cfg.ReplicaAck.enabled() {
		err = l.awaitReplicas(ctx, w, w.lease)
	}
	if err == nil && (w.lease == nil || w.lease.receipt) && w.hasInDoubt() {
		// What was granted is not released, so nothing else keeps a copy of the request from taking the permits again.
		l.tombstone(ctx, w.token)
	}
	return w, err
}

// ask acquires without regard to replicas.
func (l *Lock) ask(ctx context.Context, t Terms, wait bool) (*request, error) {
	if !wait || !l.spec.LocalQueue {
		return l.acquire(ctx, t, wait, nil)
	}
	c, leave, err := l.e.waitLocally(ctx, l.key(keyQueue), l.e.maxAge())
	if err != nil {
		return nil, l.fail(err)
	}
	defer leave()
	return l.acquire(ctx, t, wait, c)
}

// alsoEnded is the error of a request whose context may have ended, which it then says, whatever else has happened.
func (l *Lock) alsoEnded(ctx context.Context, err error) error {
	if end := ctx.Err(); err != nil && end != nil && !errors.Is(err, end) {
		return l.fail(err, end)
	}
	return err
}

// Adopt makes a lease out of a token that another process, or an earlier life of this one, was granted; it extends it
// to the whole ttl. The error is ErrLost if the token does not hold the lock any more. After any other error the lease is
// still that process's, and perhaps longer than before.
func (l *Lock) Adopt(ctx context.Context, token string) (*Lease, error) {
	if token == "" {
		return nil, Invalid("the token is empty")
	}
	if l.spec.Limits.receipts() {
		return nil, Invalid("the permits of %q return by the clock: there is no lease to adopt", l.spec.Name)
	}
	return l.adopt(ctx, token, nil)
}

// adopt is Adopt; the lease becomes a part of the whole, if there is one.
func (l *Lock) adopt(ctx context.Context, token string, whole *MajorityLease) (*Lease, error) {
	for began := time.Now(); ; {
		r, err := l.renew(ctx, token, l.ttl, renewMetadata, false)
		if err != nil {
			return nil, l.fail(err)
		}
		if !r.held {
			return nil, l.fail(ErrLost, ErrNotHeld)
		}
		if l.e.cfg.ReplicaAck.enabled() {
			if r, err = l.replicateRenewal(ctx, token); err != nil {
				return nil, l.fail(err)
			}
		}
		h := l.newLease(token, r.fence, r.sent.Add(l.trusted(l.ttl)))
		now := time.Now()
		if !now.Before(h.deadline) { // too late, as in waiter.ask
			if ctx.Err() != nil || l.e.cfg.Retry.Exhausted(began, now) {
				return nil, l.fail(ErrTooLate, ctx.Err())
			}
			continue
		}
		h.majority, h.adopted = whole, true
		if !l.e.addLease(h) {
			return nil, l.fail(ErrClosed)
		}
		h.start()
		return h, nil
	}
}

// trusted is how long a lease of so many ms may be believed, from the moment its request was sent.
func (l *Lock) trusted(ms int64) time.Duration {
	d := duration(ms)
	return d - Margin(d)
}

// boolArg is how scripts take a yes or no.
func boolArg(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// call prepares a run of one of the lock's scripts on so many of its keys, with room for how many arguments.
func (l *Lock) call(s *lua.Script, keys, room int, done func(*transport.Call)) *transport.Call {
	args := s.AppendCommand(make([]any, 0, 3+keys+room), l.keys[:keys]...)
	return &transport.Call{Script: s, Key: l.key(keyLock), Args: args, Done: done}
}
