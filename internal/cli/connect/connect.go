// Package connect has what all commands that use a deployment share: the flags --redis and --prefix, and a keeper that is
// closed in bounded time.
package connect

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/spf13/cobra"
)

// OneNode says what a listing at a node of a Cluster has.
const OneNode = "this is a node of a cluster, and only its locks are listed: use a redis+cluster:// URL"

// WarnOneNode prints OneNode to standard error.
func WarnOneNode(p *terminal.Progress) {
	p.Clear()
	fmt.Fprintln(os.Stderr, "lockkeeper:", OneNode)
}

// closeTimeout limits how long a command waits for a server that hangs when it closes its keeper.
const closeTimeout = time.Second

// Flags are --redis, --prefix, and those of credentials.
type Flags struct {
	URLs        []string
	Prefix      string
	Credentials redisurl.Credentials
	LogLevel    slog.Level // of the keeper's log to standard error
}

// Register adds the flags to a command. What begins the help text of --redis.
func (f *Flags) Register(c *cobra.Command, what string) {
	c.Flags().StringArrayVar(&f.URLs, "redis", nil, redisurl.Usage(what))
	c.Flags().StringVar(&f.Prefix, "prefix", protocol.DefaultPrefix, "`prefix` of the keys in Redis; if it is empty, a mutex's key is its name")
	f.Credentials.Register(c)
}

// Target parses the URL of a command that uses one deployment. It is no method, for the same reason as [redisurl.Parse].
func Target(f *Flags) (*redisurl.Target, error) {
	if len(f.URLs) > 1 {
		return nil, exit.Usagef("--redis is given %d times: this command uses one deployment at a time", len(f.URLs))
	}
	urls, err := f.urls()
	if err != nil {
		return nil, err
	}
	return redisurl.Parse(urls[0], f.Credentials)
}

// urls returns those of --redis, or an empty one, which stands for the default. None that is given may be empty, or a command whose variable is
// not set would use the default.
func (f *Flags) urls() ([]string, error) {
	if len(f.URLs) == 0 {
		return []string{""}, nil
	}
	if slices.Contains(f.URLs, "") {
		return nil, exit.Usagef("--redis is empty; leave it out for $REDIS_URL, or for %s", redisurl.Default)
	}
	return f.URLs, nil
}

// Connection is a keeper of one deployment, with its client.
type Connection struct {
	Keeper *lockkeeper.Keeper
	URL    string // without passwords
	client io.Closer
}

// Open returns a connection to the deployment of the flags. It does no I/O. A command of the connection ends with its context,
// even if the server hangs.
func (f *Flags) Open() (*Connection, error) {
	t, err := Target(f)
	if err != nil {
		return nil, err
	}
	return open(t.WithoutRetries(), f.options()) // the keeper retries by itself
}

func (f *Flags) options() *lockkeeper.Options {
	log := slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: f.LogLevel})
	return &lockkeeper.Options{Prefix: f.Prefix, Logger: slog.New(log)}
}

// OpenAll returns a connection to each of the URLs, or to the default, for a command that waits and holds. It does no I/O.
func (f *Flags) OpenAll() ([]*Connection, error) {
	urls, err := f.urls()
	if err != nil {
		return nil, err
	}
	var all []*Connection
	for _, raw := range urls {
		c, err := f.openURL(raw)
		if err != nil {
			for _, c := range all {
				c.Close()
			}
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func (f *Flags) openURL(raw string) (*Connection, error) {
	t, err := redisurl.Parse(raw, f.Credentials)
	if err != nil {
		return nil, err
	}
	return open(t, f.options())
}

// OpenToComplete returns a connection for the completion of an argument of the command, which logs nothing.
func OpenToComplete(c *cobra.Command) (*Connection, error) {
	var raw string
	if urls, _ := c.Flags().GetStringArray("redis"); len(urls) > 0 {
		raw = urls[0]
	}
	t, err := redisurl.Parse(raw, redisurl.Given(c))
	if err != nil {
		return nil, err
	}
	prefix, _ := c.Flags().GetString("prefix")
	return open(t.WithoutRetries(), &lockkeeper.Options{Prefix: prefix, NoOwner: true, Logger: slog.New(slog.DiscardHandler)})
}

func open(t *redisurl.Target, opts *lockkeeper.Options) (*Connection, error) {
	rdb := t.Client()
	opts.NoPrefix = opts.Prefix == ""
	k, err := lockkeeper.New(rdb, opts)
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	return &Connection{k, t.URL, rdb}, nil
}

// Close closes the keeper and the client, in bounded time.
func (c *Connection) Close() {
	closeKeeper(c.Keeper)
	_ = c.client.Close()
}

// closeKeeper closes the keeper. If that takes longer than closeTimeout, it leaves it to the end of the process: go-redis does
// not interrupt commands that wait for a server that hangs.
func closeKeeper(k *lockkeeper.Keeper) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = k.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}
