package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/rwlock"
)

const (
	readersName  = "catalogue"
	readersCount = 4
	// maxWriterDelay is how much longer than the longest read the writer may wait, on a slow machine. If it waited for new
	// readers too, it would hardly ever acquire the lock.
	maxWriterDelay = time.Second
)

// readers is the scenario in which some workers always read, and a writer acquires the lock nevertheless.
type readers struct {
	*screen
	lock    *rwlock.Lock // only for queries
	workers []*worker

	reads, writes int
	maxConcurrent int // readers
	overlaps      int // reads during a write
	fenceErrors   int // fences that were not larger than required
	longestRead   time.Duration
	longestWait   time.Duration // of the writer
}

// demoReaders is the lock that the workers share.
func demoReaders(k *lockkeeper.Keeper) (*rwlock.Lock, error) {
	return rwlock.New(k, readersName, &rwlock.Options{TTL: demoTTL})
}

func newReaders(s *screen, k *lockkeeper.Keeper) (*readers, error) {
	lock, err := demoReaders(k)
	if err != nil {
		return nil, err
	}
	r := &readers{screen: s, lock: lock}
	for i := range readersCount {
		r.workers = append(r.workers, &worker{id: fmt.Sprintf("reader-%d", i+1), role: "read"})
	}
	r.workers = append(r.workers, &worker{id: "writer", role: "write"})
	return r, nil
}

func (r *readers) handle(w *worker, e event, _ bool) {
	writes := w.role == "write"
	switch {
	case e.State == stateWaiting && writes:
		r.printIDs(w.id+" waits; holders", r.holders)
	case e.State == stateHolding:
		if e.Inside != "" {
			r.overlaps++
			r.printf("%s acquired the lock while %s held it", w.id, e.Inside)
		}
		if e.Fence <= e.LastFence {
			r.fenceErrors++
		}
		if writes {
			r.writes++
			r.longestWait = max(r.longestWait, e.Duration)
			r.printIDs(fmt.Sprintf("%s writes, after waiting for %v; queue", w.id, e.Duration.Round(time.Millisecond)), r.waiting)
		} else {
			r.reads++
			r.maxConcurrent = max(r.maxConcurrent, e.Concurrent)
			r.printIDs(w.id+" reads; holders", r.holders)
		}
	case e.State == stateReleasing && !writes:
		r.longestRead = max(r.longestRead, e.Duration)
	}
}

// holders are the holders at the server, waiting is the queue.
func (r *readers) holders() []string {
	return workerIDs(r.workers, r.lock.Holders, func(h lockkeeper.Holder) string { return h.Keeper })
}

func (r *readers) waiting() []string {
	return workerIDs(r.workers, r.lock.Waiters, func(w lockkeeper.Waiter) string { return w.Keeper })
}

// printIDs prints a line that ends with some of the workers, unless the drawing on the terminal shows them.
func (r *readers) printIDs(text string, ids func() []string) {
	if !r.tty {
		r.printf("%s: %s", text, strings.Join(ids(), " "))
	}
}

func (r *readers) stateText() string {
	var b strings.Builder
	fmt.Fprintln(&b)
	for _, w := range r.workers {
		holding := "reading"
		if w.role == "write" {
			holding = "writing"
		}
		w.writeLine(&b, holding)
	}
	fmt.Fprintf(&b, "\n  holders: %s\n", strings.Join(r.holders(), " "))
	fmt.Fprintf(&b, "  queue:   %s\n", strings.Join(r.waiting(), " "))
	fmt.Fprintf(&b, "  %d reads, %d writes, %d overlaps\n", r.reads, r.writes, r.overlaps)
	return b.String()
}

func (r *readers) summarize() bool {
	increasing := "yes"
	if r.fenceErrors > 0 {
		increasing = fmt.Sprintf("no, %d were not larger than required", r.fenceErrors)
	}
	fmt.Fprintf(r.out, "\nreads:                  %d, at most %d at once\n", r.reads, r.maxConcurrent)
	fmt.Fprintf(r.out, "writes:                 %d\n", r.writes)
	fmt.Fprintf(r.out, "reads during a write:   %d\n", r.overlaps)
	fmt.Fprintf(r.out, "fences increasing:      %s\n", increasing)
	fmt.Fprintf(r.out, "longest wait to write:  %v\n", rounded(r.longestWait))
	fmt.Fprintf(r.out, "longest read:           %v\n", rounded(r.longestRead))
	return r.reads > 0 && r.maxConcurrent > 1 && r.writes > 1 && r.overlaps == 0 && r.fenceErrors == 0 && r.longestWait < r.longestRead+maxWriterDelay
}
