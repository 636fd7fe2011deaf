package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
)

// noticeAfter are the waiting times after which run prints a notice; it repeats the last one.
var noticeAfter = []time.Duration{time.Second, 10 * time.Second, time.Minute, 5 * time.Minute}

// queryTimeout limits the query for the holders.
const queryTimeout = time.Second

// notices prints to standard error who holds the lock while run waits for it. It is used by one goroutine, which calls query
// when due fires, and print with what text then receives.
type notices struct {
	name    string
	holders firstHolder
	start   time.Time
	printed int
	timer   *time.Timer
	due     <-chan time.Time
	text    chan string
}

func newNotices(name string, holders firstHolder) *notices {
	n := &notices{name: name, holders: holders, start: time.Now(), text: make(chan string, 1)}
	n.timer = time.NewTimer(noticeAfter[0])
	n.due = n.timer.C
	return n
}

// query asks for the holders in the background.
func (n *notices) query(ctx context.Context) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		list, total, err := n.holders(ctx)
		n.text <- notice(n.name, list, total, err, time.Since(n.start))
	}()
}

// print prints a notice, and sets the timer for the next one.
func (n *notices) print(text string) {
	fmt.Fprintln(os.Stderr, "lockkeeper:", text)
	n.printed++
	last := len(noticeAfter) - 1
	at := noticeAfter[min(n.printed, last)] + time.Duration(max(n.printed-last, 0))*noticeAfter[last]
	n.timer.Reset(max(at-time.Since(n.start), time.Second))
}

func (n *notices) stop() { n.timer.Stop() }

// notice is the text of a notice about so many holders, of which list has the first, or about the error of the query.
func notice(name string, list []lockkeeper.Holder, total int, err error, waited time.Duration) string {
	d := waited.Round(time.Second)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("waiting for %q for %v: no answer from Redis", name, d)
	case err != nil:
		return fmt.Sprintf("waiting for %q for %v: no answer from Redis: %s", name, d, exit.Message(err))
	case len(list) == 0:
		return fmt.Sprintf("waiting for %q for %v: it is free at the moment", name, d)
	}
	h := list[0]
	holder := "keeper " + output.Name(h.Keeper)
	if h.Keeper == "" {
		holder = "token " + output.Name(h.Token)
	}
	if h.Fence != 0 {
		holder += fmt.Sprintf(" with fence %d", h.Fence)
	}
	if more := total - 1; more > 0 {
		return fmt.Sprintf("waiting for %q for %v: held by %s and %d more", name, d, holder, more)
	}
	return fmt.Sprintf("waiting for %q for %v: held by %s; the lease expires in %v unless it is renewed", name, d, holder, h.ExpiresIn.Round(time.Second))
}
