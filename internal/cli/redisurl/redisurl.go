// Package redisurl makes clients from Redis URLs.
package redisurl

import (
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/redis/go-redis/v9"
)

const Default = "redis://127.0.0.1:6379"

const Help = `redis://user:password@host:6379/0           one server (rediss:// with TLS, unix:// for a socket)
redis+sentinel://host:26379?master_name=main&addr=host2:26379
redis+cluster://host:7000?addr=host2:7000&addr=host3:7000`

// Connect makes a client out of a URL; without one it takes REDIS_URL, and then a server on this host.
func Connect(raw string) (redis.UniversalClient, error) {
	t, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	return t.Client(), nil
}

// Parse is what a URL names; without one it takes REDIS_URL, and then a server on this host.
func Parse(raw string) (*Target, error) {
	from := "--redis"
	if raw == "" {
		raw, from = os.Getenv("REDIS_URL"), "REDIS_URL"
	}
	if raw == "" {
		raw = Default
	}
	t, err := parse(raw)
	if err != nil {
		return nil, exit.Usagef("%s %q: %w; the forms are\n%s", from, Redact(raw), err, Help)
	}
	return t, nil
}

// DialAttempts is how often a client dials: the keeper repeats by itself, and knows by when it must have an answer.
const DialAttempts = 1

// Target is a deployment and the settings of its client. One of the three options is set.
type Target struct {
	URL      string // without the password
	Server   *redis.Options
	Sentinel *redis.FailoverOptions
	Cluster  *redis.ClusterOptions
}

func (t *Target) Client() redis.UniversalClient {
	switch {
	case t.Cluster != nil:
		o := *t.Cluster // the client fills defaults in
		return redis.NewClusterClient(&o)
	case t.Sentinel != nil:
		return redis.NewFailoverClient(t.Sentinel)
	}
	return redis.NewClient(t.Server)
}

// Strict is the target with a client that sends nothing twice and gives up with the context of a command.
func (t *Target) Strict() *Target {
	c := *t
	switch {
	case t.Cluster != nil:
		o := *t.Cluster
		o.MaxRetries, o.MaxRedirects, o.ContextTimeoutEnabled = -1, -1, true
		c.Cluster = &o
	case t.Sentinel != nil:
		o := *t.Sentinel
		o.MaxRetries, o.ContextTimeoutEnabled = -1, true
		c.Sentinel = &o
	default:
		o := *t.Server
		o.MaxRetries, o.ContextTimeoutEnabled = -1, true
		c.Server = &o
	}
	return &c
}

func (t *Target) Kind() string {
	switch {
	case t.Cluster != nil:
		return "cluster"
	case t.Sentinel != nil:
		return "sentinel"
	}
	return "server"
}

func parse(raw string) (*Target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("not a URL")
	}
	if u.Opaque != "" {
		return nil, fmt.Errorf("no // after %q", u.Scheme+":") // the client would take it for a server on this host
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("the port %s is not between 1 and 65535", port)
		}
	}
	if err := checkCounts(u.Query()); err != nil {
		return nil, err
	}
	t := &Target{URL: Redact(raw)}
	scheme, deployment, _ := strings.Cut(u.Scheme, "+")
	u.Scheme = scheme
	switch {
	case deployment == "cluster":
		o, err := redis.ParseClusterURL(u.String())
		if err != nil {
			return nil, err
		}
		o.DialerRetries = DialAttempts
		t.Cluster = o
		return t, nil
	case deployment == "sentinel", deployment == "" && u.Query().Has("master_name"):
		o, err := redis.ParseFailoverURL(u.String())
		if err != nil {
			return nil, err
		}
		if o.MasterName == "" {
			return nil, fmt.Errorf("no master_name")
		}
		o.DialerRetries = DialAttempts
		t.Sentinel = o
		return t, nil
	case deployment != "":
		return nil, fmt.Errorf("the scheme %q is unknown", scheme+"+"+deployment)
	}
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	o.DialerRetries = DialAttempts
	t.Server = o
	return t, nil
}

// counts are the options of a URL that say how much of something the client makes, and the most that is taken. The
// client makes some of it at once, and panics if that cannot be.
var counts = map[string]int{
	"pool_size":                  10_000,
	"pipeline_pool_size":         10_000,
	"min_idle_conns":             10_000,
	"max_idle_conns":             10_000,
	"max_active_conns":           10_000,
	"max_concurrent_dials":       10_000,
	"pipeline_read_buffer_size":  16 << 20,
	"pipeline_write_buffer_size": 16 << 20,
}

func checkCounts(q url.Values) error {
	for name, most := range counts {
		for _, v := range q[name] {
			if n, err := strconv.Atoi(v); err == nil && (n < 0 || n > most) { // the client says what is no number
				return fmt.Errorf("%s %d is not between 0 and %d", name, n, most)
			}
		}
	}
	return nil
}

// Redact hides passwords: that of the user, and those that may stand among the options or where no URL has any.
func Redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Scheme == "" {
		return "…"
	}
	if u.RawQuery != "" {
		u.RawQuery = "…"
	}
	return u.Redacted()
}
