package views

import (
	"context"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Inspection is the state of one lock at the server. Package admin documents the fields.
type Inspection struct {
	Holders []Holder
	Waiters []Waiter
	Fence   uint64
	Limits  *LimitsInForce // nil: it has none

	RunAgainIn time.Duration
}

// LimitsInForce are the limits of a semaphore or rate limit at the server, and what is used of them.
type LimitsInForce struct {
	Limit         int
	Used          int
	Window        time.Duration
	MaxConcurrent int
	Held          int
	PausedFor     time.Duration
}

// foreignTTL is the ttl of a lock from LockOf, which needs a valid one although no lease is granted by it.
const foreignTTL = 30 * time.Second

// LockOf returns a lock of a kind and a name, to look at it or to break it. The error is ErrInvalid.
func LockOf(s *server.Server, kind, name string) (*server.Resource, error) {
	set, err := setOf(kind)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, server.InvalidFor(kind, name, "the keeper is nil")
	}
	l := &server.Resource{}
	if err := s.InitResource(l, server.Spec{Scripts: set, Name: name, TTL: foreignTTL, MetadataTTL: s.Config.MetadataTTL}); err != nil {
		return nil, server.OfLock(kind, name, err)
	}
	return l, nil
}

// Inspect returns the state of the lock. It blocks for several round trips, between which the lock may change hands.
func Inspect(ctx context.Context, l *server.Resource) (*Inspection, error) {
	holders, err := Holders(ctx, l)
	if err != nil {
		return nil, err
	}
	waiters, err := Waiters(ctx, l)
	if err != nil {
		return nil, err
	}
	in := &Inspection{Waiters: waiters}
	in.Holders, in.RunAgainIn = deleteRecords(holders)
	holders = in.Holders
	meta, err := server.ReadAgain(ctx, l.Server(), func() (metadata, error) { return readMetadata(l) })
	if err != nil {
		return nil, l.Fail(err)
	}
	in.Fence = meta.fence
	if meta.limits == nil || meta.limits.AtOnce > 0 { // permits that return by the clock are no leases
		if err := markUnconfirmed(ctx, l, holders); err != nil {
			return nil, l.Fail(err)
		}
	}
	if l.Scripts().Limit == nil || meta.limits == nil {
		return in, nil
	}
	if in.Limits, err = inForce(ctx, l, *meta.limits, holders); err != nil {
		return nil, l.Fail(err)
	}
	return in, nil
}

// deleteRecords removes the record of a completed job (package once), which is no lease, and returns how long the record lasts.
func deleteRecords(holders []Holder) (leases []Holder, runAgainIn time.Duration) {
	leases = holders[:0]
	for _, h := range holders {
		if protocol.IsRecord(h.Token) {
			runAgainIn = h.ExpiresIn
		} else {
			leases = append(leases, h)
		}
	}
	return leases, runAgainIn
}

// metadata is what the server knows of a name besides its leases and its queue.
type metadata struct {
	fence  uint64
	limits *protocol.Limits // nil: none
}

func readMetadata(l *server.Resource) (m metadata, err error) {
	pipe := l.Server().Config.Client.Pipeline()
	fields := pipe.HMGet(context.Background(), l.KeyOf(server.MetaKey), "seq", "limits")
	if err := server.Execute(pipe); err != nil {
		return m, err
	}
	if err := fields.Err(); err != nil {
		return m, err
	}
	if text, ok := fields.Val()[0].(string); ok {
		seq, _ := strconv.ParseInt(text, 10, 64) // negative while there may be tombstones
		m.fence = uint64(max(seq, -seq))
	}
	if text, ok := fields.Val()[1].(string); ok {
		if limits, ok := protocol.ParseLimits(text); ok {
			m.limits = &limits
		}
	}
	return m, nil
}

// inForce counts what is used of the limits.
func inForce(ctx context.Context, l *server.Resource, limits protocol.Limits, holders []Holder) (*LimitsInForce, error) {
	held := 0
	for _, h := range holders {
		held += permitsOf(h.Token)
	}
	if limits.Window == 0 {
		return &LimitsInForce{Limit: limits.AtOnce, Used: held}, nil
	}
	f := &LimitsInForce{Limit: limits.Window, Window: claim.Duration(limits.Per)}
	if limits.PausedUntil > 0 {
		now, err := server.ReadAgain(ctx, l.Server(), func() (int64, error) { return serverTime(l) })
		if err != nil {
			return nil, err
		}
		f.PausedFor = max(claim.Duration(limits.PausedUntil-now/1000), 0)
	}
	if limits.AtOnce == 0 { // the holders are those whose permits have not returned
		f.Used = held
		return f, nil
	}
	f.MaxConcurrent, f.Held = limits.AtOnce, held
	err := eachHolder(ctx, l, protocol.InspectTaken, func(h Holder) { f.Used += permitsOf(h.Token) })
	return f, err
}

// serverTime returns the time of the server that has the lock, in µs.
func serverTime(l *server.Resource) (int64, error) {
	ctx := context.Background()
	rdb := l.Server().Config.Client
	pipe := rdb.Pipeline()
	if node, err := rdb.Primary(ctx, l.KeyOf(server.LockKey)); err != nil {
		return 0, err
	} else if node != nil {
		pipe = node.Pipeline()
	}
	now := pipe.Time(ctx)
	err := server.Execute(pipe)
	return server.Micros(now), err
}

// permitsOf returns how many permits the token of a semaphore or rate limit is for.
func permitsOf(token string) int {
	t, _ := protocol.ParseToken(token)
	return int(t.Number)
}
