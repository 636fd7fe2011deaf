// Package doctor implements the command doctor, which checks whether a Redis deployment is fit for locks.
package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// Exit codes of doctor alone; it runs no command whose codes they could be taken for.
const (
	codeWarnings = 1
	codeErrors   = 2
)

// status is how a check came out.
type status int

const (
	fine    status = iota
	unknown        // it could not be looked at
	warning        // it works, and a crash, a failover or a full memory will cost more than it need
	failure        // locks do not work, or one that is held can be lost in ordinary operation
)

var statusNames = [...]string{"ok", "unknown", "warning", "error"}

func (s status) String() string { return statusNames[s] }

// MarshalText makes it a word in JSON.
func (s status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// finding is what a check has found. docs/operations.md has the names, which others rely on.
type finding struct {
	Check  string             `json:"check"`
	Status status             `json:"status"`
	Nodes  []string           `json:"nodes"`            // addresses; empty if it is about the deployment
	Seen   string             `json:"seen"`             //
	Advice string             `json:"advice,omitempty"` // what to do
	Right  string             `json:"right,omitempty"`  // the ACL rules that are missing
	Docs   string             `json:"docs"`             // where to read on
	Values map[string]float64 `json:"values,omitempty"` // what was measured; durations in ms
}

// diagnosis is all findings.
type diagnosis struct {
	Status status    `json:"status"` // the worst one; unknown is no worse than ok
	URL    string    `json:"url"`
	Kind   string    `json:"kind"`
	Prefix string    `json:"prefix"`
	Checks []finding `json:"checks"`

	unreachable bool // no server could be asked anything
}

// docsOf is the section that says more about a check.
var docsOf = map[string]string{
	"connect": "doctor", "sentinel": "failovers", "cluster": "settings", "version": "settings", "role": "failovers",
	"eviction": "settings", "memory": "settings", "persistence": "settings", "replicas": "failovers", "idle": "settings",
	"rights": "rights", "wakeups": "rights", "scripts": "doctor", "clock": "settings", "latency": "doctor",
	"client": "doctor", "lease": "doctor",
}

type doctorOptions struct {
	redis   []string
	prefix  string
	timeout time.Duration
	json    bool
}

// leastTimeout leaves time for the look and for tidying up.
const leastTimeout = time.Second

func Command() *cobra.Command {
	var o doctorOptions
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check a Redis deployment, and say what to mend",
		Long: `Check whether a Redis deployment is fit for locks, and say what to mend.

It looks at the version, the role, eviction, memory, persistence, replicas, idle timeouts, the user's rights, wake-ups,
scripts, the clock, latency, the client's timeouts and, where they are, Sentinel and the cluster's slots; and it takes a
lock of its own, hands it over and gives it back. It changes no setting, touches no key but those of a name of its own,
and deletes these.

Each check ends as ok, warning, error, or unknown if it could not be looked at, which is usual on managed services. With
--json the same is written as one object; its fields are at
` + operations() + `#doctor

Exit codes: 0 all is ok or unknown, 1 there are warnings, 2 there are errors, 64 wrong usage, 69 Redis does not answer
or refuses, 130 or 143 it was interrupted.`,
		Example: `  lockkeeper doctor
  lockkeeper doctor --redis redis://locks:secret@locks.internal:6379 --prefix billing:
  lockkeeper doctor --redis 'redis+cluster://c1:7000?addr=c2:7000' --json | jq '.checks[] | select(.status != "ok")'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("doctor takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), os.Stdout) },
	}
	f := c.Flags()
	f.StringArrayVar(&o.redis, "redis", nil, "Redis URL; default $REDIS_URL, or "+redisurl.Default+". Forms:\n"+redisurl.Help+"\n")
	f.StringVar(&o.prefix, "prefix", lockkeeper.DefaultPrefix, "prefix of the keys in Redis")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long all of it may take, from 1s")
	f.BoolVar(&o.json, "json", false, "write one JSON object")
	return c
}

func (o *doctorOptions) run(ctx context.Context, out io.Writer) error {
	if o.timeout < leastTimeout {
		return exit.Usagef("--timeout %v is shorter than %v", o.timeout, leastTimeout)
	}
	var raw string
	switch len(o.redis) {
	case 0:
	case 1:
		raw = o.redis[0]
	default:
		return exit.Usagef("%d times --redis: it checks one deployment at a time", len(o.redis))
	}
	t, err := redisurl.Parse(raw)
	if err != nil {
		return err
	}
	d, err := newDoctor(t, o.prefix, o.timeout)
	if err != nil {
		return err
	}
	defer d.close()

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan *diagnosis, 1)
	go func() { done <- d.examine(ctx) }()
	var found *diagnosis
	select {
	case found = <-done:
	case s := <-signals:
		cancel()
		<-done // it tidies up
		return &exit.Error{Code: 128 + int(s.(syscall.Signal))}
	}
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		err = e.Encode(found)
	} else {
		_, err = io.WriteString(out, found.text())
	}
	if err != nil {
		return err
	}
	if code := found.code(); code != 0 {
		return &exit.Error{Code: code}
	}
	return nil
}

// code is the exit code.
func (d *diagnosis) code() int {
	switch {
	case d.unreachable:
		return exit.Unreachable
	case d.Status == failure:
		return codeErrors
	case d.Status == warning:
		return codeWarnings
	}
	return 0
}

// text is the diagnosis for people.
func (d *diagnosis) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, prefix %q\n\n", d.URL, d.Kind, d.Prefix)
	var count [len(statusNames)]int
	for _, f := range d.Checks {
		count[f.Status]++
		seen := f.Seen
		if len(f.Nodes) > 0 && d.Kind != "server" {
			seen = strings.Join(f.Nodes, ", ") + ": " + seen
		}
		fmt.Fprintf(&b, "%-8s %-12s %s\n", f.Status, f.Check, seen)
		const margin = "                      "
		if f.Right != "" {
			fmt.Fprintf(&b, "%sright:  %s\n", margin, f.Right)
		}
		if f.Advice != "" {
			fmt.Fprintf(&b, "%smend:   %s\n", margin, f.Advice)
		}
		if f.Status != fine {
			fmt.Fprintf(&b, "%ssee:    %s\n", margin, f.Docs)
		}
	}
	fmt.Fprintf(&b, "\nerrors: %d, warnings: %d, unknown: %d, ok: %d\n", count[failure], count[warning], count[unknown], count[fine])
	return b.String()
}

// doctor examines one deployment.
type doctor struct {
	target  *redisurl.Target
	prefix  string
	timeout time.Duration
	name    string                // of the lock that it takes
	rdb     redis.UniversalClient // with the user's own settings
	ask     redis.UniversalClient // does not repeat, and ends with its context
	log     *slog.Logger

	mu       sync.Mutex // guards what follows
	findings []finding
}

// node is one server that takes writes.
type node struct {
	*doctor
	client *redis.Client
	addr   string
	keys   *protocol.Keys // of a name that lies here; nil: none does, as far as was seen
	facts  facts
	loaded string // how scripts are loaded; "": they are not
}

func newDoctor(t *redisurl.Target, prefix string, timeout time.Duration) (*doctor, error) {
	d := &doctor{
		target: t, prefix: prefix, timeout: timeout,
		name: "lockkeeper-doctor:" + rand.Text(),
		rdb:  t.Client(), ask: t.Strict().Client(),
		log: slog.New(slog.DiscardHandler),
	}
	k, err := d.keeper(lockkeeper.Hooks{}) // is the prefix one?
	if err != nil {
		d.close()
		return nil, err
	}
	_ = k.Close()
	return d, nil
}

func (d *doctor) close() {
	_ = d.rdb.Close()
	_ = d.ask.Close()
}

// add notes a finding about a node, or about the deployment if there is none. Nodes of which the same was found share
// one.
func (d *doctor) add(n *node, check string, f finding) {
	f.Check, f.Docs, f.Nodes = check, operations()+"#"+docsOf[check], []string{}
	if n != nil {
		f.Nodes = append(f.Nodes, n.addr)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, other := range d.findings {
		if other.Check == check && other.Status == f.Status && other.Seen == f.Seen && other.Right == f.Right &&
			other.Advice == f.Advice && len(other.Values)+len(f.Values) == 0 {
			d.findings[i].Nodes = append(other.Nodes, f.Nodes...)
			return
		}
	}
	d.findings = append(d.findings, f)
}

// order is that of the checks in a diagnosis.
var order = []string{
	"connect", "sentinel", "cluster", "version", "role", "eviction", "memory", "persistence", "replicas", "idle", "rights",
	"wakeups", "scripts", "clock", "latency", "client", "lease",
}

// examine runs all checks. It blocks for the timeout at the most, of which it keeps a part for tidying up.
func (d *doctor) examine(ctx context.Context) *diagnosis {
	ctx, cancel := context.WithTimeout(ctx, d.timeout-d.tidyTime())
	defer cancel()
	result := &diagnosis{URL: d.target.URL, Kind: d.target.Kind(), Prefix: d.prefix}
	if d.target.Sentinel != nil {
		d.sentinels(ctx)
	}
	nodes := d.connect(ctx)
	result.unreachable = len(nodes) == 0
	if d.target.Cluster != nil && len(nodes) > 0 {
		d.slots(ctx, nodes)
	}
	together(nodes, func(n *node) { n.settings(ctx) })
	together(nodes, func(n *node) { n.rights(ctx) })
	together(nodes, func(n *node) { n.wakeups(ctx) })
	together(nodes, func(n *node) { n.loadScripts(ctx) })
	together(nodes, func(n *node) { n.clock(ctx) })
	together(nodes, func(n *node) { n.latency(ctx) })
	d.client()
	if len(nodes) > 0 {
		d.lease(ctx, nodes)
	}
	together(nodes, func(n *node) { n.lookForScripts(ctx) })

	result.Checks = d.findings
	slices.SortStableFunc(result.Checks, func(a, b finding) int {
		return cmp.Or(slices.Index(order, a.Check)-slices.Index(order, b.Check), slices.Compare(a.Nodes, b.Nodes))
	})
	for _, f := range result.Checks {
		slices.Sort(f.Nodes)
		if f.Status > unknown {
			result.Status = max(result.Status, f.Status)
		}
	}
	return result
}

// tidyTime is kept for giving back what the doctor holds.
func (d *doctor) tidyTime() time.Duration { return min(d.timeout/5, time.Second) }

// connectTime is how long a server may take to answer at first.
func (d *doctor) connectTime() time.Duration { return d.timeout / 2 }

// together asks the nodes at the same time: one may hang.
func together(nodes []*node, check func(*node)) {
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() { check(n) })
	}
	all.Wait()
}

// missing is a finding of what could not be seen because of an error: unknown if the server does not let the user
// look, or does not tell, and an error if it does not answer. Right is the ACL rule that lets one look.
func missing(right string, err error) finding {
	switch {
	case redis.IsPermissionError(err):
		return finding{Status: unknown, Seen: "no right to look", Right: right}
	case replied(err):
		return finding{Status: unknown, Seen: "the server does not tell: " + err.Error()}
	case errors.Is(err, errUntold):
		return finding{Status: unknown, Seen: err.Error()}
	}
	return finding{Status: failure, Seen: "no answer: " + err.Error()}
}

// errUntold: the server has answered, and what was looked for is not in the answer.
var errUntold = errors.New("the server does not tell")

// replied says whether an error is a server's answer, as opposed to none.
func replied(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// keeper is one of the doctor's own; what it leaves is gone in about a minute, should tidying up fail.
func (d *doctor) keeper(hooks lockkeeper.Hooks) (*lockkeeper.Keeper, error) {
	return lockkeeper.New(d.rdb, &lockkeeper.Options{
		Prefix: d.prefix, NoPrefix: d.prefix == "", MetadataTTL: time.Minute, Logger: d.log, Hooks: hooks,
		Retry: lockkeeper.RetryPolicy{MaxElapsed: d.timeout / 4},
	})
}
