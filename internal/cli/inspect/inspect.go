// Package inspect implements the command inspect, which serves web pages that show locks.
package inspect

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/inspector"
	"github.com/lockkeeper/lockkeeper/internal/cli/connect"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
	"github.com/spf13/cobra"
)

// defaultAddr is where the pages are served. If its port is taken and no other was asked for, any free port will do.
const defaultAddr = "127.0.0.1:7070"

// shutdownTimeout is how long requests in progress may take when the command is interrupted.
const shutdownTimeout = 500 * time.Millisecond

type options struct {
	connect.Flags
	addr        string
	allowRemote bool
	allowBreak  bool
}

// Command returns the command inspect.
func Command() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "inspect [flags]",
		Short: "Show who holds locks and who waits, in a browser",
		Long: `Show who holds locks and who waits, in a browser.

Inspect serves web pages until it is interrupted, and prints their URL: a list of the
names that are held or waited for and, for each name, the holders, the queue with the
waiters whose heartbeats have stopped, the last fence and the limits. The pages follow
the server while they are open. Redis is read at most once per second for the list and
for each name whose page is open, and not at all while no page is open.

The pages are read-only, and reachable only from this machine. With --break, leases can
be ended and waiters removed there; then, and with --allow-remote, the URL has a random
token, without which nothing is shown. Keep it as secret as a password.

Exit codes: 64 wrong usage, or the address cannot be listened on, 130 or 143 interrupted.`,
		Example: `  lockkeeper inspect
  lockkeeper inspect --redis redis://locks.internal:6379 --break
  lockkeeper inspect --addr 127.0.0.1:0 --prefix billing:`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("inspect takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return o.run(c.Context(), os.Stdout, c.Flags().Changed("addr"))
		},
	}
	o.Register(c, "Redis `URL`")
	f := c.Flags()
	f.StringVar(&o.addr, "addr", defaultAddr, "`address` and port to listen on; port 0 is any free one, and so is the default\nif its port is taken")
	f.BoolVar(&o.allowRemote, "allow-remote", false, "let --addr be reachable from other machines. The connection is not encrypted:\neverybody on the way can read the pages and the token. Prefer ssh -L")
	f.BoolVar(&o.allowBreak, "break", false, "let those who have the URL end leases and remove waiters")
	return c
}

func (o *options) run(ctx context.Context, out io.Writer, addrGiven bool) error {
	loopback, err := o.checkAddr()
	if err != nil {
		return err
	}
	conn, err := o.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	pages, err := inspector.New(conn.Keeper, o.pages(conn.URL))
	if err != nil {
		return err
	}
	defer pages.Close()
	l, err := listen(o.addr, addrGiven)
	if err != nil {
		return exit.Usagef("--addr %q: %w", o.addr, err)
	}
	g := &guard{loopback: loopback, pages: pages}
	url := "http://" + urlHost(l.Addr().(*net.TCPAddr)) + "/"
	if o.allowBreak || !loopback {
		g.token = rand.Text()
		g.cookie = fmt.Sprintf("lockkeeper_%d", l.Addr().(*net.TCPAddr).Port) // cookies are shared by the ports of a host
		url += "?token=" + g.token
	}
	return process.UntilInterrupted(ctx, func(ctx context.Context) error {
		if _, err := fmt.Fprintf(out, "%s\nPress Ctrl-C to stop.\n", url); err != nil {
			return errors.Join(err, l.Close())
		}
		return serve(ctx, l, g, pages)
	})
}

// pages returns the options of the pages.
func (o *options) pages(server string) *inspector.Options {
	if len(server) > 200 {
		server = "" // that of the client is shorter
	}
	opts := &inspector.Options{Server: server, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if o.allowBreak {
		by := connect.UserAtHost()
		opts.AllowBreak = func(*http.Request) (string, error) { return by, nil } // the guard has checked the token
	}
	return opts
}

// checkAddr reports whether the address is only reachable from this machine. If it is not, that must be allowed.
func (o *options) checkAddr() (loopback bool, err error) {
	host, _, err := net.SplitHostPort(o.addr)
	if err != nil {
		return false, exit.Usagef("--addr %q: %w; the form is host:port, as in %s", o.addr, err, defaultAddr)
	}
	loopback = isLoopback(host)
	if !loopback && !o.allowRemote {
		return false, exit.Usagef("--addr %q is reachable from other machines, whose users could read names and owners of locks, without encryption; "+
			"listen on 127.0.0.1 and use ssh -L 7070:127.0.0.1:7070, or add --allow-remote", o.addr)
	}
	return loopback, nil
}

// isLoopback reports whether a host, as in a URL, is this machine and cannot be another one.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func listen(addr string, given bool) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && !given {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	return l, err
}

// urlHost returns the host and port of a URL for an address that is listened on. If that is all addresses of the machine, the
// host is the name of the machine.
func urlHost(a *net.TCPAddr) string {
	if host, err := os.Hostname(); err == nil && a.IP.IsUnspecified() {
		return net.JoinHostPort(host, strconv.Itoa(a.Port))
	}
	return a.String()
}

// serve serves until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler, pages *inspector.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	server.RegisterOnShutdown(pages.Close)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(end); err != nil {
		_ = server.Close()
	}
	return ctx.Err()
}
