package share

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Names has the names of a keeper whose leases are shared now. The zero Names is ready to use. It is safe for concurrent use.
type Names struct {
	mu    sync.Mutex
	byKey map[string]*name // by the lock's key
}

// name is what the callers of a name have in common: the lease they share, and who waits. It is in Names while a caller asks for a lease, or
// a lease is not released yet. A Sharing may still refer to it after that (last), but then there is nothing to share.
type name struct {
	names *Names
	key   string
	uses  int // callers and leases that need it; guarded by the mutex of names

	open    atomic.Pointer[shared] // the lease that callers may enter; nil: none, or a semaphore, whose leases are in idle
	waiting atomic.Int32           // callers who wait for others inside to leave; newcomers do not pass them

	mu        sync.Mutex
	idle      []*shared            // of a semaphore: leases that nobody has, the one that was used last at the end
	excluding int                  // exclusions that have begun and are not over
	releasing map[*shared]struct{} // leases that the server may still have
	changed   chan struct{}        // closed when a caller has left, or a lease is shared no more; nil: nobody waits for that
}

// use returns the name of a key. The caller calls unuse.
func (ns *Names) use(key string) *name {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.byKey[key]
	if n == nil {
		if ns.byKey == nil {
			ns.byKey = map[string]*name{}
		}
		n = &name{names: ns, key: key, releasing: map[*shared]struct{}{}}
		ns.byKey[key] = n
	}
	n.uses++
	return n
}

func (n *name) unuse() {
	n.names.mu.Lock()
	defer n.names.mu.Unlock()
	if n.uses--; n.uses == 0 {
		delete(n.names.byKey, n.key)
	}
}

// enter lets the caller into the shared lease, or, of a semaphore, into an idle lease with as many permits. It returns nil if there is none
// that the caller may enter.
func (n *name) enter(permits int) *shared {
	if permits == 0 {
		if s := n.open.Load(); s != nil && s.enter() {
			return s
		}
		return nil
	}
	for {
		s := n.takeIdle(permits)
		if s == nil || s.enter() {
			return s
		}
	}
}

func (n *name) takeIdle(permits int) *shared {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, s := range slices.Backward(n.idle) {
		if s.permits == permits {
			n.idle = slices.Delete(n.idle, i, i+1)
			return s
		}
	}
	return nil
}

// leave counts the caller of a semaphore's lease as outside; see shared.leave.
func (n *name) leave(s *shared) (last bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.excluding > 0 {
		s.Close()
	}
	last = s.Leave()
	if s.IsOpen() {
		n.idle = append(n.idle, s)
	}
	return last
}

// share puts the caller to whom a lease was granted inside, and lets others enter until that time since base, unless they share another lease
// or an exclusion is under way.
func (n *name) share(s *shared, base time.Time, until time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	shares := n.excluding == 0 && (s.permits > 0 || n.open.Load() == nil)
	s.Admit(base, until, s.permits > 0 || s.lock.Spec().LocalQueue, shares)
	if shares && s.permits == 0 {
		n.open.Store(s)
	}
}

// await returns a channel that is closed when a caller has left, or a lease is shared no more. To miss no change, call it before you look.
func (n *name) await() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

// wake ends the waits of await.
func (n *name) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
}

// exclusion is a call that a shared lease may keep waiting: of a writer, or for more permits than are free. While there is one, the process
// shares no lease of the name.
type exclusion struct {
	of          *name
	begun, over bool // guarded by the mutex of the name
}

// begin closes the name's shared leases. Those with nobody inside are released.
func (x *exclusion) begin() {
	n := x.of
	n.mu.Lock()
	if x.begun || x.over {
		n.mu.Unlock()
		return
	}
	x.begun = true
	n.excluding++
	leases := append(n.idle, n.open.Load())
	n.idle = nil
	n.mu.Unlock()
	for _, s := range leases {
		s.close()
	}
}

// end allows leases that are granted from now on to be shared.
func (x *exclusion) end() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if x.begun && !x.over {
		x.of.excluding--
	}
	x.over = true
}

// releaseIdle releases the idle leases of a semaphore, and waits until the server has answered all releases under way, unless ctx ends before.
// It reports whether there were any.
func (n *name) releaseIdle(ctx context.Context, k *keeper.Keeper) bool {
	n.mu.Lock()
	idle := n.idle
	n.idle = nil
	n.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
	return n.awaitReleases(ctx, k) || len(idle) > 0 // the server may have answered those already
}

// awaitReleases waits until the server has answered the releases under way, or until ctx ends, or Close: a call that does not wait for others
// must not be refused because of them. It reports whether there were any.
func (n *name) awaitReleases(ctx context.Context, k *keeper.Keeper) bool {
	n.mu.Lock()
	list := slices.Collect(maps.Keys(n.releasing))
	n.mu.Unlock()
	for _, s := range list {
		_ = k.WaitFor(ctx, s.released)
	}
	return len(list) > 0
}

// whileHeld returns the error of a wait for another caller of the process. If ctx has ended while a caller surely had the lock, the error is
// ErrNotAcquired, although the server may not have answered lately; otherwise it is err.
func (n *name) whileHeld(ctx context.Context, err error) error {
	if s := n.open.Load(); s != nil && ctx.Err() != nil && s.InTime() {
		return server.Chain(server.ErrNotAcquired, server.ContextError(ctx))
	}
	return err
}
