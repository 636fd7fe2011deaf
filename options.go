package lockkeeper

import (
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/engine"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
)

// Defaults of the options.
const (
	DefaultPrefix            = "lock:"
	DefaultHeartbeatInterval = 2 * time.Second
	DefaultHeartbeatTimeout  = 6 * time.Second
	DefaultMetadataTTL       = time.Hour
	DefaultTTL               = 30 * time.Second // of the leases of all primitives
	DefaultMinBackoff        = 10 * time.Millisecond
	DefaultMaxBackoff        = time.Second
	DefaultMaxElapsed        = 10 * time.Second
	DefaultReplicaAckTimeout = time.Second
)

// Options are the settings of a keeper. The zero value, and nil, mean the defaults. New copies them.
type Options struct {
	// Prefix stands before every name in Redis. All processes that share a lock must have the same. Default "lock:".
	Prefix string

	// NoPrefix leaves the prefix away, so that a name is the key: for a mutex that shares its key with another
	// library. Prefix must then be empty.
	NoPrefix bool

	// HeartbeatInterval is how often waiters tell the server that they live. It is also how late a waiter may notice what it
	// was not told: a lost message, a lock that a foreign client has given up. Default 2 s.
	HeartbeatInterval time.Duration

	// HeartbeatTimeout is how long the server believes a waiter without another heartbeat, and so how long a frozen
	// process can hold up those behind it. At least twice HeartbeatInterval. Default 6 s, or three heartbeats if HeartbeatInterval is
	// set and this is not.
	HeartbeatTimeout time.Duration

	// MetadataTTL is how long a name's small facts stay in Redis after it was last acquired or released: for half of that at
	// least, since not every use puts their end off. They keep fences in order even if the server's clock is set back.
	// Default 1 h.
	MetadataTTL time.Duration

	// Retry says how requests are repeated that failed for a passing reason.
	Retry RetryPolicy

	// ReplicaAck says what must have a grant before its lease is handed out. Default: nothing is waited for.
	ReplicaAck ReplicaAck

	// Hooks observe what happens.
	Hooks Hooks

	// Logger gets what needs somebody's attention: a right that is missing, a subscription that had to be replaced.
	// Default slog.Default().
	Logger *slog.Logger
}

// RetryPolicy says how requests are repeated that failed for a passing reason: a connection that broke or could not
// be made, a server that is starting, failing over or moving a slot. Errors that somebody has to mend (no right, wrong
// password, out of memory, a key of another type) are returned at once. The toolkit repeats requests itself, with
// growing, jittered pauses, and keeps go-redis from doing so, because it knows which requests may have run.
type RetryPolicy struct {
	// MinBackoff and Max are the first and the longest pause. Default 10 ms, or Max if that is shorter, and 1 s, or Min if that
	// is longer.
	MinBackoff, MaxBackoff time.Duration

	// MaxElapsed is how long Lock, Extend and Adopt go on without any answer before they return the error, if their
	// context lets them; a waiting Lock counts from its first heartbeat that failed. Negative: for ever. Default
	// 10 s. A try, and a look at who holds or waits, is repeated twice at the most. Renewals and releases are repeated
	// until the lease is over by itself.
	MaxElapsed time.Duration
}

// ReplicaAck makes every Lock, and what else acquires or adopts a lease, wait until replicas have the grant, before it
// returns the lease. If they do not have it in time, the grant is undone and the error is a *NotAcknowledgedError; a lease
// that was to be adopted stays with its former holder.
//
// It narrows what a failover may cost, and does not close it: a replica that has not acknowledged may be the one that is
// promoted, unless all have to; and what comes after the grant, a renewal or a release, is not waited for. Fences close
// it. Each acquisition takes two round trips more, one of them as long as the replicas need, on a connection of the
// client's main pool, which must have one to spare. (https://redis.io/docs/latest/commands/wait/)
type ReplicaAck struct {
	// Replicas is how many replicas of the primary must have the grant.
	Replicas int

	// Majority says that more than half of the replicas must have it: of the most that the primary was seen to have
	// since the keeper was made, so that one that is cut off counts. A primary without any cannot grant anything then. With
	// Replicas, both must be met.
	Majority bool

	// Fsync says that the primary and those replicas must have written it to their disks. It takes Redis 7.2, and
	// appendonly on each of them. (https://redis.io/docs/latest/commands/waitaof/)
	Fsync bool

	// Timeout is how long they have, from 1 ms; it must be shorter than the ttl of every lock, and than the client's
	// ReadTimeout. Default 1 s, if anything above is set.
	Timeout time.Duration
}

// withDefaults is the options with every default filled in, checked.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	switch {
	case c.NoPrefix && c.Prefix != "":
		return c, engine.Invalid("Prefix %q does not go together with NoPrefix", c.Prefix)
	case !c.NoPrefix && c.Prefix == "":
		c.Prefix = DefaultPrefix
	}
	if err := protocol.CheckPrefix(c.Prefix); err != nil {
		return c, engine.Invalid("Prefix: %w", err)
	}
	// What is set is checked before defaults are derived from it, so that errors name it.
	if err := checkRange("HeartbeatInterval", c.HeartbeatInterval, 10*time.Millisecond, time.Hour); err != nil && c.HeartbeatInterval != 0 {
		return c, err
	}
	if err := checkRange("HeartbeatTimeout", c.HeartbeatTimeout, 20*time.Millisecond, 24*time.Hour); err != nil && c.HeartbeatTimeout != 0 {
		return c, err
	}
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = DefaultHeartbeatInterval
		if c.HeartbeatTimeout != 0 {
			c.HeartbeatInterval = min(max(c.HeartbeatTimeout/3, 10*time.Millisecond), time.Hour)
		}
	}
	if c.HeartbeatTimeout == 0 {
		c.HeartbeatTimeout = 3 * c.HeartbeatInterval
	}
	if c.HeartbeatTimeout < 2*c.HeartbeatInterval {
		return c, engine.Invalid("HeartbeatTimeout %v is shorter than two HeartbeatIntervals of %v", c.HeartbeatTimeout, c.HeartbeatInterval)
	}
	if c.MetadataTTL == 0 {
		c.MetadataTTL = DefaultMetadataTTL
	}
	if err := checkRange("MetadataTTL", c.MetadataTTL, time.Minute, engine.LongestTTL); err != nil {
		return c, err
	}
	r := &c.Retry
	if err := checkRange("Retry.MinBackoff", r.MinBackoff, time.Millisecond, time.Hour); err != nil && r.MinBackoff != 0 {
		return c, err
	}
	if err := checkRange("Retry.MaxBackoff", r.MaxBackoff, time.Millisecond, time.Hour); err != nil && r.MaxBackoff != 0 {
		return c, err
	}
	if r.MinBackoff == 0 {
		r.MinBackoff = DefaultMinBackoff
		if r.MaxBackoff > 0 {
			r.MinBackoff = min(r.MinBackoff, r.MaxBackoff)
		}
	}
	if r.MaxBackoff == 0 {
		r.MaxBackoff = max(DefaultMaxBackoff, r.MinBackoff)
	}
	if r.MaxElapsed == 0 {
		r.MaxElapsed = DefaultMaxElapsed
	}
	if r.MaxBackoff < r.MinBackoff {
		return c, engine.Invalid("Retry.MaxBackoff %v is shorter than Retry.MinBackoff %v", r.MaxBackoff, r.MinBackoff)
	}
	a := &c.ReplicaAck
	if a.Replicas < 0 {
		return c, engine.Invalid("ReplicaAck.Replicas %d is negative", a.Replicas)
	}
	if a.Timeout != 0 && a.Replicas == 0 && !a.Majority && !a.Fsync {
		return c, engine.Invalid("ReplicaAck.Timeout %v is set, but nothing that is to be waited for", a.Timeout)
	}
	if a.Timeout == 0 {
		a.Timeout = DefaultReplicaAckTimeout
	}
	if err := checkRange("ReplicaAck.Timeout", a.Timeout, time.Millisecond, engine.LongestTTL); err != nil {
		return c, err
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

func checkRange(option string, d, least, most time.Duration) error {
	if d < least || d > most {
		return engine.Invalid("%s %v is not between %v and %v", option, d, least, most)
	}
	return nil
}
