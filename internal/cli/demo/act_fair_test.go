package demo

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
)

// commands are the commands that a worker receives.
type commands chan string

func (c commands) Write(b []byte) (int, error) {
	c <- string(b)
	return len(b), nil
}

func (commands) Close() error { return nil }

// Events of two processes arrive in any order: here that of the next holder before that of the one that has released the lock. What
// the act says, and what it draws, goes by when they happened.
func TestHandOffIsMeasuredWhenTheNextHoldersEventComesFirst(t *testing.T) {
	server, err := newServer(actHeartbeatTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer server.close()
	act, err := newTurns(server.keeper)
	if err != nil {
		t.Fatal(err)
	}
	p, released := act.play, make(commands)
	first, second := p.workers[0], p.workers[1]
	first.stdin, second.stdin = released, released
	began := time.Now().Add(-3 * time.Second)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond).Round(0) }
	p.ctx, p.display, p.start, p.deadline = t.Context(), &plainDisplay{t.Output()}, began, time.After(10*time.Second)
	go func() {
		p.events <- workerEvent{first, event{State: stateHolding, Fence: 1, At: at(100)}}
		<-released
		p.events <- workerEvent{second, event{State: stateHolding, Fence: 2, At: at(1001)}}
		p.events <- workerEvent{first, event{State: stateReleasing, At: at(1000)}}
	}()
	freed, err := act.turn()
	if err != nil {
		t.Fatal(err)
	}
	if cost := act.granted.Sub(freed); cost != time.Millisecond || act.holder != second {
		t.Errorf("the hand-off took %v to %v, want 1ms", cost, act.holder)
	}
	var held []timeline.Segment
	for lane := range 2 {
		for _, s := range p.Segments(lane, p.now()) {
			if s.State == timeline.Holding {
				held = append(held, s)
			}
		}
	}
	if len(held) != 2 || held[0].To > held[1].From {
		t.Errorf("the picture has two holders at a time: %v", held)
	}
}
