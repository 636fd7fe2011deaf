// Package access gives the packages of this module what package lockkeeper does not show to users: what is behind a
// keeper, and the values that users get from what that returns. Package lockkeeper sets the functions below when it is
// initialized, as google.golang.org/grpc/internal does it; they take and return its types as any, because this package
// cannot import it. The generic functions turn them back.
package access

import (
	"github.com/lockkeeper/lockkeeper/internal/ahead"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/share"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// Set by package lockkeeper.
var (
	// KeeperOf returns what is behind a *lockkeeper.Keeper, or nil if that is nil.
	KeeperOf func(keeper any) *keeper.Keeper
	// ServerOf returns the server of a *lockkeeper.Keeper, or nil if that is nil.
	ServerOf func(keeper any) *server.Server
	// SharedBy returns the names whose leases the callers of a *lockkeeper.Keeper share, or nil if that is nil.
	SharedBy func(keeper any) *share.Names
	// AheadBy returns what a *lockkeeper.Keeper remembers of the rate limits of which it takes permits ahead, or nil if that is nil.
	AheadBy func(keeper any) *ahead.Names
	// HandleOf returns what a *lockkeeper.Lease wraps, or nil if that is nil.
	HandleOf func(lease any) lifecycle.Handle

	WrapLease   func(lifecycle.Handle) any // a *lockkeeper.Lease
	WrapHolders func([]views.Holder) any   // a []lockkeeper.Holder
	WrapWaiters func([]views.Waiter) any   // a []lockkeeper.Waiter
)

// Lease returns the outcome of an acquisition as users get it; L is lockkeeper.Lease.
func Lease[L any, H lifecycle.Handle](h H, err error) (*L, error) {
	if err != nil {
		return nil, err
	}
	return WrapLease(h).(*L), nil
}

// Holders returns holders as users get them; H is lockkeeper.Holder.
func Holders[H any](list []views.Holder, err error) ([]H, error) {
	if err != nil {
		return nil, err
	}
	return WrapHolders(list).([]H), nil
}

// Waiters returns waiters as users get them; W is lockkeeper.Waiter.
func Waiters[W any](list []views.Waiter, err error) ([]W, error) {
	if err != nil {
		return nil, err
	}
	return WrapWaiters(list).([]W), nil
}
