package inspector

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
)

// A source is where the pages get the state of locks from.
type source interface {
	// list returns at most limit locks whose names match a pattern; "" matches all.
	list(ctx context.Context, pattern string, limit int) (listing, error)
	inspect(ctx context.Context, id lockID) (*admin.LockState, error)
	breakLock(ctx context.Context, id lockID, opts admin.BreakOptions) (*admin.BreakResult, error)
	Stats() lockkeeper.Stats // of the keeper, now; it sends nothing
}

// lockID is the identity of a lock within a keeper's prefix.
type lockID struct {
	kind lockkeeper.Kind
	name string
}

// listing is the result of a look at the list.
type listing struct {
	entries []admin.LockSummary
	more    bool // there are more than entries
	oneNode bool // they are of one node of a Cluster
}

// keeperSource is the source of a keeper.
type keeperSource struct{ *lockkeeper.Keeper }

func (k keeperSource) list(ctx context.Context, pattern string, limit int) (listing, error) {
	var l listing
	opts := &admin.ListOptions{Match: pattern, Owners: true, OneNode: func() { l.oneNode = true }}
	for e, err := range admin.List(ctx, k.Keeper, opts) {
		if err != nil {
			return listing{}, err
		}
		if len(l.entries) == limit {
			l.more = true
			break
		}
		l.entries = append(l.entries, e)
	}
	return l, nil
}

func (k keeperSource) inspect(ctx context.Context, id lockID) (*admin.LockState, error) {
	return admin.Inspect(ctx, k.Keeper, id.kind, id.name)
}

func (k keeperSource) breakLock(ctx context.Context, id lockID, opts admin.BreakOptions) (*admin.BreakResult, error) {
	return admin.Break(ctx, k.Keeper, id.kind, id.name, &opts)
}

// lockState is the result of a look at one lock.
type lockState struct {
	*admin.LockState
	history []sample // of a lock with limits, oldest first
}

// sample is how much of a limit was used at one moment.
type sample struct {
	at          time.Time
	used, limit int
}

// historyLength is how long samples are kept.
const historyLength = 5 * time.Minute

// withSample returns the history with one more sample and without those that are too old. It does not change the slice that
// it is given, which pages may be reading.
func withSample(history []sample, s sample) []sample {
	first := 0
	for first < len(history) && s.at.Sub(history[first].at) > historyLength {
		first++
	}
	return append(history[first:len(history):len(history)], s)
}
