package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/lua"
)

// Bounds of a ttl. A shorter lease would end before its reply is read; a longer one could overflow sums of milliseconds.
const (
	ShortestTTL = claim.ShortestTTL
	LongestTTL  = 365 * 24 * time.Hour
)

// Spec describes a lock to the server.
type Spec struct {
	Scripts     *lua.Set
	Name        string
	TTL         time.Duration // of its leases
	MetadataTTL time.Duration // how long metadata of an unused name is kept, beyond the ttl
	PolicyArg   string        // of the policy, if it takes one
}

// Resource is one name of one primitive at a server: keys, scripts, and arguments of calls. It is immutable but for what it makes when it is
// first used, and safe for concurrent use.
type Resource struct {
	*sharedParams
	s        *Server
	name     string
	keys     [4]atomic.Value           // of every command, as strings, by the indexes below; see key
	released atomic.Pointer[lockError] // see ReleasedError
}

// Indexes of keys.
const (
	LockKey       = lua.LockKey
	MetaKey       = lua.MetaKey
	QueueKey      = lua.QueueKey
	TombstonesKey = lua.TombstonesKey
)

// scriptArgs are the arguments that are the same in all calls of a lock.
type scriptArgs struct {
	ttl, policyArg, metadataTTL, queueTTL, tombstone any

	channelPrefix, epoch, way any                              // of the fast script that hands on
	fast                      struct{ ttl, limits, epoch any } // of the fast script that acquires; nil: it takes no such argument
}

// sharedParams are parameters shared by locks with identical settings, to save memory.
type sharedParams struct {
	TTL      int64  // ms
	ClaimTTL int64  // ms: of a lease granted by a message, until it is confirmed
	Channel  string // prefix of the channels on which this keeper receives wake-ups
	scripts  *lua.Set
	fast     *lua.Fast
	args     scriptArgs
}

// InitResource sets r, which is zero, to what a spec describes. The error is ErrInvalid.
func (s *Server) InitResource(r *Resource, spec Spec) error {
	if err := protocol.CheckName(s.Config.Prefix, spec.Name, spec.Scripts.PlainKey); err != nil {
		return Invalid("%w", err)
	}
	if err := CheckTTL("TTL", spec.TTL); err != nil {
		return err
	}
	ttl := spec.TTL.Milliseconds()
	sharded, channelPrefix := s.Subscriber.Sharded(), s.Config.Prefix+"wake:"
	if sharded {
		channelPrefix = protocol.ChannelPrefix(s.Config.Prefix, spec.Name)
	}
	metadataTTL := ttl + spec.MetadataTTL.Milliseconds()
	args := scriptArgs{
		ttl: ttl, policyArg: spec.PolicyArg, metadataTTL: metadataTTL, tombstone: TombstoneTTL.Milliseconds(), way: protocol.WayOf(s.Config.Prefix, sharded),
		queueTTL: protocol.QueueTTL(s.Config.HeartbeatTimeout.Milliseconds()), channelPrefix: channelPrefix, epoch: protocol.EpochOf(metadataTTL),
	}
	args.fast.epoch = protocol.EpochArg(metadataTTL)
	params := sharedParams{
		TTL: ttl, ClaimTTL: min(ttl, s.Config.HeartbeatTimeout.Milliseconds()), Channel: channelPrefix,
		scripts: spec.Scripts, fast: protocol.FastOf(spec.Scripts, spec.PolicyArg), args: args,
	}
	if params.scripts.Limit != nil {
		params.args.fast.limits = args.policyArg
	}
	if !params.FastOfWindow() {
		params.args.fast.ttl = args.ttl
	}
	r.s, r.name = s, spec.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.params == nil || *s.params != params {
		s.params = &params
	}
	r.sharedParams = s.params
	return nil
}

// Name returns what is locked.
func (r *Resource) Name() string { return r.name }

// Kind returns the primitive.
func (r *Resource) Kind() string { return r.scripts.Kind }

// Scripts returns the scripts of the primitive.
func (r *Resource) Scripts() *lua.Set { return r.scripts }

// Server returns the server of the lock.
func (r *Resource) Server() *Server { return r.s }

// Key returns the key of the leases, which identifies the lock among all locks of a server.
func (r *Resource) Key() string { return r.KeyOf(LockKey) }

// Fast returns the scripts of the common cases.
func (r *Resource) Fast() *lua.Fast { return r.fast }

// FastOfWindow reports whether the fast script that acquires is window_acquire.lua, which takes one permit and no ttl and replies what remains.
func (p *sharedParams) FastOfWindow() bool { return p.fast == &p.scripts.FastWindow }

// KeyOf returns one of the lock's keys.
func (r *Resource) KeyOf(index lua.Key) string { return r.key(index, true).(string) }

// key returns one of the lock's keys, as an argument of commands. It is made when it is first needed, and then kept if keep is set.
func (r *Resource) key(index lua.Key, keep bool) any {
	key := r.keys[index].Load()
	if key == nil {
		key = protocol.KeyOf(r.s.Config.Prefix, r.name, r.scripts.KeyKind, r.scripts.PlainKey, index)
		if keep {
			r.keys[index].Store(key)
		}
	}
	return key
}

// PolicyArg returns the argument of the policy for requests that have none of their own.
func (r *Resource) PolicyArg() any { return r.args.policyArg }

// Same reports whether both are the same lock, perhaps with other settings.
func (r *Resource) Same(other *Resource) bool { return r.s == other.s && r.Key() == other.Key() }

// CheckTTL returns an ErrInvalid that names the option if a duration cannot be that of a lease.
func CheckTTL(option string, d time.Duration) error {
	if d < ShortestTTL || d > LongestTTL {
		return Invalid("%s %v is not between %v and %v", option, d, ShortestTTL, LongestTTL)
	}
	return nil
}

// lockError is an error of an operation on one lock. Its text is formatted only when it is read, because a TryLock that is
// refused must be cheap.
type lockError struct {
	kind, name string
	causes
	inline [2]error // storage of up to two causes, which saves an allocation
}

func (f *lockError) Error() string {
	switch {
	case f.kind == "":
		return "lockkeeper: " + f.causes.Error()
	case len(f.name) > protocol.MaxLength: // too long, so there is no such lock
		return fmt.Sprintf("lockkeeper: %s %s: %s", f.kind, protocol.Excerpt(f.name), f.causes.Error())
	}
	return fmt.Sprintf("lockkeeper: %s %q: %s", f.kind, f.name, f.causes.Error())
}

// Fail returns an error of this lock; see OfLock.
func (r *Resource) Fail(list ...error) error { return OfLock(r.scripts.Kind, r.name, list...) }

// Invalid returns an ErrInvalid of this lock; see Invalid.
func (r *Resource) Invalid(format string, args ...any) error { return r.Fail(Invalid(format, args...)) }

// OfLock returns an error of a lock with its causes. Causes that are nil are omitted, and the lock is named only once. If the kind is empty, the
// error names no lock until an error of a lock has it as a cause.
func OfLock(kind, name string, list ...error) error {
	f := &lockError{kind: kind, name: name, causes: causes{sep: ": "}}
	f.list = f.inline[:0]
	for _, err := range list {
		if cause, ok := err.(*lockError); ok && (cause.kind == "" || cause.kind == f.kind && cause.name == f.name) {
			err = WithoutName(cause)
		}
		if err != nil {
			f.list = append(f.list, err)
		}
	}
	return f
}

// FailIf is Fail of one cause, or nil if that is nil.
func (r *Resource) FailIf(err error) error {
	if err == nil {
		return nil
	}
	return r.Fail(err)
}

// AlsoEnded makes the error of a request match ctx.Err() and the cause of ctx if ctx has ended, whatever else went wrong.
func (r *Resource) AlsoEnded(ctx context.Context, err error) error {
	if end := ctx.Err(); err != nil && end != nil && !(errors.Is(err, end) && errors.Is(err, context.Cause(ctx))) {
		return r.Fail(err, ContextError(ctx))
	}
	return err
}

// ReleasedError returns ErrReleased as an error of this lock, always the same.
func (r *Resource) ReleasedError() error {
	if err := r.released.Load(); err != nil {
		return err
	}
	err := r.Fail(ErrReleased).(*lockError)
	r.released.Store(err)
	return err
}

// WithoutName returns an error of a lock without the lock's kind and name, for use in an error that names the lock itself.
func WithoutName(err error) error {
	f, ok := err.(*lockError)
	switch {
	case !ok:
		return err
	case len(f.list) == 1:
		return f.list[0]
	}
	return &f.causes
}
