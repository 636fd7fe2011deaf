// Package demo implements the command demo, in which processes contend for locks on an embedded server.
package demo

import (
	"context"
	"crypto/fips140"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/terminal"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
)

// Exit codes of the demo.
const (
	exitViolated    = 1
	exitIncomplete  = 2
	exitInterrupted = 130 // as of a program that SIGINT ended
)

const heartbeatTimeout = 450 * time.Millisecond

// canFreeze reports whether this system can freeze processes. A variable for tests.
var canFreeze = runtime.GOOS != "windows"

// Command returns the command demo.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Watch processes contend for locks on an embedded server",
		Long: `Watch processes contend for locks on a server that is embedded in the demo. Nothing
needs to be installed. On an idle machine it takes less than ten seconds. It draws one
lane for each process: on a terminal while an act is played, otherwise at its end.

1. A fair lock. Five processes take turns. One is killed while it holds the lock, and
   one is frozen while it waits; the others go on in order.
2. The fence. A process is frozen while it holds the lock, and writes late, when another
   one has it. A store that checks fences refuses that; one that does not accepts it.
3. A read-write lock. Three processes read as fast as they can; the readers of each share
   a lease for 20 ms (Linger). A fourth one writes now and then.
4. A rate limit. Four processes call an API, so many times in any window of time and so
   many at once. One is killed during a call.

Fences are numbered in the order of their grants: +1, +2 and so on. NO_COLOR turns colors
off. On Windows, which cannot freeze processes, nothing is frozen and act 2 is omitted.

Exit codes: 1 a guarantee was violated; 2 the machine was too slow for an act, so that
nothing can be said; 130 interrupted.`,
		Example: "  lockkeeper demo",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usagef("demo takes no arguments, got %q", args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			_, err := Play(ctx, os.Stdout)
			return err
		},
	}
}

// Play performs all acts and shows them on out, until ctx ends. It returns what happened in each, also with an error.
func Play(ctx context.Context, out *os.File) (played []*timeline.Act, err error) {
	m := miniredis.NewMiniRedis()
	fips140.WithoutEnforcement(func() { err = m.Start() }) // because the server computes SHA-1, in goroutines that begin here
	if err != nil {
		return nil, err
	}
	defer m.Close()
	m.ClockTTL(true)
	rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
	defer func() { _ = rdb.Close() }()
	k, err := newKeeper(rdb)
	if err != nil {
		return nil, err
	}
	defer func() { _ = k.Close() }()
	d := &display{out: out, live: terminal.Is(out), color: terminal.Is(out) && os.Getenv("NO_COLOR") == ""}
	for _, p := range acts() {
		failed := p.run(ctx, m.Addr(), k, d)
		d.end(&p.Act)
		played = append(played, &p.Act)
		switch {
		case ctx.Err() != nil:
			return played, &exit.Error{Code: exitInterrupted}
		case p.Outcome == timeline.Incomplete:
			err = failed
		case failed != nil:
			return played, failed
		}
	}
	return played, err
}

// newKeeper returns the keeper that each process of the demo uses.
func newKeeper(rdb *redis.Client) (*lockkeeper.Keeper, error) {
	return lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatTimeout: heartbeatTimeout})
}

// display shows the acts one below the other: on a terminal each is drawn in place while it is played, elsewhere once, at its end.
type display struct {
	out         *os.File
	live, color bool
	drawn       int // lines of the drawing, above the cursor
}

// draw replaces the drawing of an act, if there is a terminal with room for it.
func (d *display) draw(a *timeline.Act, now time.Duration) {
	if d.live {
		// The last column stays empty, because terminals differ in what follows a character there.
		if columns, rows := terminal.Size(d.out); columns > timeline.Width && rows > len(a.Frame(now)) {
			d.print(a.Frame(now))
		}
	}
}

// end draws an act for the last time. The next one is drawn below it.
func (d *display) end(a *timeline.Act) {
	d.print(append(a.Frame(a.End), nil))
	d.drawn = 0
}

// print prints all lines at once, so that the terminal never shows half of them.
func (d *display) print(lines []timeline.Line) {
	var b strings.Builder
	if d.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", d.drawn)
	}
	for _, l := range lines {
		b.WriteString(l.Text(d.color) + "\n")
	}
	d.drawn = len(lines)
	_, _ = d.out.WriteString(b.String())
}
