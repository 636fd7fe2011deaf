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
)

var lock = &admin.LockState{
	Kind: "fair", Name: "x",
	Holders: []lockkeeper.Holder{{Token: "aa1:1", Owner: "web-1"}},
	Waiters: []lockkeeper.Waiter{{Token: "aa2:1", Owner: "web-2"}, {Token: "aa2:1.", Owner: "web-3"}, {Token: "b", Owner: "web-4"}},
}

func TestTokensAreSelectedByTheirBeginning(t *testing.T) {
	for prefix, want := range map[string]struct {
		tokens string
		code   int
	}{
		"":      {"aa1:1 aa2:1 aa2:1. b", 0},
		"aa1":   {"aa1:1", 0},
		"b":     {"b", 0},
		"aa2:1": {"aa2:1", 0}, // a whole token, although another one begins with it
		"aa2":   {"", exit.Usage},
		"a":     {"", exit.Usage},
		"c":     {"", exit.NotFound},
	} {
		found, err := selectTokens(lock, prefix)
		var own *exit.Error
		if want.code != 0 {
			if !errors.As(err, &own) || own.Code != want.code {
				t.Errorf("%q: %+v, %v", prefix, found, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", prefix, err)
			continue
		}
		var tokens []string
		for _, h := range found.Holders {
			tokens = append(tokens, h.Token)
		}
		for _, w := range found.Waiters {
			tokens = append(tokens, w.Token)
		}
		if got := strings.Join(tokens, " "); got != want.tokens {
			t.Errorf("%q: %s, want %s", prefix, got, want.tokens)
		}
		if want.tokens != "" && prefix != "" && onlyToken(found) != want.tokens {
			t.Errorf("%q: %s", prefix, onlyToken(found))
		}
	}
	if _, err := selectTokens(&admin.LockState{Fence: 1}, ""); err == nil {
		t.Error("there is nothing to end")
	}
	if len(lock.Holders) != 1 || len(lock.Waiters) != 3 {
		t.Error("the lock was changed")
	}
}

func TestConfirmation(t *testing.T) {
	for answer, ok := range map[string]bool{"y\n": true, "Yes\n": true, " y \r\n": true, "y": true, "": false, "\n": false, "n\n": false, "yeah\n": false} {
		var out strings.Builder
		err := confirm(t.Context(), &out, strings.NewReader(answer), lock)
		if (err == nil) != ok {
			t.Errorf("%q: %v", answer, err)
		}
		for _, text := range []string{"fair x: this ends 1 holder and removes 3 waiters.\n", "holder  web-1  aa1:1\n", "waiter  web-4  b\n", "[y/N]"} {
			if !strings.Contains(out.String(), text) {
				t.Errorf("no %q in\n%s", text, out.String())
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, w := io.Pipe() // never answers
	defer func() { _ = w.Close() }()
	if err := confirm(ctx, io.Discard, r, lock); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
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
		if got := text("fair", &c.broken); !strings.Contains(got, c.says) {
			t.Errorf("no %q in\n%s", c.says, got)
		}
	}
}

// Permits that return by the clock are not held: there is nothing to end, and --all ends waiters only.
func TestPermitsThatReturnByTheClockAreNotSelected(t *testing.T) {
	i := &admin.LockState{
		Kind: "ratelimit", Name: "api", Limits: &admin.Limits{Limit: 9, Used: 1, Window: time.Minute},
		Holders: []lockkeeper.Holder{{Token: "aa:1:300000.6000c1"}},
	}
	for prefix, code := range map[string]int{"": exit.NotFound, "aa": exit.Usage, "zz": exit.NotFound} {
		_, err := selectTokens(i, prefix)
		var own *exit.Error
		if !errors.As(err, &own) || own.Code != code || prefix != "zz" && !strings.Contains(err.Error(), "return by the clock") {
			t.Errorf("%q: %v", prefix, err)
		}
	}
	i.Waiters = []lockkeeper.Waiter{{Token: "b"}}
	if found, err := selectTokens(i, ""); err != nil || len(found.Holders) != 0 || len(found.Waiters) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}
