package main

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"golang.org/x/sys/unix"
)

// settings returns the settings of the terminal.
func (x *terminal) settings() unix.Termios {
	x.Helper()
	return *must.Get(unix.IoctlGetTermios(int(x.keys.Fd()), unix.TCGETS))(x)
}

// draws waits until the lines of the last frame of top are as they should be.
func (x *terminal) draws(what string, is func(lines []string) bool) {
	x.Helper()
	eventually(x.T, what, func() bool {
		frames := strings.Split(x.written.String(), "\x1b[H")
		last, _, complete := strings.Cut(frames[len(frames)-1], "\x1b[J")
		if !complete && len(frames) > 1 {
			last, _, _ = strings.Cut(frames[len(frames)-2], "\x1b[J")
		}
		return is(strings.Split(strings.NewReplacer("\x1b[K", "", "\r", "").Replace(last), "\n"))
	})
}

func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for how, quit := range map[string]struct {
		end  func(x *terminal, c *testCommand)
		code int
	}{
		"q":         {func(x *terminal, _ *testCommand) { x.types("xq") }, 0},
		"control-c": {func(x *terminal, _ *testCommand) { x.types("\x03") }, 130},
		"SIGTERM":   {func(_ *terminal, c *testCommand) { c.signals(syscall.SIGTERM) }, 143},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			before := newTerminal(t, 100, 30).settings()
			c := command(t, "top", "--redis", s.url)
			x := onTerminal(t, c)
			var first string
			x.draws("all locks", func(l []string) bool {
				first = l[min(1, len(l)-1)]
				return len(l) == 10 && strings.HasPrefix(l[0], s.url) && strings.HasSuffix(l[1], ": 5 locks, 6 holders, 5 waiters") && strings.HasSuffix(l[9], "q quits")
			})
			x.draws("again", func(l []string) bool { return len(l) == 10 && l[1] != first })
			x.resizes(30, 7)
			x.draws("what fits a smaller window", func(l []string) bool {
				for _, line := range l {
					if len([]rune(line)) > 30 {
						return false
					}
				}
				return len(l) == 7 && l[6] == "and 3 more; q quits"
			})
			quit.end(x, c)
			c.waits(quit.code)
			eventually(t, "it restores the screen", func() bool { return strings.HasSuffix(x.written.String(), "\x1b[?25h\x1b[?1049l") })
			after := x.settings()
			check.That(t, after == before, "the settings of the terminal are %+v, were %+v", after, before)
			n := strings.Count(x.written.String(), "\x1b[?1049h")
			check.That(t, n == 1, "the alternate screen was entered %d times", n)
		})
	}
}

// TestCtrlZStopsTop: the shell gets its terminal as it was, and top goes on when it is continued.
func TestCtrlZStopsTop(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	c := command(t, "top", "--redis", url)
	c.Path, c.Args = "/bin/sh", append([]string{"sh", "-mc", `"$0" "$@"; echo stopped; read line; fg; echo over`, c.Path}, c.Args[1:]...)
	x := onTerminal(t, c)
	before := newTerminal(t, 100, 30).settings()
	x.shows("q quits")
	x.types("\x1a")
	x.shows("stopped\r\n")
	check.That(t, strings.HasSuffix(strings.TrimSpace(x.written.String()), "stopped") && strings.Contains(x.written.String(), "\x1b[?25h\x1b[?1049l"),
		"the screen is not left: %q", &x.written)
	after := x.settings()
	check.That(t, after == before, "the settings of the terminal are %+v, were %+v", after, before)
	x.types("\n")
	eventually(t, "it draws again", func() bool {
		_, text, _ := strings.Cut(x.written.String(), "stopped")
		return strings.Contains(text, "\x1b[?1049h") && strings.Contains(text, "q quits")
	})
	x.types("q")
	x.shows("over")
	c.waits(0)
}

// TestCtrlZWithoutAShell: in a container nobody could continue top, which goes on.
func TestCtrlZWithoutAShell(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	c := command(t, "top", "--redis", url)
	x := onTerminal(t, c)
	x.shows("q quits")
	x.types("\x1aq")
	c.waits(0)
}

func TestTopShowsOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := command(t, "top", "--redis", "redis://"+server.Addr)
	x := onTerminal(t, c)
	x.shows(": 0 locks, 0 holders")
	server.Kill()
	x.draws("that Redis does not answer", func(l []string) bool {
		return len(l) == 5 && strings.HasPrefix(l[1], "no answer since ") && l[4] == "q quits"
	})
	x.types("q")
	c.waits(0)
}

// On a terminal a list that is empty is explained, and commands show what they do.
func TestHintsAndProgressOnATerminal(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := command(t, "ls", "--redis", "redis://"+server.Addr)
	x := onTerminal(t, c)
	c.waits(0)
	x.shows(`no lock under the prefix "lock:" is held or waited for`)

	for i := range 6 { // one command would take too long
		do(t, server, "debug", "populate", 100_000, strconv.Itoa(i))
	}
	c = command(t, "ls", "--redis", "redis://"+server.Addr)
	start := time.Now()
	x = onTerminal(t, c)
	c.waits(0)
	if took := time.Since(start); took > 1500*time.Millisecond {
		x.shows(" of about 600000 keys\x1b[K")
	}

	server.Freeze()
	c = command(t, "doctor", "--redis", "redis://"+server.Addr, "--timeout", "4s")
	x = newTerminal(t, 0, 0) // which does not say its size
	c.Stderr = x.screen
	x.runs(c)
	c.waits(69)
	eventually(t, "the progress is removed", func() bool { return strings.HasSuffix(x.written.String(), "\r\x1b[K") })
	want := "\rconnecting to redis://" + server.Addr + "\x1b[K"
	check.That(t, strings.HasPrefix(x.written.String(), want), "%q, want %q first", x.written.String(), want)
}

func TestBreakAsksOnATerminal(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for _, c := range []struct {
		answer string
		code   int
		says   string
	}{
		{"n\n", 64, "not confirmed, nothing was ended"},
		{"\x03", 130, ""},
		{"y\n", 0, "ended: 1 holder, removed: 1 waiter"},
	} {
		b := command(t, "break", "--redis", s.url, "encoders", "--all", "--reason", "test")
		x := onTerminal(t, b)
		x.shows("Continue? [y/N] ")
		x.shows("semaphore encoders: this ends 1 holder and removes 1 waiter.\r\n")
		x.shows("holder  web-1:10 report  2        " + s.leases["encoder"].Token())
		must.Report(t, s.leases["encoder"].Err())
		x.types(c.answer)
		b.waits(c.code)
		x.shows(c.says)
	}
	<-s.leases["encoder"].Done()
}
