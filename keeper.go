package lockkeeper

import (
	"sync"

	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/ahead"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/lifecycle"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/share"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/redis/go-redis/v9"
)

// Keeper owns what all locks of a process share: the pipelines to Redis, one subscription for wake-ups, and one timer for
// renewals and heartbeats. One keeper per process and Redis deployment is enough for any number of locks, leases and
// waiters.
//
// It is safe for concurrent use.
type Keeper struct {
	_ [0]sync.Mutex // so that go vet reports copies

	inner  *keeper.Keeper
	shared share.Names
	ahead  *ahead.Names
}

// New returns a keeper that uses a go-redis client: of a single server, Sentinel (redis.NewFailoverClient) or Cluster. Nil
// options mean the defaults. New does no I/O and starts no goroutine; goroutines start when they are needed. The error
// matches ErrInvalid. Create one keeper per process, not one per request: each that is used keeps connections and goroutines until
// Close.
//
// The client remains the caller's and must stay open until Close has returned. Its settings apply, in particular its
// timeouts; its retry settings do not. A client without timeouts (ReadTimeout: -1) is accepted, but a connection that
// broke without notice then never becomes free again, and in time all connections may be lost this way.
//
// Requests use the connections that go-redis keeps for pipelines, PipelinePoolSize of them (10 by default), and not those
// of the main pool. So locks work even while the application has exhausted the main pool. Keepers of the same client share
// these connections. If PipelinePoolSize is negative, there is only the main pool.
//
// A keeper that has sent sixteen requests within ten seconds while no other was under way opens one connection more, on which such
// requests are sent in the goroutines of their callers. It has the client's settings, and PoolStats does not count it. Hooks that were
// added before see its commands, and delay the callers if they block; DialHooks do not see it. It is checked by a key that exists for a
// moment, and not used if it leads to another server. There is none on a cluster, with Sentinel, or if the client is embedded in another
// type.
//
// The client may be a struct that embeds a *redis.Client or a *redis.ClusterClient; its methods Pipeline and Subscribe are
// used, and on a cluster MasterForKey. New refuses a redis.Ring, which moves keys to another server when one is down, so
// that a lock could be granted twice; a redis.AutoPipeliner; and any type that is neither a single server's nor a
// cluster's client, such as a struct that embeds the interface redis.UniversalClient.
func New(rdb redis.UniversalClient, opts *Options) (*Keeper, error) {
	c, err := client.New(rdb)
	if err != nil {
		return nil, server.Invalid("%w", err)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Keeper{ahead: ahead.NewNames(), inner: keeper.New(keeper.Config{
		Config: server.Config{
			Client:            c,
			Prefix:            o.Prefix,
			HeartbeatInterval: o.HeartbeatInterval,
			HeartbeatTimeout:  o.HeartbeatTimeout,
			MetadataTTL:       o.MetadataTTL,
			Retry:             server.Retry(o.Retry),
			Log:               o.Logger,
			Owner:             o.Owner,
		},
		Observe:  o.Hooks.observer(),
		LongWait: o.LongWait,

		ReplicaAck: keeper.ReplicaAck(o.ReplicaAck),
		NotAcknowledged: func(replicas, wanted int, local bool, cause error) error {
			return &NotAcknowledgedError{Replicas: replicas, Wanted: wanted, Local: local, Err: cause}
		},
		Broken: func(by, reason string) error { return &BrokenError{Reason: reason, By: by} },
	})}, nil
}

// ID returns the keeper's id, of 12 random letters and digits, with which the tokens of its leases begin. Copies of a process that were
// restored from one snapshot have the same.
func (k *Keeper) ID() string { return k.inner.ID() }

// Close closes the keeper: waiting calls return ErrClosed, held leases are released and their contexts canceled with
// ErrReleased, and the subscription is closed. It blocks until this is done and the keeper's goroutines have ended, for at
// most 3 s. If Redis has not answered by then, Close returns an error, and goroutines that wait for an answer remain until
// the client's timeouts pass or the client is closed. Leases that could not be released expire. Releases that fail meanwhile
// are repeated after 750 ms at most, whatever Retry says; one that failed before Close is repeated when its pause is over.
//
// Close does not close the client, which must stay open until then. It may be called again. The error is that of a lease that could not be released, or
// that was found to be lost, or says that commands are still in flight.
func (k *Keeper) Close() error { return k.inner.Close() }

func init() {
	access.KeeperOf = func(keeper any) *keeper.Keeper {
		if k := keeper.(*Keeper); k != nil {
			return k.inner
		}
		return nil
	}
	access.ServerOf = func(keeper any) *server.Server {
		if k := keeper.(*Keeper); k != nil && k.inner != nil {
			return k.inner.Server
		}
		return nil
	}
	access.SharedBy = func(keeper any) *share.Names {
		if k := keeper.(*Keeper); k != nil {
			return &k.shared
		}
		return nil
	}
	access.AheadBy = func(keeper any) *ahead.Names {
		if k := keeper.(*Keeper); k != nil {
			return k.ahead
		}
		return nil
	}
	access.HandleOf = func(lease any) lifecycle.Handle {
		if l := lease.(*Lease); l != nil {
			return l.handle
		}
		return nil
	}
	access.WrapLease = func(h lifecycle.Handle) any {
		l := &Lease{handle: h}
		if shared, is := h.(*share.Lease); !is || shared.IsFirst() { // watching each lease would cost several times as much as sharing it
			lifecycle.WatchForLeak(l, h)
		}
		return l
	}
	access.WrapHolders = func(list []views.Holder) any { return newHolders(list) }
	access.WrapWaiters = func(list []views.Waiter) any { return newWaiters(list) }
}
