package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/redis/go-redis/v9"
)

// doctor examines one deployment.
type doctor struct {
	target   *redisurl.Target
	prefix   string
	timeout  time.Duration
	lockName string                // name of the lock that the checks use
	rdb      redis.UniversalClient // with the settings of the URL
	probe    redis.UniversalClient // without retries; its commands end with their context
	log      *slog.Logger
	progress *terminal.Progress

	mu       sync.Mutex // guards findings
	findings []finding
}

// node is one primary.
type node struct {
	*doctor
	client       *redis.Client
	addr         string
	keys         *protocol.Keys // of a lock name whose keys are on this node; nil if none was found
	sharded      string         // a sharded channel in their slot
	server       serverInfo
	scriptDetail string // set when scripts work: how they were loaded
}

// newDoctor fails with ErrInvalid if prefix is not valid.
func newDoctor(t *redisurl.Target, prefix string, timeout time.Duration) (*doctor, error) {
	d := &doctor{
		target: t, prefix: prefix, timeout: timeout,
		lockName: "lockkeeper-doctor:" + rand.Text(),
		rdb:      t.Client(), probe: t.WithoutRetries().Client(),
		log: slog.New(slog.DiscardHandler),
	}
	k, err := d.newKeeper(lockkeeper.Hooks{}) // validates the prefix
	if err != nil {
		d.close()
		return nil, err
	}
	_ = k.Close()
	return d, nil
}

func (d *doctor) close() {
	_ = d.rdb.Close()
	_ = d.probe.Close()
}

// newKeeper returns a keeper for the checks. Whatever it leaves at the server if the cleanup fails expires in about a minute.
func (d *doctor) newKeeper(hooks lockkeeper.Hooks) (*lockkeeper.Keeper, error) {
	return lockkeeper.New(d.rdb, &lockkeeper.Options{
		Prefix: d.prefix, NoPrefix: d.prefix == "", MetadataTTL: time.Minute, Logger: d.log, Hooks: hooks, NoOwner: true,
		Retry: lockkeeper.RetryPolicy{MaxElapsed: d.timeout / 4},
	})
}

// cleanupTime is the part of the timeout that is reserved for releasing locks and deleting keys.
func (d *doctor) cleanupTime() time.Duration { return min(d.timeout/5, time.Second) }

// connectTimeout limits the first answer of a server.
func (d *doctor) connectTimeout() time.Duration { return d.timeout / 2 }

// examine runs all checks. It takes no longer than the timeout, of which it reserves a part for the cleanup.
func (d *doctor) examine(ctx context.Context) *report {
	ctx, cancel := context.WithTimeout(ctx, d.timeout-d.cleanupTime())
	defer cancel()
	r := &report{URL: d.target.URL, Kind: d.target.Kind(), Prefix: d.prefix}
	d.progress.Show("connecting to %s", r.URL)
	if d.target.Sentinel != nil {
		d.checkSentinels(ctx)
	}
	nodes := d.connect(ctx)
	r.unreachable = len(nodes) == 0
	if d.target.Cluster != nil && len(nodes) > 0 {
		d.checkCluster(ctx, nodes)
	}
	for _, check := range []struct {
		what string
		run  func(*node, context.Context)
	}{
		{"the settings", (*node).checkServer}, {"permissions", (*node).checkPermissions}, {"messages", (*node).checkPubSub},
		{"scripts", (*node).checkScripts}, {"keys of other libraries", (*node).checkForeignKeys}, {"the clock", (*node).checkClock},
		{"latency", (*node).checkLatency},
	} {
		d.progress.Show("checking %s", check.what)
		onEach(nodes, func(n *node) { check.run(n, ctx) })
	}
	d.checkClientTimeouts()
	if len(nodes) > 0 {
		d.progress.Show("handing a lock over")
		d.checkLock(ctx, nodes)
	}
	onEach(nodes, func(n *node) { n.recheckScripts(ctx) })

	r.Checks = d.findings
	r.sort()
	return r
}

// onEach runs a check on all nodes concurrently, because one of them may hang.
func onEach(nodes []*node, check func(*node)) {
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() { check(n) })
	}
	wg.Wait()
}

// add records a finding about a node, or about the deployment if n is nil. Equal findings about several nodes are merged
// into one.
func (d *doctor) add(n *node, check string, f finding) {
	f.Check, f.Docs, f.Nodes = check, docsURL()+"#"+docsSection[check], []string{}
	if n != nil {
		f.Nodes = append(f.Nodes, n.addr)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, other := range d.findings {
		if other.Check == check && other.Status == f.Status && other.Detail == f.Detail && other.ACLRules == f.ACLRules &&
			other.Advice == f.Advice && len(other.Values)+len(f.Values) == 0 {
			d.findings[i].Nodes = append(other.Nodes, f.Nodes...)
			return
		}
	}
	d.findings = append(d.findings, f)
}

// unavailable is the finding when the data of a check could not be read. The status is unknown if the server refuses or does
// not report the data, and error if it does not answer. Rule is the ACL rule that permits reading it.
func unavailable(rule string, err error) finding {
	switch {
	case redis.IsPermissionError(err):
		return finding{Status: statusUnknown, Detail: "the user lacks the permission to read it", ACLRules: rule}
	case isServerError(err):
		return finding{Status: statusUnknown, Detail: "not reported by the server: " + err.Error()}
	case errors.Is(err, errNotReported):
		return finding{Status: statusUnknown, Detail: err.Error()}
	}
	return finding{Status: statusError, Detail: "no answer: " + err.Error()}
}

// errNotReported means that the server answered, but without the value.
var errNotReported = errors.New("not reported by the server")

// isServerError reports whether err is an error reply of a server, as opposed to no reply.
func isServerError(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// isUnknownCommand reports whether the server does not have the command or subcommand. The client removes "ERR " before it
// compares prefixes.
func isUnknownCommand(err error) bool { return redis.HasErrorPrefix(err, "unknown ") }
