// Package connect has what all commands that use a deployment share: the flags --redis and --prefix, and a keeper that is
// closed in bounded time.
package connect

import (
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/redisurl"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/redis/go-redis/v9"
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

// Target parses the URL of a command that uses one deployment.
func (f *Flags) Target() (*redisurl.Target, error) {
	var raw string
	switch len(f.URLs) {
	case 0:
	case 1:
		raw = f.URLs[0]
	default:
		return nil, exit.Usagef("--redis is given %d times: this command uses one deployment at a time", len(f.URLs))
	}
	return f.Credentials.Parse(raw)
}

// Connection is a keeper of one deployment, with its client.
type Connection struct {
	Keeper *lockkeeper.Keeper
	Client redis.UniversalClient
	URL    string // without passwords
}

// Open returns a connection to the deployment of the flags. It does no I/O. A command of the connection ends with its context,
// even if the server hangs.
func (f *Flags) Open() (*Connection, error) {
	t, err := f.Target()
	if err != nil {
		return nil, err
	}
	rdb := t.WithoutRetries().Client() // the keeper retries by itself
	k, err := newKeeper(rdb, f.Prefix, f.LogLevel)
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	return &Connection{k, rdb, t.URL}, nil
}

// Close closes the keeper and the client, in bounded time.
func (c *Connection) Close() {
	CloseKeeper(c.Keeper)
	_ = c.Client.Close()
}

// NewKeeper returns a keeper of the client that logs to standard error.
func NewKeeper(rdb redis.UniversalClient, prefix string) (*lockkeeper.Keeper, error) {
	return newKeeper(rdb, prefix, slog.LevelInfo)
}

func newKeeper(rdb redis.UniversalClient, prefix string, level slog.Level) (*lockkeeper.Keeper, error) {
	return lockkeeper.New(rdb, &lockkeeper.Options{
		Prefix: prefix, NoPrefix: prefix == "", Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})),
	})
}

// CloseKeeper closes the keeper. If that takes longer than closeTimeout, it leaves it to the end of the process: go-redis does
// not interrupt commands that wait for a server that hangs.
func CloseKeeper(k *lockkeeper.Keeper) {
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
