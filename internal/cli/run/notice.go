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
	byClock bool // permits return by the clock, and nothing is held
	start   time.Time
	printed int
	timer   *time.Timer
	due     <-chan time.Time
	text    chan string
}

func newNotices(name string, holders firstHolder, byClock bool) *notices {
	n := &notices{name: name, holders: holders, byClock: byClock, start: time.Now(), text: make(chan string, 1)}
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
		n.text <- n.notice(list, total, err, time.Since(n.start))
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
func (n *notices) notice(list []lockkeeper.Holder, total int, err error, waited time.Duration) string {
	what := fmt.Sprintf("waiting for %q for %v: ", n.name, waited.Round(time.Second))
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return what + "no answer from Redis"
	case err != nil:
		return what + "no answer from Redis: " + exit.Message(err)
	case len(list) == 0:
		return what + "it is free at the moment"
	}
	h := list[0]
	holder := "keeper " + output.Name(h.Keeper)
	switch {
	case h.Owner != "":
		holder = output.Name(h.Owner)
	case h.Keeper == "":
		holder = "token " + output.Name(h.Token)
	}
	if h.Fence != 0 {
		holder += fmt.Sprintf(" with fence %d", h.Fence)
	}
	does, ends := "held", "the lease expires in %v unless it is renewed"
	if n.byClock {
		does, ends = "permits are taken", "they return in %v"
	}
	what += does + " by " + holder
	if more := total - 1; more > 0 {
		return what + fmt.Sprintf(" and %d more", more)
	}
	if h.ExpiresIn < 0 {
		return what + "; the lease never expires"
	}
	return what + "; " + fmt.Sprintf(ends, h.ExpiresIn.Round(time.Second))
}
