package keeper

import (
	"context"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Spec describes a lock.
type Spec struct {
	Scripts     *lua.Set
	Name        string
	TTL         time.Duration // of its leases
	MaxLifetime time.Duration // after which a lease is no longer renewed; 0: no bound
	NoRenewal   bool          // leases are not renewed
	LocalQueue  bool          // waiters of this process queue here first, and one of them at the server
	Yield       time.Duration // of a mutex: how long a release leaves the key free, now and then; 0: never
	Limits      *Limits       // of a semaphore, else nil
}

// Lock is one name of one primitive with the settings of one user. It is safe for concurrent use, and immutable but for what all
// locks of the name share.
type Lock struct {
	server.Resource
	*settings
	FastBackoff *server.FastBackoffs // of the name
	k           *Keeper
}

// settings are shared by locks with identical ones, to save memory.
type settings struct {
	Rules claim.Rules // of the leases
	spec  Spec        // without the name
}

// AtServer returns the lock as package server has it.
func (l *Lock) AtServer() *server.Resource { return &l.Resource }

// Terms are what a request asks for beyond the lock itself. The policy reads flags and permits from the token.
type Terms struct {
	Flags  string // lower-case letters; those of a semaphore come from its limits
	Number int    // a count of permits, or a writer's streak; 0: none

	Observer    Observer     // gets the events of the lease; nil: the keeper's hooks alone
	Queued      func()       // called when the server has queued the request; may be nil
	Observation *Observation // of the call, whose start was reported already; nil: Acquire, Try and Upgrade report it
	Turn        Turn         // the caller's turn among the callers of this process; zero: it waits in the local queue, if the lock has one

	note  string // of the caller; see WithNote
	lease *Lease // the lease to convert; see Upgrade and Downgrade
	quota *Quota // where to store what the answer says of the window; nil: nowhere
}

// Lock returns the lock of a spec. The error is ErrInvalid.
func (k *Keeper) Lock(spec Spec) (*Lock, error) {
	l, err := k.newLock(spec)
	if err != nil {
		return nil, server.OfLock(spec.Scripts.Kind, spec.Name, err)
	}
	return l, nil
}

func (k *Keeper) newLock(spec Spec) (*Lock, error) {
	if k == nil {
		return nil, server.Invalid("the keeper is nil")
	}
	shared := server.Spec{Scripts: spec.Scripts, Name: spec.Name, MetadataTTL: k.Config.MetadataTTL}
	if spec.Limits != nil {
		shared.PolicyArg = spec.Limits.policyArg()
		shared.MetadataTTL += 2 * spec.Limits.Per // after a use, the metadata is only sure to last half of this
		if spec.Limits.clockOnly() {
			spec.TTL = k.Config.HeartbeatTimeout // of a grant by a message, until it is confirmed
		}
	}
	shared.TTL = spec.TTL
	l := &Lock{k: k}
	if err := k.InitResource(l.AtServer(), shared); err != nil {
		return nil, err
	}
	of := settings{spec: spec, Rules: claim.Rules{
		TTL: l.TTL, ClaimTTL: l.ClaimTTL, HeartbeatTimeout: k.Config.HeartbeatTimeout, MetadataTTL: k.Config.MetadataTTL,
		MaxLifetime: spec.MaxLifetime, NoRenewal: spec.NoRenewal, ByClock: spec.Limits.clockOnly(),
	}}
	of.spec.Name = ""
	switch ack := k.cfg.ReplicaAck; {
	case !ack.enabled():
	case spec.Limits.clockOnly() && ack.Timeout >= spec.Limits.Per:
		return nil, server.Invalid("window %v is not longer than the keeper's ReplicaAck.Timeout %v", spec.Limits.Per, ack.Timeout)
	case !spec.Limits.clockOnly() && ack.Timeout >= spec.TTL:
		return nil, server.Invalid("TTL %v is not longer than the keeper's ReplicaAck.Timeout %v", spec.TTL, ack.Timeout)
	}
	if spec.MaxLifetime < 0 || spec.MaxLifetime > 0 && spec.MaxLifetime < spec.TTL {
		return nil, server.Invalid("MaxLifetime %v is shorter than TTL %v (0 means no bound)", spec.MaxLifetime, spec.TTL)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	shares, known := k.fastBackoffs.Get(l.Key())
	if !known {
		shares = &server.FastBackoffs{}
		k.fastBackoffs.Add(l.Key(), shares)
	}
	l.FastBackoff = shares
	if k.settings == nil || *k.settings != of {
		k.settings = &of
	}
	l.settings = k.settings
	return l, nil
}

// Spec describes the lock.
func (l *Lock) Spec() Spec {
	spec := l.spec
	spec.Name = l.Name()
	return spec
}

// newToken returns the token of a new request, and its serial, which shares the token's memory. The policy reads the flags and the
// number, people read the note.
func (l *Lock) newToken(flags string, number int64, note string) (token, serial string) {
	if l.spec.Limits != nil {
		flags = l.spec.Limits.flags() + flags
	}
	drawn, keeper := protocol.NewSerial(), l.k.Subscriber.ID(l.Channel)
	token = protocol.Token{
		Keeper: keeper, Serial: string(drawn[:]), Note: note, TTL: l.TTL, ClaimTTL: l.ClaimTTL, Flags: flags, Number: number,
	}.String()
	start := len(keeper) + len(":")
	return token, token[start : start+len(drawn)]
}

// An acquisition passes these functions, each of which adds one thing:
//
//	Acquire, Try, Take, TryTake, Upgrade   what the caller gets: a lease, a fence, or what remains of a window
//	acquire                                the events AcquireStart and AcquireDone
//	Request                                the acknowledgement of replicas
//	acquireInTurn                          the turn of the caller among those of this process
//	ask                                    the request
//	request.run                            the wait until the request has ended; its claim decides (package claim)

// Acquire waits for a lease until ctx ends. Package lockkeeper documents the errors.
func (l *Lock) Acquire(ctx context.Context, t Terms) (*Lease, error) {
	return l.acquire(ctx, t, true, (*Lock).Request)
}

// Try asks for a lease and never waits for another holder.
func (l *Lock) Try(ctx context.Context, t Terms) (*Lease, error) {
	return l.acquire(ctx, t, false, (*Lock).Request)
}

// Do calls fn while holding a lease, for which it waits as Acquire does.
func (l *Lock) Do(ctx context.Context, t Terms, fn func(ctx context.Context, fence uint64) error) error {
	if fn == nil {
		return l.Invalid("fn is nil")
	}
	h, err := l.Acquire(ctx, t)
	if err != nil {
		return err
	}
	return lifecycle.Do(ctx, h, fn)
}

// acquire makes one acquisition, by Request or upgrade, and reports its events. If there is no error, the request was granted.
func (l *Lock) acquire(ctx context.Context, t Terms, wait bool, by func(*Lock, context.Context, Terms, bool) (*Lease, error)) (*Lease, error) {
	if wait && l.k.longWaits.Bound > 0 {
		defer l.WatchWait(nil)()
	}
	if t.Observation == nil {
		t.Observation = l.NewObservation(ctx, t.Flags)
		t.Observation.Starts()
	}
	h, err := by(l, ctx, t, wait)
	if err = l.AlsoEnded(ctx, err); err != nil {
		t.Observation.Ends("", 0, false, err)
		return nil, err
	}
	token := h.token
	if l.spec.Limits.clockOnly() { // nothing will be released
		token = ""
	}
	t.Observation.Ends(token, h.Fence(), false, nil)
	return h, nil
}

// WatchWait logs who holds the lock if stop is not called within the keeper's LongWait; see views.LongWaits. holders reads the holders; nil:
// they are read from the lock's server.
func (l *Lock) WatchWait(holders func(ctx context.Context, most int) ([]views.Holder, int, error)) (stop func()) {
	if holders == nil {
		holders = func(ctx context.Context, most int) ([]views.Holder, int, error) {
			return views.FirstHolders(ctx, l.AtServer(), most)
		}
	}
	return l.k.longWaits.Watch(l.AtServer(), holders)
}

// Request acquires without events, and waits until replicas have the grant if the keeper requires it.
func (l *Lock) Request(ctx context.Context, t Terms, wait bool) (*Lease, error) {
	if err := server.ContextError(ctx); err != nil {
		return nil, l.Fail(err) // the server was not asked, so nothing else is known
	}
	if l.k.Closing().Err() != nil {
		return nil, l.Fail(server.ErrClosed)
	}
	var err error
	if t.note, err = NoteOf(ctx); err != nil {
		return nil, l.Fail(err)
	}
	h, err := l.acquireInTurn(ctx, t, wait)
	if err == nil {
		err = l.awaitReplicas(ctx, h)
	}
	if err == nil && l.spec.Limits.clockOnly() && h.Snapshot().InDoubt() {
		// These permits are not released, so only a tombstone keeps a late copy of the request from taking them again.
		l.Tombstone(ctx, h.Token())
	}
	return h, err
}

// acquireInTurn waits for the caller's turn among the goroutines of this process, if the lock has a local queue, and then makes the request.
func (l *Lock) acquireInTurn(ctx context.Context, t Terms, wait bool) (*Lease, error) {
	if wait && l.spec.LocalQueue && t.Turn == (Turn{}) {
		var err error
		if t.Turn, err = l.WaitLocally(ctx, l); err != nil {
			return nil, l.Fail(err)
		}
		defer l.LeaveLocally()
	}
	return l.ask(ctx, t, wait)
}

// Outage implements Judge.
func (l *Lock) Outage(now time.Time) error { return server.Outage(l.Answers(), l.k.MaxAge(), now) }

// Exhausted implements Judge.
func (l *Lock) Exhausted(since, now time.Time) error {
	return server.Exhausted(l.Answers(), l.k.Config.Retry, since, now)
}

// Adopt makes a lease from a token that was granted to another process, or to this one before a restart, and extends it to
// the whole ttl. The error is ErrLost if the token no longer holds the lock. After any other error the lease still belongs
// to that process, possibly extended.
func (l *Lock) Adopt(ctx context.Context, token string) (*Lease, error) {
	if token == "" {
		return nil, l.Invalid("the token is empty")
	}
	return l.AdoptAs(ctx, token, nil)
}

// AdoptAs is Adopt with an observer for the lease, which may be nil.
func (l *Lock) AdoptAs(ctx context.Context, token string, observer Observer) (adopted *Lease, err error) {
	err = l.k.Repeat(ctx, 0, func() (again bool, err error) {
		r, err := l.Renew(ctx, token, func() int64 { return l.TTL })
		if err == nil && r.Held && l.k.cfg.ReplicaAck.enabled() {
			r, err = l.replicateRenewal(ctx, token)
		}
		if err == nil && !r.Held {
			err = l.GoneError(ctx, token)
		}
		if err != nil {
			return false, err
		}
		t, _ := protocol.ParseToken(token)
		now := l.k.Now()
		var out claim.Effects
		c := claim.Adopt(&l.Rules, r.Fence, l.k.Instant(r.Sent), now, &out)
		if now >= c.Deadline() { // the answer took too long
			return true, ErrTooLate
		}
		h := l.NewLease(token, c, l.NewObservation(ctx, t.Flags))
		h.observer = observer
		if r.Converted {
			h.conversion = &conversion{calls: 1, converted: true}
		}
		if !h.Start(uint64(r.Fence), out.Timer) {
			return false, server.ErrClosed
		}
		adopted = h
		return false, nil
	})
	return adopted, l.FailIf(err)
}

// Forget deletes a record that Holders has returned. It blocks until the server has answered, until ctx ends, or until the
// retry policy gives up.
func (l *Lock) Forget(ctx context.Context, record string) error {
	return l.change(ctx, func(p *server.Pending) { l.SetRelease(&p.Call, record, false, false, l.spec.Yield) })
}

// Keep makes a record that has no expiry last for d from now on. It blocks like Forget.
func (l *Lock) Keep(ctx context.Context, record string, d time.Duration) error {
	return l.change(ctx, func(p *server.Pending) {
		l.SetComplete(&p.Call, strings.TrimPrefix(record, protocol.RecordMark), d.Milliseconds())
	})
}

func (l *Lock) change(ctx context.Context, set func(*server.Pending)) error {
	call, _, err := l.k.RoundTrip(ctx, 0, set)
	if err == nil {
		_, err = server.Decode(call, protocol.ParseReleaseReply)
	}
	if err != nil {
		return l.Fail(err)
	}
	return nil
}
