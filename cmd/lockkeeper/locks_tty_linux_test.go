package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"golang.org/x/sys/unix"
)

// reads returns a function that returns all that the command has written to the terminal so far.
func (x *terminal) reads() func() string {
	var mu sync.Mutex
	var all strings.Builder
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := x.keys.Read(b)
			mu.Lock()
			all.Write(b[:n])
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return all.String()
	}
}

// resizes sets the size of the window, of which the kernel informs the command by SIGWINCH.
func (x *terminal) resizes(columns, rows uint16) {
	x.Helper()
	must.OK(x, unix.IoctlSetWinsize(int(x.keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}))
}

// settings returns the settings of the terminal.
func (x *terminal) settings() unix.Termios {
	x.Helper()
	t := must.Get(unix.IoctlGetTermios(int(x.keys.Fd()), unix.TCGETS))(x)
	return *t
}

// types sends keys to the command.
func (x *terminal) types(keys string) {
	x.Helper()
	must.Get(io.WriteString(x.keys, keys))(x)
}

// drawn returns the lines of the last frame of top.
func drawn(screen string) []string {
	frames := strings.Split(screen, "\x1b[H")
	last, _, complete := strings.Cut(frames[len(frames)-1], "\x1b[J")
	if !complete && len(frames) > 1 {
		last, _, _ = strings.Cut(frames[len(frames)-2], "\x1b[J")
	}
	return strings.Split(strings.NewReplacer("\x1b[K", "", "\r", "").Replace(last), "\n")
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
			before := newTerminal(t).settings()
			c := command(t, "top", "--redis", s.url)
			x, screen := onTerminal(t, c)
			defer func() {
				if t.Failed() {
					t.Logf("%q", screen())
				}
			}()
			eventually(t, "it draws all locks", func() bool {
				l := drawn(screen())
				return len(l) == 10 && strings.HasPrefix(l[0], s.url) && strings.HasSuffix(l[1], ": 5 locks, 6 holders, 5 waiters") && strings.HasSuffix(l[9], "q quits")
			})
			first := drawn(screen())[1]
			eventually(t, "it draws again", func() bool { l := drawn(screen()); return len(l) == 10 && l[1] != first })
			x.resizes(30, 7)
			eventually(t, "it fits a smaller window", func() bool { l := drawn(screen()); return len(l) == 7 && l[6] == "and 3 more; q quits" })
			for _, line := range drawn(screen()) {
				if n := len([]rune(line)); n > 30 {
					t.Errorf("%d columns: %q", n, line)
				}
			}
			quit.end(x, c)
			c.waits(quit.code)
			eventually(t, "it restores the screen", func() bool { return strings.HasSuffix(screen(), "\x1b[?25h\x1b[?1049l") })
			if after := x.settings(); after != before {
				t.Errorf("the settings of the terminal are %+v, were %+v", after, before)
			}
			if n := strings.Count(screen(), "\x1b[?1049h"); n != 1 {
				t.Errorf("the alternate screen was entered %d times", n)
			}
		})
	}
}

func TestTopShowsOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := command(t, "top", "--redis", "redis://"+server.Addr)
	x, screen := onTerminal(t, c)
	eventually(t, "it draws", func() bool { return strings.Contains(screen(), ": 0 locks, 0 holders") })
	server.Kill()
	eventually(t, "it says that Redis does not answer", func() bool { l := drawn(screen()); return len(l) > 1 && strings.HasPrefix(l[1], "no answer since ") })
	x.types("q")
	c.waits(0)
}

// On a terminal a list that is empty is explained, and doctor shows what it does while a server does not answer.
func TestHintsAndProgressOnATerminal(t *testing.T) {
	t.Parallel()
	_, url := server(t)
	c := command(t, "ls", "--redis", url)
	_, screen := onTerminal(t, c)
	c.waits(0)
	eventually(t, "a hint", func() bool {
		return strings.Contains(screen(), `no lock under the prefix "lock:" is held or waited for`)
	})

	frozen := redistest.Start(t)
	frozen.Freeze()
	x := newTerminal(t)
	screen = x.reads()
	c = command(t, "doctor", "--redis", "redis://"+frozen.Addr, "--timeout", "4s")
	c.Stderr = x.screen
	x.runs(c)
	c.waits(69)
	want := fmt.Sprintf("\rconnecting to redis://%s\x1b[K", frozen.Addr)
	eventually(t, "the progress is removed", func() bool { return strings.HasSuffix(screen(), "\r\x1b[K") })
	if got := screen(); !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q first", got, want)
	}
}

func TestLsShowsProgressOnATerminal(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	do(t, server, "debug", "populate", 600_000, "ballast")
	x := newTerminal(t)
	screen := x.reads()
	c := command(t, "ls", "--redis", "redis://"+server.Addr)
	c.Stderr = x.screen
	start := time.Now()
	x.runs(c)
	c.waits(0)
	if took := time.Since(start); took > 1500*time.Millisecond && !strings.Contains(screen(), " of about 600000 keys\x1b[K") {
		t.Errorf("it took %v: %q", took, screen())
	}
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
		{"\n", 64, "not confirmed"},
		{"\x03", 130, ""},
		{"y\n", 0, "ended: 1 holder, removed: 1 waiter"},
	} {
		b := command(t, "break", "--redis", s.url, "encoders", "--all", "--reason", "test")
		x, screen := onTerminal(t, b)
		eventually(t, "it asks", func() bool { return strings.HasSuffix(screen(), "Continue? [y/N] ") })
		if !strings.Contains(screen(), "semaphore encoders: this ends 1 holder and removes 1 waiter.\r\n") || !strings.Contains(screen(), "holder  web-1:10 report  2        "+s.leases["encoder"].Token()) {
			t.Errorf("%q", screen())
		}
		must.Report(t, s.leases["encoder"].Err())
		x.types(c.answer)
		b.waits(c.code)
		eventually(t, "it says "+c.says, func() bool { return strings.Contains(screen(), c.says) })
	}
	<-s.leases["encoder"].Done()
}
