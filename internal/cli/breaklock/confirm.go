package breaklock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// selectTokens returns the lock with only the holder or waiter whose token begins with prefix; all of them if prefix is "".
func selectTokens(i *admin.LockState, prefix string) (*admin.LockState, error) {
	c := *i
	const byClock = "its permits return by the clock and cannot be ended"
	if i.Limits.ByClock() {
		if prefix != "" && slices.ContainsFunc(i.Holders, func(h lockkeeper.Holder) bool { return strings.HasPrefix(h.Token, prefix) }) &&
			!slices.ContainsFunc(i.Waiters, func(w lockkeeper.Waiter) bool { return strings.HasPrefix(w.Token, prefix) }) {
			return nil, exit.Usagef("--token %s is of permits of %s: %s", output.Name(prefix), output.Name(i.Name), byClock)
		}
		c.Holders = nil
	}
	other := func(token string) bool { return !strings.HasPrefix(token, prefix) }
	c.Holders = slices.DeleteFunc(slices.Clone(c.Holders), func(h lockkeeper.Holder) bool { return other(h.Token) })
	c.Waiters = slices.DeleteFunc(slices.Clone(i.Waiters), func(w lockkeeper.Waiter) bool { return other(w.Token) })
	exact := func(token string) bool { return token == prefix }
	switch n := len(c.Holders) + len(c.Waiters); {
	case n == 0 && prefix == "" && i.Limits.ByClock() && len(i.Holders) > 0:
		return nil, &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("nobody waits for %s, and %s", output.Name(i.Name), byClock)}
	case n == 0 && prefix == "":
		return nil, &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("nobody holds %s or waits for it", output.Name(i.Name))}
	case n == 0:
		return nil, &exit.Error{Code: exit.NotFound, Err: fmt.Errorf("no holder of %s and no waiter has a token that begins with %s", output.Name(i.Name), output.Name(prefix))}
	case n > 1 && prefix != "":
		for _, h := range c.Holders {
			if exact(h.Token) {
				c.Holders, c.Waiters = []lockkeeper.Holder{h}, nil
				return &c, nil
			}
		}
		for _, w := range c.Waiters {
			if exact(w.Token) {
				c.Holders, c.Waiters = nil, []lockkeeper.Waiter{w}
				return &c, nil
			}
		}
		return nil, exit.Usagef("--token %s is ambiguous: %d tokens of %s begin with it", output.Name(prefix), n, output.Name(i.Name))
	}
	return &c, nil
}

// onlyToken returns the token of the only holder or waiter.
func onlyToken(i *admin.LockState) string {
	if len(i.Holders) > 0 {
		return i.Holders[0].Token
	}
	return i.Waiters[0].Token
}

// confirm asks whether the holders and waiters are to be ended. Without the answer y or yes it returns an error.
func confirm(ctx context.Context, out io.Writer, in io.Reader, i *admin.LockState) error {
	fmt.Fprintf(out, "%s %s: this ends %s and removes %s.\n", i.Kind, output.Name(i.Name), output.Count(len(i.Holders), "holder"), output.Count(len(i.Waiters), "waiter"))
	fmt.Fprint(out, endedTables(i.Kind, i.Holders, i.Waiters))
	fmt.Fprint(out, "\nContinue? [y/N] ")
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return exit.Usagef("not confirmed, nothing was ended")
	case <-ctx.Done():
		fmt.Fprintln(out)
		return ctx.Err()
	}
}

// endedTables lists holders and waiters that are or were ended.
func endedTables(kind lockkeeper.Kind, holders []lockkeeper.Holder, waiters []lockkeeper.Waiter) string {
	rows := [][]string{{"", "OWNER", "MODE", "PERMITS", "TOKEN"}}
	for _, h := range holders {
		rows = append(rows, []string{"holder", output.Who(h.Owner, h.Keeper), output.Mode(kind, h.Writes), output.Permits(h.Permits), output.Name(h.Token)})
	}
	for _, w := range waiters {
		rows = append(rows, []string{"waiter", output.Who(w.Owner, w.Keeper), output.Mode(kind, w.Writes), output.Permits(w.Permits), output.Name(w.Token)})
	}
	return output.Table(rows)
}

// text says what was ended, and what may still happen.
func text(kind lockkeeper.Kind, b *admin.BreakResult) string {
	s := fmt.Sprintf("ended: %s, removed: %s\n", output.Count(len(b.Holders), "holder"), output.Count(len(b.Waiters), "waiter"))
	s += endedTables(kind, b.Holders, b.Waiters)
	all := len(b.Holders) + len(b.Waiters)
	s += fmt.Sprintf("\nThe message reached the processes of %d of %d.", b.Notified, all)
	switch {
	case len(b.Holders) == 0:
	case b.Notified >= all:
		s += " A holder works on until it has read it.\n"
		return s
	default:
		s += " The others work on until their next renewal, a third of their TTL later at most, or until they resume."
	}
	return s + "\n"
}

// result is the output of --json. The help of the command documents the field names.
type result struct {
	output.Lock
	Holders  []output.Holder `json:"holders"`
	Waiters  []output.Waiter `json:"waiters"`
	Notified int             `json:"notified"`
}

func newResult(i *admin.LockState, b *admin.BreakResult) result {
	return result{output.NewLock(i.Kind, i.Name), output.NewHolders(i.Kind, b.Holders), output.NewWaiters(i.Kind, b.Waiters), b.Notified}
}
