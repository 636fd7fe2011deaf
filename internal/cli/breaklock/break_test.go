package breaklock

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

var lock = &admin.LockState{
	Kind: "fair", Name: "x",
	Holders: []lockkeeper.Holder{{Token: "aa1:1", Owner: "web-1"}},
	Waiters: []lockkeeper.Waiter{{Token: "aa2:1", Owner: "web-2"}, {Token: "aa2:1.", Owner: "web-3"}, {Token: "b", Owner: "web-4"}},
}

// byClock has permits that return by the clock: they are not held, there is nothing to end, and --all ends waiters only.
var byClock = &admin.LockState{
	Kind: "ratelimit", Name: "api", Limits: &admin.Limits{Limit: 9, Used: 1, Window: time.Minute},
	Holders: []lockkeeper.Holder{{Token: "aa:1:300000.6000c1"}},
	Waiters: []lockkeeper.Waiter{{Token: "b"}},
}

func TestTokensAreSelectedByTheirBeginning(t *testing.T) {
	unused := &admin.LockState{Fence: 1}
	permits := *byClock
	permits.Waiters = nil
	for _, c := range []struct {
		lock           *admin.LockState
		prefix, tokens string
		code           int
		says           string
	}{
		{lock, "", "aa1:1 aa2:1 aa2:1. b ", 0, ""},
		{lock, "aa1", "aa1:1 ", 0, ""},
		{lock, "aa2:1", "aa2:1 ", 0, ""}, // a whole token, although another one begins with it
		{lock, "aa2", "", exit.Usage, "is ambiguous: 2 tokens"},
		{lock, "a", "", exit.Usage, "is ambiguous: 3 tokens"},
		{lock, "c", "", exit.NotFound, "begins with c"},
		{unused, "", "", exit.NotFound, "nobody holds"},
		{byClock, "", "b ", 0, ""},
		{&permits, "", "", exit.NotFound, "return by the clock"},
		{byClock, "aa", "", exit.Usage, "return by the clock"},
		{byClock, "zz", "", exit.NotFound, "begins with zz"},
	} {
		found, err := selectTokens(c.lock, c.prefix)
		var own *exit.Error
		if c.code != 0 {
			check.That(t, errors.As(err, &own) && own.Code == c.code && strings.Contains(err.Error(), c.says),
				"%q: %+v, %v", c.prefix, found, err)
			continue
		}
		must.OK(t, err)
		var tokens string
		for _, h := range found.Holders {
			tokens += h.Token + " "
		}
		for _, w := range found.Waiters {
			tokens += w.Token + " "
		}
		if tokens != c.tokens || c.prefix != "" && onlyToken(found)+" " != c.tokens {
			t.Errorf("%q: %s, want %s", c.prefix, tokens, c.tokens)
		}
	}
	check.That(t, len(lock.Holders) == 1 && len(lock.Waiters) == 3, "the lock was changed")
}

func TestConfirmation(t *testing.T) {
	for answer, ok := range map[string]bool{"y\n": true, "Yes\n": true, " y \r\n": true, "y": true, "": false, "\n": false, "n\n": false, "yeah\n": false} {
		var out strings.Builder
		err := confirm(t.Context(), &out, strings.NewReader(answer), lock)
		check.That(t, (err == nil) == ok, "%q: %v", answer, err)
		for _, text := range []string{"fair x: this ends 1 holder and removes 3 waiters.\n", "holder  web-1  aa1:1\n", "waiter  web-4  b\n", "[y/N]"} {
			check.That(t, strings.Contains(out.String(), text), "no %q in\n%s", text, out.String())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, w := io.Pipe() // never answers
	defer func() { _ = w.Close() }()
	check.Is(t, confirm(ctx, io.Discard, r, lock), context.Canceled, "the error")
}

func TestTextSaysWhatMayStillHappen(t *testing.T) {
	for _, c := range []struct {
		broken admin.BreakResult
		says   string
	}{
		{admin.BreakResult{Holders: lock.Holders, Notified: 1}, "reached the processes of 1 of 1. A holder works on until it has read it.\n"},
		{admin.BreakResult{Holders: lock.Holders, Waiters: lock.Waiters, Notified: 2}, "2 of 4. The others work on until their next renewal"},
		{admin.BreakResult{Waiters: lock.Waiters, Notified: 3}, "3 of 3.\n"},
	} {
		got := text("fair", &c.broken)
		check.That(t, strings.Contains(got, c.says), "no %q in\n%s", c.says, got)
	}
}
