package lockkeeper

import (
	"github.com/lockkeeper/lockkeeper/internal/access"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/redis/go-redis/v9"
)

// Keeper owns what all locks of a process share: the use of the client's connections, one subscription for wake-ups,
// one timer for renewals and heartbeats. One keeper per process and Redis deployment is enough, however many
// locks, leases and waiters there are.
//
// A keeper is safe for concurrent use.
type Keeper struct {
	engine *engine.Engine
}

// New returns a keeper on a client of go-redis: a single server, Sentinel (redis.NewFailoverClient) or Cluster. Nil
// options mean the defaults.
//
// It does no I/O and starts no goroutine; those start when they are needed. The client stays the caller's: it must
// stay open until Close has returned, and its settings apply, above all its timeouts. Its own retries do not matter.
// A client without timeouts (ReadTimeout: -1) is accepted, but a connection whose other end is gone without a word is
// then never free again, and one after the other all of them may be lost like that.
//
// Requests take connections that go-redis keeps for pipelines, as many as the client's PipelinePoolSize (10 by default) and
// not of its main pool, so locks work while the application has used that up. Keepers that share a client share these.
// With a negative PipelinePoolSize there is only the main pool.
//
// The client may be wrapped in a struct that embeds a *redis.Client or a *redis.ClusterClient; its Pipeline and Subscribe
// are used, and on a cluster its MasterForKey. Refused are a redis.Ring, because it moves keys to another server when one
// is down, and so would grant a lock twice; a redis.AutoPipeliner; and any other type of which it cannot be told whether
// it is a cluster's, such as a struct that embeds the interface redis.UniversalClient.
//
// The error is ErrInvalid.
func New(rdb redis.UniversalClient, opts *Options) (*Keeper, error) {
	c, err := client.New(rdb)
	if err != nil {
		return nil, engine.Invalid("%w", err)
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Keeper{engine.New(engine.Config{
		Client:            c,
		Prefix:            o.Prefix,
		HeartbeatInterval: o.HeartbeatInterval,
		HeartbeatTimeout:  o.HeartbeatTimeout,
		MetadataTTL:       o.MetadataTTL,
		Retry:             engine.Retry(o.Retry),
		Log:               o.Logger,
		Observe:           o.Hooks.observer(),

		ReplicaAck: engine.ReplicaAck(o.ReplicaAck),
		NotAcknowledged: func(replicas, wanted int, local bool, cause error) error {
			return &NotAcknowledgedError{Replicas: replicas, Wanted: wanted, Local: local, Err: cause}
		},
	})}, nil
}

// ID is the keeper's id, a UUID: the first part of the token of each of its leases.
func (k *Keeper) ID() string { return k.engine.ID() }

// Close ends the keeper: waiting calls return ErrClosed, leases that are held are released (their contexts end with
// ErrReleased), the subscription is closed. It blocks until that is done and all goroutines of the keeper have ended, for
// 3 s at the most. If Redis has not answered by then, Close returns an error, and goroutines that wait for commands on
// their way are left: they end by the client's own timeouts, or when the client is closed. What could not be given back
// ends by itself.
//
// A call whose context cannot end (context.Background()) may carry its request in its own goroutine, and then returns
// ErrClosed when that is answered or when the client's timeouts are over; all others return at once.
//
// The client is left open. Closing twice is fine. The error is that of a lease that could not be released, or that turned
// out to be lost when it was, or says that commands are still on their way.
func (k *Keeper) Close() error { return k.engine.Close() }

func init() {
	access.EngineOf = func(keeper any) *engine.Engine {
		if k := keeper.(*Keeper); k != nil {
			return k.engine
		}
		return nil
	}
	access.HandleOf = func(lease any) engine.Handle {
		if l := lease.(*Lease); l != nil {
			return l.handle
		}
		return nil
	}
	access.WrapLease = func(h engine.Handle) any { return &Lease{h} }
	access.WrapHolders = func(list []engine.Holder) any { return newHolders(list) }
	access.WrapWaiters = func(list []engine.Waiter) any { return newWaiters(list) }
}
