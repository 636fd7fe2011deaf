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

// Names is the names of a keeper whose leases are shared now. The zero Names is ready to use. It is safe for concurrent use.
type Names struct {
	mu    sync.Mutex
	byKey map[string]*name // by the lock's key
}

// name is what the callers of a name have in common. It is in Names while a caller asks for a lease or a lease is not released yet, so an
// object that still refers to it after that finds nothing that is shared.
type name struct {
	names *Names
	key   string
	uses  int // callers and leases that need it; guarded by the mutex of names

	open    atomic.Pointer[shared] // the lease that callers may be granted; nil: none, or a semaphore
	waiting atomic.Int32           // callers who wait for others inside to leave, whom newcomers do not pass

	mu        sync.Mutex
	idle      []*shared            // of a semaphore: leases that nobody has, the one that was used last at the end
	excluding int                  // calls that wait at the server, or are about to, for what a shared lease may keep from them
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

// enter makes the caller one of those inside the lease that is shared: of a semaphore, an idle one with as many permits. It returns nil if
// there is none.
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

// share lets others share a lease that was granted, unless they share one already or that would keep another call waiting. The caller whom it
// was granted is inside. Linger ends at that time since base.
func (n *name) share(s *shared, base time.Time, until time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	shares := n.excluding == 0 && (s.permits > 0 || n.open.Load() == nil)
	s.Admit(base, until, s.permits > 0 || s.lock.Spec().LocalQueue, shares)
	if shares && s.permits == 0 {
		n.open.Store(s)
	}
}

// await returns a channel that is closed when a caller has left, or a lease is shared no more. To miss no change, look again after that.
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

// begin ends the sharing of the name's leases. Those that nobody has are released.
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

// end lets leases be shared again that are granted from now on.
func (x *exclusion) end() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	if x.begun && !x.over {
		x.of.excluding--
	}
	x.over = true
}

// releaseIdle releases the leases of a semaphore that nobody has, and waits as awaitReleases does. It reports whether there were any.
func (n *name) releaseIdle(ctx context.Context, k *keeper.Keeper) bool {
	n.mu.Lock()
	idle := n.idle
	n.idle = nil
	n.mu.Unlock()
	for _, s := range idle {
		s.close()
	}
	return n.awaitReleases(ctx, k) || len(idle) > 0 // which the server may have answered before that
}

// awaitReleases waits until the server has answered for the leases that the process has begun to release, so that a call which does not wait
// for others is not refused because of them; or until ctx ends, or Close. It reports whether there were any.
func (n *name) awaitReleases(ctx context.Context, k *keeper.Keeper) bool {
	n.mu.Lock()
	list := slices.Collect(maps.Keys(n.releasing))
	n.mu.Unlock()
	for _, s := range list {
		_ = k.WaitFor(ctx, s.released)
	}
	return len(list) > 0
}

// whileHeld returns the error of a wait for another caller of the process: if ctx has ended while that caller had the lock, the server need not
// have answered lately.
func (n *name) whileHeld(ctx context.Context, err error) error {
	if s := n.open.Load(); s != nil && ctx.Err() != nil && s.InTime() {
		return server.Chain(server.ErrNotAcquired, server.ContextError(ctx))
	}
	return err
}
