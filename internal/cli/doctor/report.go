package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// Exit codes of doctor alone. It runs no command, so they cannot be mistaken for the exit code of one.
const (
	exitWarnings = 1
	exitErrors   = 2
)

// status is the result of a check.
type status int

const (
	statusOK      status = iota
	statusUnknown        // the check could not be made
	statusWarning        // locks work, but a crash, a failover or full memory does more damage than necessary
	statusError          // locks do not work, or a held lock can be lost in normal operation
)

var statusNames = [...]string{"ok", "unknown", "warning", "error"}

func (s status) String() string { return statusNames[s] }

// MarshalText encodes the status as its name.
func (s status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// finding is the result of a check on one or several nodes. The names of its fields are documented in the help and
// must not change within a major version.
type finding struct {
	Check    string             `json:"check"`
	Status   status             `json:"status"`
	Nodes    []string           `json:"nodes"`               // addresses; empty if the finding is about the whole deployment
	Detail   string             `json:"detail"`              // what was found
	Advice   string             `json:"advice,omitempty"`    // what to do
	ACLRules string             `json:"acl_rules,omitempty"` // the missing rules, as ACL SETUSER takes them
	Docs     string             `json:"docs"`                // URL of the section of the documentation
	Values   map[string]float64 `json:"values,omitempty"`    // measurements; durations in milliseconds
}

// report has the findings of all checks.
type report struct {
	Status status    `json:"status"` // the worst status of the findings, where unknown counts as ok
	URL    string    `json:"url"`
	Kind   string    `json:"kind"` // server, sentinel or cluster
	Prefix string    `json:"prefix"`
	Checks []finding `json:"checks"`

	unreachable bool // no server answered
}

// checks are the names of the checks, in the order of the report.
var checks = []string{
	"connection", "sentinel", "cluster", "version", "role", "eviction", "memory", "persistence", "replicas",
	"permissions", "pubsub", "scripts", "foreign-keys", "clock", "latency", "client-timeouts", "lock",
}

// checksHelp describes the checks in the help. The thresholds are those of the constants in this package.
const checksHelp = `  connection       a server does not answer; nothing else of it is checked then
  sentinel         a sentinel does not answer (a warning), does not know the primary, or
                   has no quorum
  cluster          a slot is not assigned or fails, or a node is suspected (a warning)
  version          older than Redis 7.0
  role             a replica, a sentinel, or a node of a cluster where the URL is of
                   another kind
  eviction         maxmemory-policy is not noeviction; a warning without maxmemory
  memory           90% of maxmemory are used (a warning), or all
  persistence      no append-only file, or appendfsync no (warnings); the last write or
                   snapshot failed, and writes are refused
  replicas         too few for writes; one is not in step, there is none, or
                   min-replicas-to-write is off (warnings)
  permissions      one is missing, by ACL DRYRUN or else by trying; a warning for those to
                   publish and subscribe; those that only an option needs are listed
  pubsub           the user may not publish or subscribe (a warning), or a message to
                   itself has no receiver
  scripts          one does not run by EVAL, EVALSHA or, if the user may, SCRIPT LOAD; they
                   were flushed meanwhile (a warning)
  foreign-keys     among up to 10,000 keys are some of python-redis-lock or ShedLock, which
                   can delete locks under this prefix (warnings)
  clock            it is later than October 2083 (error); it is not set, differs from this
                   machine's by more than 1s, or one jumps (warnings)
  latency          of up to 100 PINGs, the median is above 20ms or the p99 above 200ms
                   (warnings); the p99 is 2s or more
  client-timeouts  the URL has no read_timeout, or a timeout above 10s (a warning)
  lock             a fair lock that two keepers hand over five times fails, or a waiter
                   found its grant only at a heartbeat (a warning)
`

// docsSection is the section of docs/operations.md that explains each check.
var docsSection = map[string]string{
	"connection": "doctor", "sentinel": "settings", "cluster": "settings", "version": "settings", "role": "settings",
	"eviction": "settings", "memory": "settings", "persistence": "settings", "replicas": "settings",
	"permissions": "permissions", "pubsub": "permissions", "scripts": "doctor", "foreign-keys": "doctor",
	"clock": "settings", "latency": "doctor", "client-timeouts": "doctor", "lock": "doctor",
}

// sort orders the findings and sets the overall status.
func (r *report) sort() {
	slices.SortStableFunc(r.Checks, func(a, b finding) int {
		return cmp.Or(slices.Index(checks, a.Check)-slices.Index(checks, b.Check), slices.Compare(a.Nodes, b.Nodes))
	})
	for _, f := range r.Checks {
		slices.Sort(f.Nodes)
		if f.Status > statusUnknown {
			r.Status = max(r.Status, f.Status)
		}
	}
}

func (r *report) exitCode() int {
	switch {
	case r.unreachable:
		return exit.Unreachable
	case r.Status == statusError:
		return exitErrors
	case r.Status == statusWarning:
		return exitWarnings
	}
	return 0
}

// text formats the report for people.
func (r *report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, prefix %q\n\n", r.URL, r.Kind, r.Prefix)
	var count [len(statusNames)]int
	for _, f := range r.Checks {
		count[f.Status]++
		detail := f.Detail
		if len(f.Nodes) > 0 && r.Kind != "server" {
			detail = strings.Join(f.Nodes, ", ") + ": " + detail
		}
		fmt.Fprintf(&b, "%-8s %-15s %s\n", f.Status, f.Check, detail)
		line := func(label, text string) { fmt.Fprintf(&b, "%25s%-11s%s\n", "", label, text) }
		if f.ACLRules != "" {
			line("ACL rules:", f.ACLRules)
		}
		if f.Advice != "" {
			line("advice:", f.Advice)
		}
		if f.Status != statusOK {
			line("see:", f.Docs)
		}
	}
	fmt.Fprintf(&b, "\nerrors: %d, warnings: %d, unknown: %d, ok: %d\n", count[statusError], count[statusWarning], count[statusUnknown], count[statusOK])
	return b.String()
}

// docsURL is the address of docs/operations.md.
func docsURL() string { return output.DocsURL("operations.md") }
