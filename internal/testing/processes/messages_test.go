package processes

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// denySubscriptions is as if the user might not subscribe.
func (b *Bubble) denySubscriptions() {
	b.Mini.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		denied := strings.EqualFold(command, "subscribe")
		if denied {
			c.WriteError("NOPERM this user has no permissions to access one of the channels used as arguments")
		}
		return denied
	})
}

// handoff lets waiter wait for a lock that holder holds, calls meanwhile, and lets holder release it.
func (b *Bubble) handoff(holder, waiter *lockkeeper.Keeper, meanwhile func()) {
	b.Helper()
	lock := func(k *lockkeeper.Keeper) *mutex.Mutex {
		return must.Get(mutex.New(k, "x", &mutex.Options{TTL: 15 * time.Minute}))(b)
	}
	lease := must.Get(lock(holder).Lock(background))(b)
	got := make(chan *lockkeeper.Lease, 1)
	go func() {
		l, err := lock(waiter).Lock(background)
		must.Report(b, err)
		got <- l
	}()
	synctest.Wait()
	meanwhile()
	b.Must(lease.Release(background))
	b.Must((<-got).Release(background))
}

// TestPrefixOfKeysAndChannels: before keys and channels, and with NoPrefix there is none.
func TestPrefixOfKeysAndChannels(t *testing.T) {
	for prefix, x := range map[string]struct {
		options lockkeeper.Options
		tag     string // of the labels of keepers
	}{
		"lock:": {tag: "{lock:}"},
		"app:":  {lockkeeper.Options{Prefix: "app:"}, "{app:}"},
		"":      {lockkeeper.Options{NoPrefix: true}, "{lockkeeper}"},
	} {
		t.Run(prefix, func(t *testing.T) {
			Run(t, func(b *Bubble) {
				holder, waiter := b.With(&x.options), b.With(&x.options)
				b.handoff(holder, waiter, func() {
					keys := []string{prefix + "x", "{" + prefix + "x}:mutex:meta", "{" + prefix + "x}:mutex:queue"}
					var channels []string
					for _, k := range []*lockkeeper.Keeper{holder, waiter} {
						keys, channels = append(keys, x.tag+":owner:"+k.ID()), append(channels, prefix+"wake:"+k.ID())
					}
					subscribed := b.Mini.PubSubChannels("*")
					for i, name := range subscribed { // each ends with an address of the keeper
						subscribed[i] = name[:min(len(channels[0]), len(name))]
					}
					for what, list := range map[string][2][]string{"keys": {b.Mini.Keys(), keys}, "channels": {subscribed, channels}} {
						got, want := slices.Sorted(slices.Values(list[0])), slices.Sorted(slices.Values(list[1]))
						check.That(b, slices.Equal(got, want), "%s %q, want %q", what, got, want)
					}
				})
			})
		})
	}
}

// TestLoggerWarnings: of what needs somebody's attention, once, and of nothing else.
func TestLoggerWarnings(t *testing.T) {
	for what, x := range map[string]struct {
		before, waiting func(b *Bubble, p *Process) // before anything, and as it first waits
		says            string                      // "" for nothing
	}{
		"all is well":           {},
		"no right to subscribe": {before: func(b *Bubble, _ *Process) { b.denySubscriptions() }, says: "no right to subscribe"},
		"a silent subscription": {waiting: func(_ *Bubble, p *Process) { p.Net.BlackholeSubscriptions() }, says: "never came"},
	} {
		t.Run(what, func(t *testing.T) {
			Run(t, func(b *Bubble) {
				var log quiet.Buffer
				p := b.ProcessWith(time.Second, lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				b.Must(p.RDB.Ping(background).Err()) // so that there is a server to set a hook on
				if x.before != nil {
					x.before(b, p)
				}
				holder := b.With(&lockkeeper.Options{HeartbeatInterval: HeartbeatInterval})
				b.handoff(holder, p.Keeper, func() {
					if x.waiting != nil {
						x.waiting(b, p)
					}
				})
				b.handoff(holder, p.Keeper, func() {})
				time.Sleep(10 * time.Second)
				b.Must(p.Close())
				text := log.String()
				lines := strings.Count(text, "\n")
				if x.says == "" && lines != 0 ||
					x.says != "" && (lines != 1 || !strings.Contains(text, x.says) || !strings.Contains(text, "channel=lock:wake:")) {
					b.Errorf("it logged %q", text)
				}
			})
		})
	}
}

// TestOwnerLabelLasts checks that the label of a keeper that only holds, or only waits, is there after longer than the server keeps it
// once it was stored, and again soon after the server has lost it.
func TestOwnerLabelLasts(t *testing.T) {
	Run(t, func(b *Bubble) {
		rare := lockkeeper.Options{HeartbeatInterval: 5 * time.Minute}
		first, second := rare, rare
		first.Owner, second.Owner = "first", "second"
		holder, waiter := b.With(&first), b.With(&second)
		b.handoff(holder, waiter, func() {
			m := must.Get(mutex.New(waiter, "x", nil))(b)
			labels := func(when string) {
				h, _, err := m.Holder(background)
				b.Must(err)
				waiters := must.Get(m.Waiters(background))(b)
				check.That(b, h.Owner == "first" && len(waiters) == 1 && waiters[0].Owner == "second",
					"%s: held by %q, waiters %+v", when, h.Owner, waiters)
			}
			time.Sleep(50 * time.Hour)
			labels("after two days")
			b.Mini.Del("{lock:}:owner:" + holder.ID())
			b.Mini.Del("{lock:}:owner:" + waiter.ID())
			time.Sleep(16 * time.Minute)
			labels("after a loss")
		})
	})
}

// oneAtATime are locks named x, of which one request at a time is granted.
func oneAtATime(t *testing.T, k *lockkeeper.Keeper) map[string]lockkeeper.Locker {
	t.Helper()
	permits := must.Get(must.Get(semaphore.New(k, "x", 3, nil))(t).LockerN(2))(t)
	limiter := must.Get(ratelimit.NewConcurrent(k, "x", 1_000_000, time.Minute, 1, nil))(t)
	return map[string]lockkeeper.Locker{
		"mutex": must.Get(mutex.New(k, "x", nil))(t), "fair": must.Get(fair.New(k, "x", nil))(t), "rwlock": must.Get(rwlock.New(k, "x", nil))(t),
		"semaphore": permits, "ratelimit": limiter.Locker(),
	}
}

// forgetSubscriptions acknowledges subscriptions to a keeper's channels and forgets them, as a proxy does that keeps them at another server. If silent
// is set, they are not even acknowledged.
func (b *Bubble) forgetSubscriptions(id string, silent bool) {
	b.Mini.Server().SetPreHook(func(c *server.Peer, command string, args ...string) bool {
		if !strings.EqualFold(command, "subscribe") || !strings.HasPrefix(args[0], "lock:wake:"+id) {
			return false
		}
		if !silent {
			c.Block(func(w *server.Writer) {
				w.WritePushLen(3)
				w.WriteBulk("subscribe")
				w.WriteBulk(args[0])
				w.WriteInt(1)
			})
		}
		return true
	})
}

// TestWaiterWithoutMessagesKeepsItsPlace checks that a waiter that no message reaches is granted the lock in its turn, a heartbeat late at most,
// while others take it from each other all the time, and that this is logged once.
func TestWaiterWithoutMessagesKeepsItsPlace(t *testing.T) {
	forgotten := func(b *Bubble, w *Process) { b.forgetSubscriptions(w.ID(), false) }
	swallowed := func(b *Bubble, w *Process) { b.forgetSubscriptions(w.ID(), true) }
	causes := map[string]struct {
		before, waiting func(b *Bubble, w *Process) // before it waits, and then
		log             string                      // "": nothing for now
	}{
		"denied":          {waiting: func(b *Bubble, _ *Process) { b.denySubscriptions() }, log: "no right to subscribe"},
		"unreachable":     {waiting: func(_ *Bubble, w *Process) { w.Net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.LoseRequest) }},
		"not counted":     {before: forgotten, log: "does not see the subscription"},
		"counted no more": {waiting: forgotten, log: "does not see the subscription"},
		"swallowed":       {before: swallowed, log: "has not acknowledged the subscription"},
	}
	for _, kind := range []string{"mutex", "fair", "rwlock", "semaphore", "ratelimit"} {
		for cause, x := range causes {
			t.Run(kind+"/"+cause, func(t *testing.T) {
				Run(t, func(b *Bubble) {
					var log quiet.Buffer
					w := b.ProcessWith(time.Second, lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
					others := []*Process{b.Process(), b.Process()}
					open := func(p *Process) lockkeeper.Locker { return oneAtATime(t, p.Keeper)[kind] }
					for _, o := range others { // they subscribe
						must.Get(open(o).TryLock(background))(t).Release(background)
					}
					synctest.Wait()
					if x.before != nil {
						x.before(b, w)
					}
					ctx, cancel := context.WithCancel(background)
					defer cancel()
					next := open(others[0])
					for turn := range 3 { // of the waiter
						held := must.Get(next.Lock(background))(t)
						granted := make(chan time.Time, 1)
						go func() {
							if lease, err := open(w).Lock(ctx); err == nil {
								granted <- time.Now()
								b.Must(lease.Release(background))
							}
						}()
						synctest.Wait()
						if x.waiting != nil && turn == 0 {
							x.waiting(b, w)
							w.Net.CutSubscriptions()
							time.Sleep(time.Millisecond)
						}
						began := time.Now()
						var turns atomic.Int64
						busy, stop := context.WithCancel(ctx)
						var all sync.WaitGroup
						for _, o := range others {
							lock := open(o)
							all.Go(func() {
								for {
									lease, err := lock.Lock(busy)
									if err != nil {
										return
									}
									turns.Add(1)
									time.Sleep(10 * time.Millisecond)
									b.Must(lease.Release(background))
								}
							})
						}
						synctest.Wait()
						b.Must(held.Release(background))
						select {
						case at := <-granted:
							d := at.Sub(began)
							check.That(t, d <= HeartbeatInterval+100*time.Millisecond, "turn %d came after %v and %d turns of others", turn, d, turns.Load())
							check.That(t, turn < 2 || turns.Load() <= int64(2*len(others)), // it is passed over once at most
								"turn %d came after %d turns of others", turn, turns.Load())
						case <-time.After(30 * time.Second):
							t.Errorf("turn %d did not come while others had %d turns", turn, turns.Load())
						}
						stop()
						all.Wait()
					}
					time.Sleep(10 * time.Second) // what is not acknowledged by then is given up
					cancel()
					synctest.Wait()
					text := log.String()
					lines := strings.Count(text, "\n") - strings.Count(text, "a wake-up was sent but never came") // which is as true
					check.That(t, x.log == "" || strings.Count(text, x.log) == 1 && lines == 1, "it logged %q", text)
				})
			})
		}
	}
}

// TestKeepersWithOtherPrefixesReachEachOther checks that a key may belong to names of several prefixes, whose keepers have different channels.
func TestKeepersWithOtherPrefixesReachEachOther(t *testing.T) {
	Run(t, func(b *Bubble) {
		const rare = time.Minute
		open := func(o lockkeeper.Options, name string) *fair.Lock {
			o.HeartbeatInterval, o.HeartbeatTimeout = rare, 3*rare
			return must.Get(fair.New(b.With(&o), name, nil))(t)
		}
		locks := []*fair.Lock{
			open(lockkeeper.Options{}, "a:{x}"), open(lockkeeper.Options{Prefix: "lock:a:"}, "{x}"), open(lockkeeper.Options{NoPrefix: true}, "lock:a:{x}"),
		}
		lease := must.Get(locks[0].Lock(background))(t)
		began := time.Now()
		for turn := range 12 {
			next := locks[(turn+1)%len(locks)]
			got := make(chan *lockkeeper.Lease, 1)
			go func() { got <- must.Get(next.Lock(background))(t) }()
			synctest.Wait()
			b.Must(lease.Release(background))
			lease = must.Receive(t, got, 10*rare, "a turn")
		}
		b.Must(lease.Release(background))
		check.That(t, time.Since(began) < rare, "12 turns took %v: waiters learned of them by heartbeats", time.Since(began))
	})
}
