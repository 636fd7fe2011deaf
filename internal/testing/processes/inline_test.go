package processes

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/redis/go-redis/v9"
)

// TestInlineCallsEndLikeOthers checks that a call to which the server does not answer ends with its context at once and with the same
// error, whether it was sent in its caller's goroutine or not, and that nothing is left of it.
func TestInlineCallsEndLikeOthers(t *testing.T) {
	calls := map[string]func(p *Process) func(context.Context) error{
		"Lock": func(p *Process) func(context.Context) error {
			return func(ctx context.Context) error { _, err := p.Mutex("x").Lock(ctx); return err }
		},
		"TryLock": func(p *Process) func(context.Context) error {
			return func(ctx context.Context) error { _, err := p.Mutex("x").TryLock(ctx); return err }
		},
		"Release": func(p *Process) func(context.Context) error { return p.Hold("x").Release },
		"Extend": func(p *Process) func(context.Context) error {
			h := p.Hold("x")
			return func(ctx context.Context) error { return errors.Join(h.Extend(ctx, TTL), h.Release(ctx)) }
		},
		"Adopt": func(p *Process) func(context.Context) error {
			h := p.Hold("x")
			return func(ctx context.Context) error {
				_, err := p.Mutex("x").Adopt(ctx, h.Token())
				return errors.Join(err, h.Release(ctx))
			}
		},
	}
	for name, call := range calls {
		for _, after := range []time.Duration{10 * time.Millisecond, 300 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s/%v", name, after), func(t *testing.T) {
				var texts []string
				for _, inline := range []bool{false, true} {
					Run(t, func(b *Bubble) {
						p := b.Process()
						b.Must(p.Hold("other").Release(background)) // connects, and says who the keeper is
						synctest.Wait()
						if inline {
							p.Call(20)
						}
						f := call(p)
						synctest.Wait()
						p.Net.Blackhole()
						ctx, cancel := context.WithCancel(background)
						began := time.Now()
						time.AfterFunc(after, cancel)
						err := f(ctx)
						check.Is(b, err, context.Canceled, "inline %v", inline)
						d := time.Since(began)
						check.That(b, d == after || name == "Extend" || name == "Adopt", "inline %v: it took %v", inline, d)
						texts = append(texts, err.Error())
						p.Net.Restore()
						other := must.Get(b.Process().Mutex("x").Lock(background))(b)
						b.Must(other.Release(background))
						b.Must(p.Close())
					})
				}
				check.That(t, texts[0] == texts[1], "not inline: %s\ninline: %s", texts[0], texts[1])
			})
		}
	}
}

// panicAfter is a hook of the application that panics after a command, if it is set.
type panicAfter struct{ bool }

func (*panicAfter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *panicAfter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := next(ctx, cmd); !h.bool {
			return err
		}
		panic("in a hook")
	}
}
func (*panicAfter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestInlineCallPanics checks that nothing is left of a call whose caller has recovered from the panic of a hook: no lease, and nothing for which
// Close would wait.
func TestInlineCallPanics(t *testing.T) {
	Run(t, func(b *Bubble) {
		p, other := b.Process(), b.Process()
		hook := &panicAfter{}
		p.RDB.AddHook(hook)
		shares := must.Get(mutex.New(p.Keeper, "x", &mutex.Options{Linger: time.Second}))(b)
		for _, prepare := range []func() (call func()){
			func() func() { l := p.Hold("x"); return func() { _ = l.Release(background) } },
			func() func() { return func() { _, _ = p.Mutex("x").TryLock(background) } },
			func() func() {
				l := must.Get(shares.Lock(background))(b)
				time.Sleep(2 * time.Second) // so that its release is sent
				return func() { _ = l.Release(background) }
			},
			func() func() { return func() { _, _ = shares.TryLock(background) } },
		} {
			call := prepare()
			synctest.Wait()
			p.Call(20)
			func() {
				defer func() { _, hook.bool = recover(), false }()
				hook.bool = true
				call()
				b.Error("no panic")
			}()
			began := time.Now()
			b.Must(must.Get(other.Mutex("x").Lock(background))(b).Release(background))
			d := time.Since(began)
			check.That(b, d <= time.Second, "the lock was free after %v", d)
		}
		time.Sleep(100 * time.Millisecond) // a release may be repeated in the background
		began := time.Now()
		err := p.Close()
		check.That(b, err == nil && time.Since(began) <= 0, "Close returned %v after %v", err, time.Since(began))
	})
}

// TestPanicsOfHooksEndNoLock checks that a lease can be upgraded after a hook has panicked in the goroutine of a caller that upgraded it.
func TestPanicsOfHooksEndNoLock(t *testing.T) {
	Run(t, func(b *Bubble) {
		p := b.Process()
		hook := &panicAfter{}
		p.RDB.AddHook(hook)
		for _, o := range []*rwlock.Options{nil, {Linger: time.Second}} {
			rw := p.RWLock(o)
			read := must.Get(rw.RLock(background))(b)
			p.Call(20)
			hook.bool = true
			panicked := func() (x any) {
				defer func() { x = recover() }()
				_ = rw.Upgrade(background, read)
				return nil
			}()
			hook.bool = false
			check.That(b, panicked != nil, "the hook was not run")
			b.Must(rw.Upgrade(background, read))
			b.Must(read.Release(background))
		}
	})
}
