// Package redisurl parses Redis URLs of the command line and creates clients from them.
package redisurl

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/redis/go-redis/v9"
)

// Default is the URL that is used if neither --redis nor REDIS_URL is set.
const Default = "redis://127.0.0.1:6379"

const forms = `redis://user:password@host:6379/0    one server; rediss:// with TLS, unix:// for a socket
redis+sentinel://host:26379?master_name=main&addr=host2:26379
redis+cluster://host:7000?addr=host2:7000&addr=host3:7000`

// Usage returns the help text of the flag --redis.
func Usage(what string) string {
	return what + "; default $REDIS_URL, or " + Default + ". Supported forms:\n" + forms + "\n"
}

// Parse parses a Redis URL and adds the credentials. If raw is empty, it uses REDIS_URL, and then [Default]. Its errors have the
// exit code [exit.Usage] and show no passwords.
//
// It is no method of Credentials, because whoever has these would see a client's types (package client says what that costs).
func Parse(raw string, c Credentials) (*Target, error) {
	from := "--redis"
	if raw == "" {
		raw, from = os.Getenv("REDIS_URL"), "REDIS_URL"
	}
	if raw == "" {
		raw = Default
	}
	t, err := parse(raw)
	switch {
	case err != nil && specialCharacters(raw): // the error can have parts of the password
		return nil, exit.Usagef("%s has special characters in the user or password: write / as %%2F, ? as %%3F, # as %%23, %% as %%25, [ as %%5B and ] as %%5D, "+
			"or give the password by --password-file", from)
	case err != nil:
		return nil, exit.Usagef("%s %q: %w; supported forms:\n%s", from, Redact(raw), err, forms)
	}
	if err := t.apply(c); err != nil {
		return nil, err
	}
	return t, nil
}

var firstOption = regexp.MustCompile(`\?[a-z_]+=`)

// specialCharacters reports whether what precedes the last @ of a URL has characters that must be escaped there.
func specialCharacters(raw string) bool {
	_, rest, _ := strings.Cut(raw, "://")
	if at := firstOption.FindStringIndex(rest); at != nil { // an option may have an @
		rest = rest[:at[0]]
	}
	end := strings.LastIndexByte(rest, '@')
	return end >= 0 && strings.ContainsAny(rest[:end], "/?#%[]")
}

// DialAttempts is how often a client dials before it returns an error. The keeper retries by itself, within its own deadlines.
const DialAttempts = 1

// Target is a deployment with the options of its client. Exactly one of Server, Sentinel and Cluster is set.
type Target struct {
	URL      string // without passwords
	Server   *redis.Options
	Sentinel *redis.FailoverOptions
	Cluster  *redis.ClusterOptions
}

// Client returns a new client.
func (t *Target) Client() redis.UniversalClient {
	switch {
	case t.Cluster != nil:
		o := *t.Cluster // NewClusterClient changes its options
		return redis.NewClusterClient(&o)
	case t.Sentinel != nil:
		return redis.NewFailoverClient(t.Sentinel)
	}
	return redis.NewClient(t.Server)
}

// WithoutRetries returns a target whose client sends each command once, and stops waiting when the context of the command ends.
func (t *Target) WithoutRetries() *Target {
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

// Kind returns server, sentinel or cluster.
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
		return nil, fmt.Errorf("not a URL, which begins with redis://")
	}
	if u.Fragment != "" || strings.HasSuffix(raw, "#") {
		return nil, fmt.Errorf("a URL of Redis has no #") // go-redis would ignore what follows, such as the host after a password with a #
	}
	if u.Opaque != "" {
		return nil, fmt.Errorf("no // after %q", u.Scheme+":") // go-redis would connect to localhost
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, fmt.Errorf("port %s is not between 1 and 65535", port)
		}
	}
	if err := checkSizes(u.Query()); err != nil {
		return nil, err
	}
	t := &Target{URL: Redact(raw)}
	scheme, deployment, _ := strings.Cut(u.Scheme, "+")
	u.Scheme = scheme
	switch {
	case deployment == "cluster":
		if db := strings.Trim(u.Path, "/"); db != "" && db != "0" {
			return nil, fmt.Errorf("database %s: a Cluster has only database 0", db)
		}
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
		return nil, fmt.Errorf("unknown scheme %q", scheme+"+"+deployment)
	}
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	o.DialerRetries = DialAttempts
	t.Server = o
	return t, nil
}

// maxSizes are the upper limits of the URL options that set sizes. go-redis allocates some of them at once, and panics if
// they are negative or too large.
var maxSizes = map[string]int{
	"pool_size":                  10_000,
	"pipeline_pool_size":         10_000,
	"min_idle_conns":             10_000,
	"max_idle_conns":             10_000,
	"max_active_conns":           10_000,
	"max_concurrent_dials":       10_000,
	"pipeline_read_buffer_size":  16 << 20,
	"pipeline_write_buffer_size": 16 << 20,
}

func checkSizes(q url.Values) error {
	for name, limit := range maxSizes {
		for _, v := range q[name] {
			if n, err := strconv.Atoi(v); err == nil && (n < 0 || n > limit) { // go-redis reports what is not a number
				return fmt.Errorf("%s %d is not between 0 and %d", name, n, limit)
			}
		}
	}
	return nil
}

// Redact returns the URL without passwords. It removes all options, and everything that is not in the form of a URL, because
// both may contain passwords.
func Redact(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Scheme == "" || u.Fragment != "" || strings.Contains(u.Path, "@") {
		return "…" // a password with a special character can be in any part
	}
	if u.RawQuery != "" {
		u.RawQuery = "…"
	}
	return u.Redacted()
}
