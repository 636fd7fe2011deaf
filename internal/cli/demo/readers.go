package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

const (
	readersName = "catalogue"
	readersMany = 4
	// writerSlack is how much longer than the longest read the writer may have to wait: for the machine's sake. If it
	// waited for new readers too, it would hardly get in at all.
	writerSlack = time.Second
)

// readers is the part of the demo in which some always read, and one who writes gets in all the same.
type readers struct {
	*show
	lock    *rwlock.Lock // for looking
	workers []*worker

	reads, writes int
	together      int // the most readers that were inside at once
	overlaps      int // readers beside a writer
	falls         int // fences out of order
	read, wait    time.Duration
}

// demoReaders is the lock that they share.
func demoReaders(k *lockkeeper.Keeper) (*rwlock.Lock, error) {
	return rwlock.New(k, readersName, &rwlock.Options{TTL: demoTTL})
}

func newReaders(s *show, k *lockkeeper.Keeper) (*readers, error) {
	lock, err := demoReaders(k)
	if err != nil {
		return nil, err
	}
	r := &readers{show: s, lock: lock}
	for i := range readersMany {
		r.workers = append(r.workers, &worker{id: fmt.Sprintf("reader-%d", i+1), role: "read"})
	}
	r.workers = append(r.workers, &worker{id: "writer", role: "write"})
	return r, nil
}

func (r *readers) take(w *worker, e event, _ bool) {
	writes := w.role == "write"
	switch {
	case e.State == "waits" && writes:
		r.tell(w.id+" comes; inside", r.inside)
	case e.State == "holds":
		if e.Inside != "" {
			r.overlaps++
			r.say("%s got in while %s was inside", w.id, e.Inside)
		}
		if e.Fence <= e.LastFence {
			r.falls++
		}
		if writes {
			r.writes++
			r.wait = max(r.wait, e.Took)
			r.tell(fmt.Sprintf("%s writes, after %v; in line", w.id, e.Took.Round(time.Millisecond)), r.waiting)
		} else {
			r.reads++
			r.together = max(r.together, e.Together)
			r.tell(w.id+" reads; inside", r.inside)
		}
	case e.State == "leaves" && !writes:
		r.read = max(r.read, e.Took)
	}
}

// inside is who holds the lock, as the server has it; waiting is who waits.
func (r *readers) inside() []string {
	return look(r.workers, r.lock.Holders, func(h rwlock.Holder) string { return h.Keeper })
}

func (r *readers) waiting() []string {
	return look(r.workers, r.lock.Waiters, func(w rwlock.Waiter) string { return w.Keeper })
}

// tell prints a line that ends with some of the workers, unless there is a drawing that shows them.
func (r *readers) tell(what string, who func() []string) {
	if !r.tty {
		r.say("%s: %s", what, strings.Join(who(), " "))
	}
}

func (r *readers) paint(b *strings.Builder) {
	fmt.Fprintln(b)
	for _, w := range r.workers {
		state := w.state
		if state == "holds" {
			state = w.role + "s"
		}
		w.paint(b, state)
	}
	fmt.Fprintf(b, "\n  inside:  %s\n", strings.Join(r.inside(), " "))
	fmt.Fprintf(b, "  in line: %s\n", strings.Join(r.waiting(), " "))
	fmt.Fprintf(b, "  %d reads, %d writes, %d overlaps\n", r.reads, r.writes, r.overlaps)
}

func (r *readers) sum() bool {
	order := "yes"
	if r.falls > 0 {
		order = fmt.Sprintf("no, %d were not larger than they had to be", r.falls)
	}
	fmt.Fprintf(r.out, "\nreads:                  %d, up to %d at once\n", r.reads, r.together)
	fmt.Fprintf(r.out, "writes:                 %d\n", r.writes)
	fmt.Fprintf(r.out, "reads beside a write:   %d\n", r.overlaps)
	fmt.Fprintf(r.out, "fences in order:        %s\n", order)
	fmt.Fprintf(r.out, "longest wait to write:  %v\n", r.wait.Round(100*time.Microsecond))
	fmt.Fprintf(r.out, "longest read:           %v\n", r.read.Round(100*time.Microsecond))
	return r.reads > 0 && r.together > 1 && r.writes > 1 && r.overlaps == 0 && r.falls == 0 && r.wait < r.read+writerSlack
}
