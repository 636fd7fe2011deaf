package lockkeeper

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// DefaultTTL is the default TTL of the leases of all packages.
const DefaultTTL = 30 * time.Second

// The other defaults of the options.
const (
	defaultMetadataTTL       = time.Hour
	defaultMinBackoff        = 10 * time.Millisecond
	defaultMaxBackoff        = time.Second
	defaultMaxElapsed        = 10 * time.Second
	defaultReplicaAckTimeout = time.Second
)

// Options are the settings of a keeper. Nil, and the zero value of each field, mean the defaults. New copies them.
type Options struct {
	// Prefix precedes every name in Redis keys. All processes that share a lock must use the same prefix. At most 1024 bytes.
	// Default "lock:".
	Prefix string

	// NoPrefix makes the name of a mutex its key, for example to share it with another library. Prefix must then be empty. Default
	// false.
	NoPrefix bool

	// HeartbeatInterval is how often waiters send heartbeats, and so the longest delay after a lost wake-up, or after another library
	// released the lock. From 10 ms to 1 h. Default 2 s, or a third of HeartbeatTimeout if only that is set.
	HeartbeatInterval time.Duration

	// HeartbeatTimeout is how long the server keeps a waiter after its last heartbeat, and so how long frozen waiters can delay a
	// queue in total. At least twice HeartbeatInterval, at most 24 h. Default 6 s, or 3 * HeartbeatInterval if that is set.
	HeartbeatTimeout time.Duration

	// MetadataTTL is how long the metadata of an unused name is kept in Redis, or at least half as long. If keepers differ, the
	// shortest counts. See "Clocks" in the package comment. From 1 min to 365 days. Default 1 h.
	MetadataTTL time.Duration

	// Retry controls how requests that failed with a transient error are retried.
	Retry RetryPolicy

	// ReplicaAck makes acquisitions wait until replicas have the grant. Default: no waiting.
	ReplicaAck ReplicaAck

	// Hooks are called on events, for metrics and traces. Default: none.
	Hooks Hooks

	// Owner is a label of the keeper that Holder, Holders and Waiters show to people. At most 256 bytes of printable UTF-8. Default
	// the host's name, the process id and the program's name, as in "web-1:4711 invoiced".
	Owner string

	// NoOwner stores no label of the keeper. Owner must then be empty. Default false.
	NoOwner bool

	// LongWait makes the keeper log a warning when a call has waited for longer than this. From 10 ms to 365 days. Default 0:
	// nothing is logged.
	//
	// The warning names the lock, its holder, and since when it is held, for which the keeper asks the server once. However many
	// calls wait for a lock, one warning is logged per LongWait.
	LongWait time.Duration

	// Logger receives warnings that need attention: a missing permission, a subscription that had to be replaced. Default
	// slog.Default().
	Logger *slog.Logger
}

// RetryPolicy controls how requests that failed with a transient error are retried: a connection that broke or could not
// be established, a server that is starting, failing over or moving a slot. Errors that require intervention (missing
// permission, wrong password, out of memory, a key of another type) are returned at once. Lockkeeper retries requests
// itself, with exponential backoff and jitter, and disables the retries of go-redis for them, because it knows which
// requests may have run already. TryLock, Holders and Waiters are retried at most twice; renewals and releases until the lease
// expires.
type RetryPolicy struct {
	// MinBackoff and MaxBackoff are the first and the longest pause between attempts; each pause is varied at random by up to
	// half. From 1 ms to 1 h. MinBackoff defaults to 10 ms, or to MaxBackoff if that is shorter; MaxBackoff to 1 s, or to
	// MinBackoff if that is longer.
	MinBackoff, MaxBackoff time.Duration

	// MaxElapsed is how long Lock, Extend and Adopt retry without an answer before they return the error, unless ctx ends earlier. A
	// negative value means no limit. Default 10 s.
	//
	// A waiting Lock counts from the first heartbeat that failed. Of several calls of a process that want one mutex or redlock one
	// asks, and those behind it count as well while it has no answer.
	MaxElapsed time.Duration
}

// ReplicaAck makes every call that acquires or adopts a lease wait until replicas have the grant before it returns. If the
// replicas do not have it in time, the grant is undone and the error is a *NotAcknowledgedError; a lease that was to be adopted
// stays with its former holder.
//
// This makes it less likely that a failover loses a grant, but does not exclude it: a replica that has not acknowledged may be
// promoted, unless all replicas must acknowledge, and renewals and releases are not waited for. Only fences protect against
// that. Each acquisition takes two more round trips, one of which includes the replication, on a connection of the client's
// main pool, which must have one available. (https://redis.io/docs/latest/commands/wait/)
type ReplicaAck struct {
	// Replicas is the number of replicas that must have the grant. Not negative. Default 0.
	Replicas int

	// Majority requires that more than half of the replicas have the grant. If Replicas is set too, both conditions must hold.
	// Default false.
	//
	// It counts the maximum number of replicas that the primary was seen to have since the keeper was created, so a disconnected one
	// counts. A primary without replicas then cannot grant anything.
	Majority bool

	// Fsync requires that the primary and those replicas have the grant on disk. It needs Redis 7.2 and appendonly on each of
	// them (https://redis.io/docs/latest/commands/waitaof/). Default false.
	Fsync bool

	// Timeout is how long to wait, at least 1 ms and shorter than the TTL of every lock. Default 1 s, if one of the fields above is set.
	Timeout time.Duration
}

// withDefaults returns a checked copy of the options with all defaults set.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	switch {
	case c.NoPrefix && c.Prefix != "":
		return c, server.Invalid("Prefix %q is set together with NoPrefix; set only one of them", c.Prefix)
	case !c.NoPrefix && c.Prefix == "":
		c.Prefix = protocol.DefaultPrefix
	}
	if err := protocol.CheckPrefix(c.Prefix); err != nil {
		return c, server.Invalid("Prefix: %w", err)
	}
	if err := c.setHeartbeatDefaults(); err != nil {
		return c, err
	}
	if c.MetadataTTL == 0 {
		c.MetadataTTL = defaultMetadataTTL
	}
	if err := checkRange("MetadataTTL", c.MetadataTTL, time.Minute, server.LongestTTL); err != nil {
		return c, err
	}
	if err := c.Retry.setDefaults(); err != nil {
		return c, err
	}
	if err := c.ReplicaAck.setDefaults(); err != nil {
		return c, err
	}
	if err := checkRange("LongWait", c.LongWait, 10*time.Millisecond, server.LongestTTL); err != nil && c.LongWait != 0 {
		return c, err
	}
	if err := c.setOwnerDefault(); err != nil {
		return c, err
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// setHeartbeatDefaults checks the heartbeat's interval and timeout and sets their defaults. As in the functions below, fields that are set
// are checked before defaults are derived from them, so that errors name the right field.
func (o *Options) setHeartbeatDefaults() error {
	if err := checkRange("HeartbeatInterval", o.HeartbeatInterval, 10*time.Millisecond, time.Hour); err != nil && o.HeartbeatInterval != 0 {
		return err
	}
	if err := checkRange("HeartbeatTimeout", o.HeartbeatTimeout, 20*time.Millisecond, 24*time.Hour); err != nil && o.HeartbeatTimeout != 0 {
		return err
	}
	if o.HeartbeatInterval == 0 {
		o.HeartbeatInterval = protocol.DefaultHeartbeatInterval
		if o.HeartbeatTimeout != 0 {
			o.HeartbeatInterval = min(max(o.HeartbeatTimeout/3, 10*time.Millisecond), time.Hour)
		}
	}
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = 3 * o.HeartbeatInterval
	}
	if o.HeartbeatTimeout < 2*o.HeartbeatInterval {
		return server.Invalid("HeartbeatTimeout %v is shorter than twice the HeartbeatInterval of %v", o.HeartbeatTimeout, o.HeartbeatInterval)
	}
	return nil
}

// maxOwner is the maximum length of an owner label, in bytes.
const maxOwner = 256

func (o *Options) setOwnerDefault() error {
	switch {
	case o.NoOwner && o.Owner != "":
		return server.Invalid("Owner %q is set together with NoOwner; set only one of them", o.Owner)
	case protocol.CheckText("Owner", o.Owner) != nil:
		return server.Invalid("%w", protocol.CheckText("Owner", o.Owner))
	case o.NoOwner || o.Owner != "":
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	label := fmt.Sprintf("%s:%d %s", host, os.Getpid(), filepath.Base(os.Args[0]))
	printable := func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}
	label = strings.Map(printable, label)
	for len(label) > maxOwner {
		_, size := utf8.DecodeLastRuneInString(label)
		label = label[:len(label)-size]
	}
	o.Owner = label
	return nil
}

func (r *RetryPolicy) setDefaults() error {
	if err := checkRange("Retry.MinBackoff", r.MinBackoff, time.Millisecond, time.Hour); err != nil && r.MinBackoff != 0 {
		return err
	}
	if err := checkRange("Retry.MaxBackoff", r.MaxBackoff, time.Millisecond, time.Hour); err != nil && r.MaxBackoff != 0 {
		return err
	}
	if r.MinBackoff == 0 {
		r.MinBackoff = defaultMinBackoff
		if r.MaxBackoff > 0 {
			r.MinBackoff = min(r.MinBackoff, r.MaxBackoff)
		}
	}
	if r.MaxBackoff == 0 {
		r.MaxBackoff = max(defaultMaxBackoff, r.MinBackoff)
	}
	if r.MaxElapsed == 0 {
		r.MaxElapsed = defaultMaxElapsed
	}
	if r.MaxBackoff < r.MinBackoff {
		return server.Invalid("Retry.MaxBackoff %v is shorter than Retry.MinBackoff %v", r.MaxBackoff, r.MinBackoff)
	}
	return nil
}

func (a *ReplicaAck) setDefaults() error {
	if a.Replicas < 0 {
		return server.Invalid("ReplicaAck.Replicas %d is negative; 0 means not to wait for a number of replicas", a.Replicas)
	}
	if a.Timeout != 0 && a.Replicas == 0 && !a.Majority && !a.Fsync {
		return server.Invalid("ReplicaAck.Timeout %v is set, but none of Replicas, Majority and Fsync; set one of them", a.Timeout)
	}
	if a.Timeout == 0 {
		a.Timeout = defaultReplicaAckTimeout
	}
	if err := checkRange("ReplicaAck.Timeout", a.Timeout, time.Millisecond, server.LongestTTL); err != nil {
		return err
	}
	return nil
}

func checkRange(option string, d, least, most time.Duration) error {
	if d < least || d > most {
		return server.Invalid("%s %v is not between %v and %v", option, d, least, most)
	}
	return nil
}
