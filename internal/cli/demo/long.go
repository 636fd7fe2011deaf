package demo

import (
	"fmt"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/process"
)

const (
	demoTTL              = 2 * time.Second
	demoHeartbeatTimeout = 1500 * time.Millisecond
)

// scenario is a part of the long demo.
type scenario interface {
	handle(w *worker, e event, stopping bool) // handles an event of a worker
	stateText() string                        // the state of the scenario, for the terminal
	summarize() (ok bool)                     // prints the summary; false if a guarantee was violated
}

// long plays the long demo.
func long(out *os.File) error {
	server, err := newServer(demoHeartbeatTimeout)
	if err != nil {
		return err
	}
	defer server.close()
	k, rdb := server.keeper, server.rdb
	s := &screen{out: out, tty: isTerminal(out), start: time.Now()}
	first, err := newQueue(s, k)
	if err != nil {
		return err
	}
	second, err := newReaders(s, k)
	if err != nil {
		return err
	}
	third, err := newCalls(s, k, rdb)
	if err != nil {
		return err
	}
	s.printf("six processes contend for the fair lock %q with a TTL of %v", fairName, demoTTL)
	if err := s.run(first, first.workers, server.addr, 8*time.Second); err != nil {
		return err
	}
	ok := first.summarize()
	fmt.Fprintln(out)
	s.printf("four processes read under the read-write lock %q without a pause, a fifth one writes now and then", readersName)
	if err := s.run(second, second.workers, server.addr, 3500*time.Millisecond); err != nil {
		return err
	}
	ok = second.summarize() && ok
	fmt.Fprintln(out)
	s.printf("six processes call the API %q, which permits %d calls at once and %d in any second", apiName, apiAtOnce, apiMany)
	if err := s.run(third, third.workers, server.addr, 5500*time.Millisecond); err != nil {
		return err
	}
	if !third.summarize() || !ok {
		return &exit.Error{Code: 1, Err: fmt.Errorf("the demo failed: a guarantee was violated, or a fault could not be injected")}
	}
	return nil
}

// run starts the workers, shows the scenario for some time, stops the workers and waits until the last one has ended.
func (s *screen) run(p scenario, workers []*worker, addr string, length time.Duration) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	events := make(chan workerEvent)
	for _, w := range workers {
		if err := w.start(self, addr, events); err != nil {
			return err
		}
		defer func() { _ = w.cmd.Process.Kill() }()
	}
	end := time.After(length)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	stopping := false
	for alive := len(workers); alive > 0; {
		select {
		case e := <-events:
			if e.State == "" {
				alive--
				continue
			}
			e.worker.update(e.event)
			if e.Error != "" {
				s.printf("%s: %s", e.worker.id, e.Error)
			}
			p.handle(e.worker, e.event, stopping)
		case <-end:
			stopping = true
			for _, w := range workers {
				process.Resume(w.cmd.Process)
				_ = w.stdin.Close()
			}
		case <-tick.C:
			s.draw(p)
		}
	}
	s.draw(p)
	s.drawn = 0
	return nil
}
