package lockkeeper

import (
	"reflect"

	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/redis/go-redis/v9"
)

// Keeper owns what all locks of a process share: the use of the client's connections, one subscription for wake-ups,
// one clockwork for renewals and heartbeats. One keeper per process and Redis deployment is enough, however many
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
// A redis.Ring is refused: it moves keys to another server when one is down, and so would grant a lock twice.
//
// The error is ErrInvalid.
func New(rdb redis.UniversalClient, opts *Options) (*Keeper, error) {
	if rdb == nil || isNil(rdb) {
		return nil, engine.Invalid("the client is nil")
	}
	if _, ring := rdb.(*redis.Ring); ring {
		return nil, engine.Invalid("a redis.Ring moves keys when a server is down, which would grant a lock twice; use a Cluster or Sentinel client")
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Keeper{engine.New(engine.Config{
		Client:  rdb,
		Prefix:  o.Prefix,
		Period:  o.Heartbeat,
		Life:    o.HeartbeatLifetime,
		Idle:    o.Idle,
		Retry:   engine.Retry(o.Retry),
		Log:     o.Logger,
		Observe: o.Hooks.observer(),

		Acknowledge: engine.Acknowledgement(o.Acknowledge),
	})}, nil
}

// isNil finds a nil pointer in the interface.
func isNil(rdb redis.UniversalClient) bool {
	v := reflect.ValueOf(rdb)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// ID is the keeper's id, a UUID: the first part of the token of each of its leases.
func (k *Keeper) ID() string { return k.engine.ID() }

// Close ends the keeper: waiting calls return ErrClosed, leases that are held are released (their contexts end with
// ErrReleased), the subscription is closed. It blocks until that is done and all goroutines of the keeper have ended;
// if Redis does not answer it gives up after 3 s, and then waits for commands that are on their way, for as long as
// the client's own timeouts let them be. What could not be given back ends by itself.
//
// The client is left open. Closing twice is fine. The error, if any, is that of a lease that could not be released, or
// that turned out to be lost when it was.
func (k *Keeper) Close() error { return k.engine.Close() }

// Engine is for the packages of this module, which build the locks on it; the type cannot be named elsewhere.
func (k *Keeper) Engine() *engine.Engine {
	if k == nil {
		return nil
	}
	return k.engine
}
