package pubsub

import (
	"bytes"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

// countPings counts the PINGs that are sent from now on.
func (r *fixture) countPings() *atomic.Int32 {
	var n atomic.Int32
	r.net.Watch(func(sent []byte) { n.Add(int32(bytes.Count(sent, []byte("\r\nping\r\n")))) })
	return &n
}

// expectSilence checks what Stats says of the connections that are in use.
func (r *fixture) expectSilence(want time.Duration) {
	r.Helper()
	_, _, silence := r.Stats()
	check.That(r, silence == want, "silent for %v, want %v", silence, want)
}

// TestSilentConnectionIsPinged checks that a connection is sent a PING when it is in use and nothing has come for a while, and only then.
func TestSilentConnectionIsPinged(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("c")
		pings := r.countPings()
		expect := func(when string, want int32) {
			r.Helper()
			synctest.Wait()
			got := pings.Swap(0)
			check.That(r, got == want, "%s: %d PINGs, want %d", when, got, want)
		}
		time.Sleep(time.Hour)
		expect("unused for an hour", 0)
		r.expectSilence(0)
		r.Hold("c")
		time.Sleep(time.Nanosecond)
		expect("used after that", 1)
		time.Sleep(10*pingInterval - 2*time.Second)
		expect("silent", 9)
		r.expectSilence(pingInterval - 2*time.Second + time.Nanosecond)
		for range 100 {
			time.Sleep(time.Second)
			r.mini.Publish("c", "hello")
			<-r.received
		}
		expect("with messages", 0)
		r.Release("c")
		time.Sleep(time.Hour)
		expect("unused again", 0)
		n := r.dials.Load()
		check.That(r, n == 1, "%d connections", n)
	})
}

// TestDeadConnectionIsReplaced checks how soon a connection is replaced on which nothing arrives any more, and that this takes waiters.
func TestDeadConnectionIsReplaced(t *testing.T) {
	for name, used := range map[string]bool{"used": true, "unused": false} {
		subtest(t, name, func(r *fixture) {
			r.mustSubscribe("c")
			r.expect("resumed", r.resumed, "c")
			if used {
				r.Hold("c")
			}
			r.net.BlackholeSubscriptions()
			time.Sleep(pingInterval + ackTimeout - time.Nanosecond)
			synctest.Wait()
			check.That(r, r.IsSubscribed("c") && r.dials.Load() == 1, "replaced too soon")
			if !used {
				time.Sleep(time.Hour)
				n := r.dials.Load()
				check.That(r, n == 1, "%d connections", n)
				return
			}
			time.Sleep(time.Nanosecond)
			r.expect("resumed", r.resumed, "c")
			time.Sleep(time.Hour) // it is watched as well
			_, _, silence := r.Stats()
			check.That(r, silence <= pingInterval && r.dials.Load() == 2, "silent for %v, %d connections", silence, r.dials.Load())
		})
	}
}

// TestSlowAnswersReplaceNothing checks that the answer to a PING may take almost as long as is waited for it.
func TestSlowAnswersReplaceNothing(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("c")
		r.net.DelayReplies(ackTimeout - time.Millisecond)
		r.Hold("c")
		time.Sleep(time.Minute)
		n := r.dials.Load()
		check.That(r, n == 1, "%d connections", n)
	})
}

// TestCheck checks when the function is called, and that a message that was published before the call of Check has come by then.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name     string
		fault    func(r *fixture)
		cut      bool // after the call
		lost     bool
		called   time.Duration // after Check; -1: it is not
		replaced bool
	}{
		{"the message has come", func(r *fixture) { r.net.DelayReplies(time.Second) }, false, false, time.Second, false},
		{"it is lost", func(r *fixture) { r.net.LoseMessages() }, false, true, 0, true},
		{"the connection is dead", func(r *fixture) { r.net.BlackholeSubscriptions() }, false, true, ackTimeout, true},
		{"the connection is lost first", func(r *fixture) { r.net.BlackholeSubscriptions() }, true, true, -1, true},
	} {
		subtest(t, c.name, func(r *fixture) {
			r.mustSubscribe("c")
			r.expect("resumed", r.resumed, "c")
			c.fault(r)
			start := time.Now()
			go r.mini.Publish("c", "hello")
			synctest.Wait()
			called, unknown := make(chan bool, 2), make(chan bool, 2)
			r.Check("c", func(known bool) bool {
				if known {
					called <- len(r.received) == 0
				} else {
					unknown <- true
				}
				return known && len(r.received) == 0
			})
			if c.cut {
				r.net.CutSubscriptions()
			}
			time.Sleep(time.Minute / 2)
			select {
			case lost := <-called:
				check.That(r, lost == c.lost && c.called >= 0, "lost: %v", lost)
			default:
				check.That(r, c.called < 0, "not called")
			}
			if n := len(called) + len(unknown); n != 0 && c.called >= 0 || n != 1 && c.called < 0 {
				r.Errorf("called %d times more", n)
			}
			if replaced := len(r.resumed) == 1; replaced != c.replaced || replaced == (r.dials.Load() == 1) {
				r.Errorf("replaced: %v, %d connections", replaced, r.dials.Load())
			}
			since := r.SubscribedSince("c")
			check.That(r, !c.replaced || c.called < 0 || since.Sub(start) == c.called,
				"replaced after %v, want %v", since.Sub(start), c.called)
		})
	}
	subtest(t, "without a subscription", func(r *fixture) {
		called := 0
		r.Check("c", func(known bool) bool {
			if called++; known {
				r.Error("known")
			}
			return false
		})
		time.Sleep(time.Minute)
		check.That(r, called == 1, "called %d times", called)
		n := r.dials.Load()
		check.That(r, n == 0, "%d connections", n)
	})
	subtest(t, "while another PING is under way", func(r *fixture) {
		r.mustSubscribe("c")
		r.net.DelayReplies(time.Second)
		start := time.Now()
		called := make(chan time.Duration, 3)
		again := func() { r.Check("c", func(bool) bool { called <- time.Since(start); return false }) }
		again()
		time.Sleep(time.Second / 2)
		again()
		again()
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
			got := <-called
			check.That(r, got == want, "called after %v, want %v", got, want)
		}
	})
	subtest(t, "during Close", func(r *fixture) {
		r.mustSubscribe("c")
		r.net.BlackholeSubscriptions()
		called := make(chan bool, 2)
		r.Check("c", func(known bool) bool { called <- known; return true })
		r.Close()
		time.Sleep(time.Minute)
		check.That(r, len(called) == 1 && !<-called, "Close has not settled the check once, as one that is not known")
	})
}

// TestPingRefused checks that a user without the right to PING keeps the connection, and is not told of a refused channel.
func TestPingRefused(t *testing.T) {
	inBubble(t, func(r *fixture) {
		r.mustSubscribe("c")
		r.mini.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "PING" {
				c.WriteError("NOPERM User lock has no permissions to run the 'ping' command")
			}
			return cmd == "PING"
		})
		r.Hold("c")
		called := make(chan struct{}, 1)
		r.Check("c", func(known bool) bool {
			if known {
				called <- struct{}{}
			}
			return false
		})
		time.Sleep(time.Minute)
		n := r.dials.Load()
		check.That(r, n == 1 && len(r.denied) == 0 && len(called) == 1,
			"%d connections, %d denials, %d calls", n, len(r.denied), len(called))
	})
}
