package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/lua"
)

const (
	defaultListBatch = 500
	maxListBatch     = 10_000
	lookupBatch      = 50     // names in one pipeline; few, because the server serves nobody else while it runs what it has read of one
	maxListed        = 10_000 // of lister.listed and lister.labels
)

// Entry is a lock that List found. Package admin documents the fields.
type Entry struct {
	Kind        string
	Name        string
	Holders     int
	Waiters     int
	ExpiresIn   time.Duration
	LongestWait time.Duration
	Keeper      string
	Owner       string
}

// ListOptions are the options of List. Package admin documents them.
type ListOptions struct {
	Kinds         []string
	Match         string
	WaitingLonger time.Duration
	Batch         int
	Owners        bool
	Progress      func(scanned, total int64)
	OneNode       func()
}

// errStopList ends a listing whose caller wants no more.
var errStopList = errors.New("stopped")

// List calls yield with the locks under the prefix, one after the other, until it returns false. The server looks at a bounded
// number of keys at once. After each answer List pauses for as long as the answer took, so that it uses half of the server's time
// at most, and mostly much less. Its memory does not depend on how many locks there are.
func List(ctx context.Context, s *server.Server, opts ListOptions, yield func(Entry, error) bool) {
	l, err := newLister(ctx, s, opts, yield)
	if err == nil {
		err = l.run()
	}
	if err != nil && err != errStopList {
		yield(Entry{}, err)
	}
}

// lister is one listing. A name has several keys, which SCAN finds in any order. It is listed when SCAN finds its lock's key, or its
// queue's key while the lock's key does not exist. A name listed by its queue is remembered, because a lease may be granted next, and
// SCAN may then find the lock's key as well.
type lister struct {
	s      *server.Server
	ctx    context.Context
	opts   ListOptions
	yield  func(Entry, error) bool
	kinds  map[string]bool   // in the names of keys; nil: all
	match  string            // for SCAN; it also matches some keys that are not under the prefix
	listed map[string]bool   // names listed by another key than their lock's, by the lock's key
	labels map[string]string // of keepers, by id

	scanned, total int64
}

func newLister(ctx context.Context, s *server.Server, opts ListOptions, yield func(Entry, error) bool) (*lister, error) {
	if s == nil {
		return nil, server.Invalid("the keeper is nil")
	}
	l := &lister{s: s, ctx: ctx, opts: opts, yield: yield, match: "*", listed: map[string]bool{}, labels: map[string]string{}}
	switch {
	case opts.Batch < 0 || opts.Batch > maxListBatch:
		return nil, server.Invalid("Batch %d is not between 1 and %d (0 means %d)", opts.Batch, maxListBatch, defaultListBatch)
	case opts.Batch == 0:
		l.opts.Batch = defaultListBatch
	}
	if opts.WaitingLonger < 0 {
		return nil, server.Invalid("WaitingLonger %v is negative", opts.WaitingLonger)
	}
	for _, kind := range opts.Kinds {
		set, err := setOf(kind)
		if err != nil {
			return nil, err
		}
		if l.kinds == nil {
			l.kinds = map[string]bool{}
		}
		l.kinds[set.KeyKind] = true
	}
	if prefix := s.Config.Prefix; prefix != "" {
		l.match = "*" + protocol.QuoteGlob(prefix) + "*" // in some keys a brace precedes it
	}
	return l, nil
}

// setOf returns the scripts of a kind of lock. The error is ErrInvalid.
func setOf(kind string) (*lua.Set, error) {
	for _, set := range lua.All {
		if set.Kind == kind {
			return set, nil
		}
	}
	kinds := ""
	for _, set := range lua.All {
		kinds += ", " + set.Kind
	}
	return nil, server.Invalid("kind %q is unknown; the kinds are%s", kind, kinds[1:])
}

func (l *lister) fail(err error) error {
	if err == nil || err == errStopList {
		return err
	}
	return fmt.Errorf("lockkeeper: list locks with the prefix %q: %w", l.s.Config.Prefix, err)
}

func (l *lister) run() error {
	conns, err := server.Read(l.ctx, l.s, func() ([]client.Conn, error) { return l.s.Config.Client.PrimaryConns(context.Background()) })
	if err != nil {
		return l.fail(err)
	}
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	if err := l.reportNode(conns[0]); err != nil {
		return l.fail(err)
	}
	if l.opts.Progress != nil {
		for _, conn := range conns {
			n, err := server.Read(l.ctx, l.s, func() (int64, error) { return conn.DBSize(context.Background()).Result() })
			if err != nil {
				return l.fail(err)
			}
			l.total += n
		}
	}
	for _, conn := range conns {
		if err := l.scan(conn); err != nil {
			return l.fail(err)
		}
	}
	if l.opts.Progress != nil {
		l.opts.Progress(l.total, l.total)
	}
	return nil
}

// reportNode reports if only the locks of one node of a Cluster will be listed.
func (l *lister) reportNode(conn client.Conn) error {
	node, err := server.Read(l.ctx, l.s, func() (bool, error) { return l.s.Config.Client.IsNode(context.Background(), conn) })
	switch {
	case err != nil || !node:
	case l.opts.OneNode != nil:
		l.opts.OneNode()
	default:
		l.s.OneNode.Log(l.s.Config.Log, slog.LevelWarn, "lockkeeper: the server is a node of a Cluster, and only its locks are listed; use a redis.ClusterClient")
	}
	return err
}

// scanStep is the answer to one SCAN, and the server's time at it.
type scanStep struct {
	keys   []string
	cursor uint64
	now    int64 // µs
	sent   time.Time
}

// serverTime returns the server's time at present, or a little more.
func (s *scanStep) serverTime() int64 { return s.now + time.Since(s.sent).Microseconds() }

// scan lists the locks of one server. Another server does not know its cursors, so all steps use one connection, which is not replaced.
func (l *lister) scan(conn client.Conn) error {
	for cursor := uint64(0); ; {
		step, err := server.Read(l.ctx, l.s, func() (*scanStep, error) { return l.step(conn, cursor) })
		if err != nil {
			return err
		}
		took := time.Since(step.sent)
		if l.opts.Progress != nil {
			l.scanned += int64(l.opts.Batch)
			l.total = max(l.total, l.scanned)
			l.opts.Progress(l.scanned, l.total)
		}
		if err := l.s.Pause(l.ctx, took); err != nil {
			return err
		}
		if err := l.list(step); err != nil {
			return err
		}
		if cursor = step.cursor; cursor == 0 {
			return nil
		}
	}
}

func (l *lister) step(conn client.Conn, cursor uint64) (*scanStep, error) {
	ctx := context.Background()
	step := &scanStep{sent: time.Now()}
	pipe := conn.Pipeline()
	scan, now := pipe.Scan(ctx, cursor, l.match, int64(l.opts.Batch)), pipe.Time(ctx)
	if err := server.Execute(pipe); err != nil {
		return nil, err
	}
	step.keys, step.cursor = scan.Val()
	step.now = server.Micros(now)
	return step, nil
}

// list lists the names of the keys of a step.
func (l *lister) list(step *scanStep) error {
	var names []*lookup
	seen := map[string]bool{} // SCAN may return a key twice
	for _, key := range step.keys {
		if !seen[key] {
			seen[key] = true
			if x := l.lookup(key); x != nil {
				names = append(names, x)
			}
		}
		if len(names) == lookupBatch {
			if err := l.look(names, step); err != nil {
				return err
			}
			names = nil
		}
	}
	return l.look(names, step)
}

// lookup returns the lookup of the name that a key belongs to, or nil if this key does not list a name.
func (l *lister) lookup(key string) *lookup {
	prefix := l.s.Config.Prefix
	p, ok := protocol.ParseKey(prefix, key)
	switch {
	case !ok, p.Part != protocol.KeyLock && p.Part != protocol.KeyQueue:
		return nil
	case l.kinds != nil && !l.kinds[p.Set.KeyKind]:
		return nil
	case l.opts.Match != "" && !protocol.MatchGlob(l.opts.Match, p.Name):
		return nil
	}
	keys, err := protocol.KeysOf(prefix, p.Name, p.Set.KeyKind, p.Set.PlainKey)
	if err != nil { // impossible after ParseKey
		return nil
	}
	return &lookup{ParsedKey: p, keys: keys}
}

// look looks names up and yields those that are held or waited for.
func (l *lister) look(names []*lookup, step *scanStep) error {
	if len(names) == 0 {
		return nil
	}
	began := time.Now()
	entries, err := server.ReadAgain(l.ctx, l.s, func() ([]Entry, error) { return lookUp(l.s.Config.Client, names, step.serverTime()) })
	if err != nil {
		return err
	}
	l.label(entries)
	took := time.Since(began)
	for i, entry := range entries {
		x := names[i]
		usual := x.Part == protocol.KeyLock && x.exists
		switch {
		case x.Part == protocol.KeyQueue && x.exists: // it is listed by the lock's key
			continue
		case entry.Holders == 0 && entry.Waiters == 0, entry.LongestWait <= l.opts.WaitingLonger && l.opts.WaitingLonger > 0, l.listed[x.keys.Lock]:
			continue
		case !usual && len(l.listed) < maxListed:
			l.listed[x.keys.Lock] = true
		}
		if !l.yield(entry, nil) {
			return errStopList
		}
	}
	return l.s.Pause(l.ctx, took)
}

// label sets the owners of entries, if they are wanted. Each keeper's is read once.
func (l *lister) label(entries []Entry) {
	if !l.opts.Owners {
		return
	}
	unknown := map[string]bool{}
	for _, e := range entries {
		if _, known := l.labels[e.Keeper]; e.Keeper != "" && !known && len(l.labels)+len(unknown) < maxListed {
			unknown[e.Keeper] = true
		}
	}
	if len(unknown) > 0 && l.s.BeginWork(false) {
		labels := l.s.Owners(l.ctx, unknown)
		l.s.EndWork()
		for id := range unknown {
			l.labels[id] = labels[id]
		}
	}
	for i := range entries {
		entries[i].Owner = l.labels[entries[i].Keeper]
	}
}
