package main

import (
	"errors"
	"os/user"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// broken checks that the error of a lease or waiting call says who broke it and why.
func broken(t *testing.T, err, kind error, reason, by string) {
	t.Helper()
	var b *lockkeeper.BrokenError
	check.That(t, errors.Is(err, kind) && errors.As(err, &b) && b.Reason == reason && strings.HasPrefix(b.By, by), "%v: %+v", err, b)
}

func TestBreak(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	brk := func(args ...string) *testCommand {
		return command(t, append([]string{"break", "--redis", s.url}, args...)...)
	}

	brk("nothing", "--all", "--yes", "--reason", "x").ends(exit.NotFound, "no lock nothing")
	brk("jobs:report", "--token", "none", "--yes", "--reason", "x").ends(exit.NotFound, "begins with none")

	second := s.show(t, "jobs:report").Waiters[1].Token
	c := brk("jobs:report", "--token", second[:20], "--yes", "--reason", "too late", "--by", "ops").ends(0)
	c.prints("ended: 0 holders, removed: 1 waiter\n", "waiter  web-3:30 report  "+second+"\n", "processes of 1 of 1.")
	check.That(t, c.err.Len() == 0, "a log line repeats what is printed: %s", c.err.String())
	broken(t, must.Receive(t, s.ended["report-3"], 10*time.Second, "the waiter is told"), lockkeeper.ErrNotAcquired, "too late", "ops")
	i := s.show(t, "jobs:report")
	check.That(t, len(i.Holders) == 1 && len(i.Waiters) == 1, "%+v", i)

	held := s.leases["report"]
	c = brk("jobs:report", "--token", held.Token(), "--yes", "--reason", "it hangs", "--json").ends(0)
	<-held.Done()
	broken(t, held.Err(), lockkeeper.ErrLost, "it hangs", must.Get(user.Current())(t).Username+"@")
	must.Report(t, must.Receive(t, s.ended["report-2"], 10*time.Second, "the next waiter gets the lock"))
	var r struct {
		Kind, Name string
		Holders    []struct{ Token string }
		Waiters    []any
		Notified   int
	}
	c.decode(&r)
	if r.Kind != "fair" || r.Name != "jobs:report" || len(r.Holders) != 1 || r.Holders[0].Token != held.Token() || r.Waiters == nil || r.Notified != 1 {
		t.Errorf("%s", c.out.String())
	}

	brk("catalogue", "--all", "--yes", "--reason", "restart").ends(0).prints("ended: 2 holders, removed: 2 waiters\n")
	<-s.leases["reader-2"].Done()
	broken(t, s.leases["reader-2"].Err(), lockkeeper.ErrLost, "restart", "")
	broken(t, must.Receive(t, s.ended["reader-3"], 10*time.Second, "the reader is told"), lockkeeper.ErrNotAcquired, "restart", "")
	command(t, "wait", "--redis", s.url, "--timeout", "0", "--for", "idle", "catalogue").ends(0)
	brk("encoders", "--token", s.leases["encoder"].Token()[:8], "--yes", "--reason", "x").
		ends(exit.Usage, "is ambiguous: 2 tokens of encoders begin with it")
	brk("odd\x1b[31m name", "--all", "--yes", "--reason", "\x1b[31m").ends(exit.Usage, "eason")
}
