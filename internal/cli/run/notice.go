package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
)

// When run says that it still waits: after these times, and then after each of the last.
var noticeAfter = []time.Duration{time.Second, 10 * time.Second, time.Minute, 5 * time.Minute}

// lookTime is how long a look at who holds may take, for a notice.
const lookTime = time.Second

// notices says on standard error for what run waits, and for how long it has, when that takes long. It is used by one
// goroutine.
type notices struct {
	name    string
	holders func(ctx context.Context) ([]lockkeeper.Holder, error)
	began   time.Time
	said    int
	timer   *time.Timer
	looked  chan string
	// due is when a look is to be made, and looked gets what is to be said then.
	due <-chan time.Time
}

func newNotices(name string, holders func(ctx context.Context) ([]lockkeeper.Holder, error)) *notices {
	n := &notices{name: name, holders: holders, began: time.Now(), looked: make(chan string, 1)}
	n.timer = time.NewTimer(noticeAfter[0])
	n.due = n.timer.C
	return n
}

// look finds out what is to be said.
func (n *notices) look(ctx context.Context) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, lookTime)
		defer cancel()
		list, err := n.holders(ctx)
		n.looked <- notice(n.name, list, err, time.Since(n.began))
	}()
}

// say says it, and sets the timer for the next time.
func (n *notices) say(text string) {
	fmt.Fprintln(os.Stderr, "lockkeeper:", text)
	n.said++
	last := len(noticeAfter) - 1
	at := noticeAfter[min(n.said, last)] + time.Duration(max(n.said-last, 0))*noticeAfter[last]
	n.timer.Reset(max(at-time.Since(n.began), time.Second))
}

func (n *notices) stop() { n.timer.Stop() }

// notice is what is said of those who hold what is waited for.
func notice(name string, list []lockkeeper.Holder, err error, waited time.Duration) string {
	for_ := waited.Round(time.Second)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("waiting for %q for %v: no answer from Redis", name, for_)
	case err != nil:
		return fmt.Sprintf("waiting for %q for %v: no answer from Redis: %s", name, for_, exit.Message(err))
	case len(list) == 0:
		return fmt.Sprintf("waiting for %q for %v: nobody holds it at the moment", name, for_)
	}
	h := list[0]
	who := "the keeper " + h.Keeper
	if h.Keeper == "" {
		who = fmt.Sprintf("the token %q", h.Token)
	}
	if h.Fence != 0 {
		who += fmt.Sprintf(" with fence %d", h.Fence)
	}
	if more := len(list) - 1; more > 0 {
		return fmt.Sprintf("waiting for %q for %v: held by %s and %d more", name, for_, who, more)
	}
	return fmt.Sprintf("waiting for %q for %v: held by %s; this ends in %v unless it is renewed", name, for_, who, h.ExpiresIn.Round(time.Second))
}
