package transport

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
)

// countCommands is a hook of the application.
type countCommands struct {
	n      atomic.Int32
	panics bool
}

func (*countCommands) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *countCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.n.Add(1)
		if h.panics {
			panic("in a hook")
		}
		return next(ctx, cmd)
	}
}
func (*countCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// inlineCall is a call that was sent by SendInline.
type inlineCall struct {
	*Call
	inline bool // its Done was called before SendInline returned
	ended  bool // it was told that its context has ended, before its Done
}

// sendInline waits until senders are idle, sends a call by SendInline, and returns when it is done.
func (p *fixture) sendInline(ctx context.Context) inlineCall {
	synctest.Wait()
	return p.sendInlineNow(ctx)
}

func (p *fixture) sendInlineNow(ctx context.Context) inlineCall {
	var c inlineCall
	var ended noteEnd
	var returned atomic.Bool
	done := make(chan struct{})
	c.Call = callThen(counterScript, func(*Call) {
		c.ended = ended.Load()
		time.Sleep(time.Millisecond) // a sender gets here after SendInline has returned
		c.inline = !returned.Load()
		close(done)
	})
	p.SendInline(ctx, c.Call, &ended)
	returned.Store(true)
	<-done
	return c
}

// expectInline sends a call by SendInline, and checks that it is answered, and whether it was sent inline.
func (p *fixture) expectInline(ctx context.Context, inline bool, what string) {
	p.Helper()
	c := p.sendInline(ctx)
	check.That(p, c.Err == nil && c.inline == inline, "%s: %v, inline %v", what, c.Err, c.inline)
}

// noteEnd is an EndReceiver that notes that it was notified.
type noteEnd struct{ atomic.Bool }

func (n *noteEnd) ContextEnded(context.Context) { n.Store(true) }

// connectOwn makes calls until the Transport has its own connection.
func (p *fixture) connectOwn(ctx context.Context) {
	for range ownCalls {
		p.expectInline(ctx, false, "without a connection of its own")
	}
	synctest.Wait() // it is connected
}

// TestInlineCallEnds checks that calls are sent inline once there have been some, that the application's hooks see them, and what ends
// one that is not answered.
func TestInlineCallEnds(t *testing.T) {
	for _, test := range []struct {
		name  string
		end   func(p *fixture, cancel func()) // a call to which the server does not answer
		told  bool                            // that the context has ended
		again bool                            // another connection is made after that
	}{
		{name: "context", told: true, again: true, end: func(_ *fixture, cancel func()) { cancel() }},
		{name: "end of inline calls", end: func(p *fixture, _ func()) { p.EndInline() }},
		{name: "close", end: func(p *fixture, _ func()) { go p.Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(p *fixture) {
				hook := &countCommands{}
				p.rdb.AddHook(hook)
				p.loadScript()
				ctx, cancel := context.WithCancel(p.Context())
				defer cancel()
				p.connectOwn(ctx)
				connections := p.mini.CurrentConnectionCount()
				for range 3 {
					before := hook.n.Load()
					c := p.sendInline(ctx)
					check.That(p, c.Err == nil && c.inline && !c.ended && hook.n.Load() == before+1,
						"%v, inline %v, ended %v, seen by a hook %d times", c.Err, c.inline, c.ended, hook.n.Load()-before)
				}
				n := p.mini.CurrentConnectionCount()
				check.That(p, n == connections, "%d connections before and %d after", connections, n)

				p.net.Break("evalsha", 1, faultnet.SwallowReply)
				var c inlineCall
				returned := make(chan struct{})
				began := time.Now()
				go func() {
					defer close(returned)
					c = p.sendInlineNow(ctx)
				}()
				synctest.Wait()
				test.end(p, cancel)
				<-returned
				check.That(p, errors.Is(c.Err, ErrInterrupted) && OutcomeOf(c.Err) == claim.InDoubt && c.inline && c.ended == test.told,
					"%v, inline %v, ended %v", c.Err, c.inline, c.ended)
				d := time.Since(began)
				check.That(p, d <= time.Millisecond, "it took %v", d)

				p.net.Restore()
				if test.name == "close" {
					return
				}
				ctx = withCancel(p)
				p.expectInline(ctx, false, "the next call")
				for range ownCalls {
					p.sendInline(ctx)
				}
				p.expectInline(ctx, test.again, "after more calls")
			})
		})
	}
}

// TestInlineOnlyWhenIdle checks that a call is queued while others are under way, or if the script has to be sent again.
func TestInlineOnlyWhenIdle(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.loadScript()
		p.connectOwn(p.Context())
		c := p.sendInline(p.Context())
		check.That(p, c.Err == nil && c.inline && !c.Sent.IsZero(), "alone: %v, inline %v", c.Err, c.inline)
		p.flush()
		p.expectInline(p.Context(), false, "after a flush")
		p.hang()
		p.expectInline(p.Context(), false, "while another is under way")
		p.Close()
		c = p.sendInline(p.Context())
		check.That(p, OutcomeOf(c.Err) == claim.NotSent, "after Close: %v", c.Err)
	})
}

// withCancel returns a context that can end, and does so after the test.
func withCancel(p *fixture) context.Context {
	p.Helper()
	ctx, cancel := context.WithCancel(p.Context())
	p.Cleanup(cancel)
	return ctx
}

// TestOwnConnectionBreaks checks that a connection that breaks is replaced, and that a call on it is not repeated.
func TestOwnConnectionBreaks(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.loadScript()
		ctx := withCancel(p)
		p.connectOwn(ctx)
		p.net.Break("evalsha", 1, faultnet.CutReply)
		c := p.sendInline(ctx)
		check.That(p, OutcomeOf(c.Err) == claim.InDoubt && !errors.Is(c.Err, ErrInterrupted) && c.inline,
			"cut: %v, inline %v", c.Err, c.inline)
		p.expectInline(ctx, false, "after that")
		p.checkRuns(fmt.Sprint(ownCalls + 2))
	})
}

// TestOwnConnectionNotDialled checks that a connection that cannot be made does not hold up anybody, not even Close.
func TestOwnConnectionNotDialled(t *testing.T) {
	inBubbleWith(t, redis.Options{DialTimeout: time.Hour, PipelinePoolSize: 1}, func(p *fixture) {
		p.loadScript()
		ctx := withCancel(p)
		for range ownCalls - 1 {
			p.sendInline(ctx)
		}
		p.hangDials.Store(true)
		for range 3 {
			p.expectInline(ctx, false, "without a connection")
		}
		began := time.Now()
		p.Close()
		d := time.Since(began)
		check.That(p, d == 0, "Close returned after %v", d)
	})
}

// mustSendInline connects, and sends a call inline.
func (p *fixture) mustSendInline(ctx context.Context) {
	p.Helper()
	p.connectOwn(ctx)
	p.expectInline(ctx, true, "on a connection of its own")
}

// TestOwnConnectionIdleForTooLong checks that a call which finds that the connection was given up meanwhile is queued, and neither dials nor
// fails.
func TestOwnConnectionIdleForTooLong(t *testing.T) {
	inBubbleWith(t, redis.Options{ConnMaxIdleTime: time.Minute}, func(p *fixture) {
		p.loadScript()
		ctx := withCancel(p)
		for range 2 {
			p.mustSendInline(ctx)
			time.Sleep(time.Hour)
			p.hangDials.Store(true)
			short, cancel := context.WithTimeout(ctx, time.Millisecond) // which would end a dial
			call, done := newCall(counterScript)
			began := time.Now()
			p.SendInline(short, call, nil)
			check.That(p, time.Since(began) == 0, "a call that cannot be sent inline blocked for %v", time.Since(began))
			cancel()
			p.hangDials.Store(false)
			must.Report(p, (<-done).Err)
			time.Sleep(time.Minute)
		}
	})
}

// TestInlineCallPanics checks that a caller gets the panic of a hook, and that other calls go on after that.
func TestInlineCallPanics(t *testing.T) {
	inBubble(t, func(p *fixture) {
		hook := &countCommands{}
		p.rdb.AddHook(hook)
		p.loadScript()
		ctx := withCancel(p)
		p.connectOwn(ctx)
		connections := p.mini.CurrentConnectionCount()
		hook.panics = true
		func() {
			defer func() {
				r := recover()
				check.That(p, r == "in a hook", "the caller got %v", r)
			}()
			p.SendInline(ctx, callThen(counterScript, func(*Call) {}), nil)
		}()
		hook.panics = false
		synctest.Wait()
		n := p.mini.CurrentConnectionCount()
		check.That(p, n == connections-1, "%d connections before and %d after", connections, n)
		p.mustSendInline(ctx)
	})
}

// TestOwnConnectionSlowToClose checks that a connection that takes long to close holds up nobody else.
func TestOwnConnectionSlowToClose(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.loadScript()
		p.slowClose.Store(true)
		p.connectOwn(p.Context())
		began := time.Now()
		p.EndInline()
		p.expectInline(p.Context(), false, "after EndInline")
		d := time.Since(began)
		check.That(p, d <= time.Second, "it took %v", d)
	})
}

// rotating is a source of credentials.
type rotating struct{ listener auth.CredentialsListener } // of the last connection that was made

func (r *rotating) Subscribe(listener auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	r.listener = listener
	return auth.NewBasicCredentials("user", "secret"), func() error { return nil }, nil
}

// TestOwnConnectionWithRotatedCredentials checks that a call is queued which finds that go-redis authenticates the connection again.
func TestOwnConnectionWithRotatedCredentials(t *testing.T) {
	source := &rotating{}
	inBubbleWith(t, redis.Options{StreamingCredentialsProvider: source}, func(p *fixture) {
		p.mini.RequireUserAuth("user", "secret")
		p.loadScript()
		ctx := withCancel(p)
		for range 2 {
			p.mustSendInline(ctx)
			source.listener.OnNext(auth.NewBasicCredentials("user", "secret"))
			p.hangDials.Store(true)
			p.expectInline(ctx, false, "after a rotation")
			p.hangDials.Store(false)
		}
	})
}

// writeElsewhere is a hook of the application, by which the server that is found at its address does not have what it writes.
type writeElsewhere struct{}

func (writeElsewhere) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (writeElsewhere) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (writeElsewhere) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "set" {
				cmd.Args()[1] = "elsewhere"
			}
		}
		return next(ctx, cmds)
	}
}

func TestOwnConnectionToAnotherServerIsNotUsed(t *testing.T) {
	inBubble(t, func(p *fixture) {
		p.rdb.AddHook(writeElsewhere{})
		p.loadScript()
		p.connectOwn(p.Context())
		check.That(p, p.mini.Exists("elsewhere"), "no connection was checked")
		for _, tried := range []bool{false, true} { // the first one was a moment ago
			p.mini.Del("elsewhere")
			p.connectOwn(p.Context())
			check.That(p, p.mini.Exists("elsewhere") == tried, "another connection is tried: %t, want %t", !tried, tried)
			time.Sleep(ownPause)
		}
	})
}
