package lockkeeper_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
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
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// with starts a keeper with these options, on a client of its own.
func (b *bubble) with(o *lockkeeper.Options) *lockkeeper.Keeper {
	b.Helper()
	rdb := redis.NewClient(b.Network().Options(time.Second))
	k := must.Get(lockkeeper.New(rdb, o))(b)
	b.Cleanup(func() { _, _ = k.Close(), rdb.Close() })
	return k
}

// denySubscriptions is as if the user might not subscribe.
func (b *bubble) denySubscriptions() {
	b.Mini.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		denied := strings.EqualFold(command, "subscribe")
		if denied {
			c.WriteError("NOPERM this user has no permissions to access one of the channels used as arguments")
		}
		return denied
	})
}

// handoff lets waiter wait for a lock that holder holds, calls meanwhile, and lets holder release it.
func (b *bubble) handoff(holder, waiter *lockkeeper.Keeper, meanwhile func()) {
	b.Helper()
	lock := func(k *lockkeeper.Keeper) *mutex.Mutex {
		return must.Get(mutex.New(k, "x", &mutex.Options{TTL: time.Minute}))(b)
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
	b.must(lease.Release(background))
	b.must((<-got).Release(background))
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
			inBubble(t, func(b *bubble) {
				holder, waiter := b.with(&x.options), b.with(&x.options)
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
		before, waiting func(b *bubble, p *process) // before anything, and as it first waits
		says            string                      // "" for nothing
	}{
		"all is well":           {},
		"no right to subscribe": {before: func(b *bubble, _ *process) { b.denySubscriptions() }, says: "no right to subscribe"},
		"a silent subscription": {waiting: func(_ *bubble, p *process) { p.net.BlackholeSubscriptions() }, says: "never came"},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var log quiet.Buffer
				p := b.processWith(time.Second, lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				b.must(p.rdb.Ping(background).Err()) // so that there is a server to set a hook on
				if x.before != nil {
					x.before(b, p)
				}
				holder := b.with(&lockkeeper.Options{HeartbeatInterval: heartbeatInterval})
				b.handoff(holder, p.Keeper, func() {
					if x.waiting != nil {
						x.waiting(b, p)
					}
				})
				b.handoff(holder, p.Keeper, func() {})
				time.Sleep(10 * time.Second)
				b.must(p.Close())
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

// TestManyKeepersOfAClientAreReported: a keeper for each request, never closed, leaves goroutines and connections until the server has none left.
func TestManyKeepersOfAClientAreReported(t *testing.T) {
	var log quiet.Buffer
	opts := &lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	open := func(rdb redis.UniversalClient, n int) (list []*lockkeeper.Keeper) {
		for range n {
			list = append(list, must.Get(lockkeeper.New(rdb, opts))(t))
		}
		return list
	}
	expect := func(what string, want int) {
		t.Helper()
		got := strings.Count(log.String(), "many keepers are open on one client")
		check.That(t, got == want, "%s: reported %d times, want %d", what, got, want)
	}
	rdb, other := redis.NewClient(&redis.Options{}), redis.NewClient(&redis.Options{})
	defer rdb.Close()
	defer other.Close()
	for range 100 {
		check.Is(t, open(rdb, 1)[0].Close(), nil, "Close")
	}
	list := append(open(rdb, 30), open(other, 30)...)
	expect("each was closed, or is one of 30 of its client", 0)
	list = append(list, open(struct{ *redis.Client }{rdb}, 100)...)
	expect("130 are open on a client and its wrapper", 1)
	for _, k := range list {
		check.Is(t, k.Close(), nil, "Close")
	}
	for _, k := range open(rdb, 40) {
		defer k.Close()
	}
	expect("40 are open again", 2)
}

// TestOwnerLabelLasts checks that the label of a keeper that only holds, or only waits, is there after longer than the server keeps it
// once it was stored, and again soon after the server has lost it.
func TestOwnerLabelLasts(t *testing.T) {
	inBubble(t, func(b *bubble) {
		rare := lockkeeper.Options{HeartbeatInterval: 5 * time.Minute}
		first, second := rare, rare
		first.Owner, second.Owner = "first", "second"
		holder, waiter := b.with(&first), b.with(&second)
		b.handoff(holder, waiter, func() {
			m := must.Get(mutex.New(waiter, "x", nil))(b)
			check := func(when string) {
				h, _, err := m.Holder(background)
				b.must(err)
				waiters := must.Get(m.Waiters(background))(b)
				if h.Owner != "first" || len(waiters) != 1 || waiters[0].Owner != "second" {
					b.Errorf("%s: held by %q, waiters %+v", when, h.Owner, waiters)
				}
			}
			time.Sleep(50 * time.Hour)
			check("after two days")
			b.Mini.Del("{lock:}:owner:" + holder.ID())
			b.Mini.Del("{lock:}:owner:" + waiter.ID())
			time.Sleep(16 * time.Minute)
			check("after a loss")
		})
	})
}

// oneAtATime are locks named x, of which one request at a time is granted.
func oneAtATime(t *testing.T, k *lockkeeper.Keeper) map[string]lockkeeper.Locker {
	t.Helper()
	x := kindsOf(t, k, "x") // two permits of three
	limiter := must.Get(ratelimit.NewConcurrent(k, "x", 1_000_000, time.Minute, 1, nil))(t)
	return map[string]lockkeeper.Locker{"mutex": x.mutex, "fair": x.fair, "rwlock": x.write, "semaphore": x.permits, "ratelimit": limiter.Locker()}
}

// forgetSubscriptions acknowledges subscriptions to a keeper's channels and forgets them, as a proxy does that keeps them at another server. If silent
// is set, they are not even acknowledged.
func (b *bubble) forgetSubscriptions(id string, silent bool) {
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
	forgotten := func(b *bubble, w *process) { b.forgetSubscriptions(w.ID(), false) }
	swallowed := func(b *bubble, w *process) { b.forgetSubscriptions(w.ID(), true) }
	causes := map[string]struct {
		before, waiting func(b *bubble, w *process) // before it waits, and then
		log             string                      // "": nothing for now
	}{
		"denied":          {waiting: func(b *bubble, _ *process) { b.denySubscriptions() }, log: "no right to subscribe"},
		"unreachable":     {waiting: func(_ *bubble, w *process) { w.net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.LoseRequest) }},
		"not counted":     {before: forgotten, log: "does not see the subscription"},
		"counted no more": {waiting: forgotten, log: "does not see the subscription"},
		"swallowed":       {before: swallowed, log: "has not acknowledged the subscription"},
	}
	for _, kind := range []string{"mutex", "fair", "rwlock", "semaphore", "ratelimit"} {
		for cause, x := range causes {
			t.Run(kind+"/"+cause, func(t *testing.T) {
				inBubble(t, func(b *bubble) {
					var log quiet.Buffer
					w := b.processWith(time.Second, lockkeeper.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
					others := []*process{b.process(), b.process()}
					open := func(p *process) lockkeeper.Locker { return oneAtATime(t, p.Keeper)[kind] }
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
								b.must(lease.Release(background))
							}
						}()
						synctest.Wait()
						if x.waiting != nil && turn == 0 {
							x.waiting(b, w)
							w.net.CutSubscriptions()
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
									b.must(lease.Release(background))
								}
							})
						}
						synctest.Wait()
						b.must(held.Release(background))
						select {
						case at := <-granted:
							d := at.Sub(began)
							check.That(t, d <= heartbeatInterval+100*time.Millisecond, "turn %d came after %v and %d turns of others", turn, d, turns.Load())
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
	inBubble(t, func(b *bubble) {
		const rare = time.Minute
		open := func(o lockkeeper.Options, name string) *fair.Lock {
			o.HeartbeatInterval, o.HeartbeatTimeout = rare, 3*rare
			return must.Get(fair.New(b.with(&o), name, nil))(t)
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
			b.must(lease.Release(background))
			lease = must.Receive(t, got, 10*rare, "a turn")
		}
		b.must(lease.Release(background))
		check.That(t, time.Since(began) < rare, "12 turns took %v: waiters learned of them by heartbeats", time.Since(began))
	})
}

func TestLogHooks(t *testing.T) {
	var out bytes.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	rdb, disconnect := connect()
	defer disconnect()
	ctx := context.Background()
	k := must.Get(lockkeeper.New(rdb, &lockkeeper.Options{Hooks: lockkeeper.LogHooks(slog.New(handler), slog.LevelDebug)}))(t)
	defer k.Close()
	m := must.Get(mutex.New(k, "a name", &mutex.Options{Linger: time.Second}))(t)
	l := must.Get(m.Lock(ctx))(t)
	_, err := m.TryLock(ctx)
	must.That(t, err != nil, "acquired twice")
	_ = l.Release(ctx)
	s := must.Get(semaphore.New(k, "s", 5, nil))(t)
	must.OK(t, s.SetLimit(ctx, 4))
	for _, change := range [][2]string{{`(took|held)=\S+`, "$1=X"}, {`token=\S+`, "token=T"}, {`fence=\d+`, "fence=F"}, {`request=\d+`, "request=R"}} {
		out = *bytes.NewBuffer(regexp.MustCompile(change[0]).ReplaceAll(out.Bytes(), []byte(change[1])))
	}
	want := `level=DEBUG msg="lock acquired" kind=mutex name="a name" request=R token=T fence=F took=X
level=INFO msg="lock not acquired" kind=mutex name="a name" request=R took=X err="lockkeeper: mutex \"a name\": not acquired`
	check.That(t, strings.HasPrefix(out.String(), want), "%s\nwant\n%s", out.String(), want)
	for _, line := range []string{
		`level=DEBUG msg="lock released" kind=mutex name="a name" request=R token=T fence=F held=X`,
		`level=DEBUG msg="lock limit changed" kind=semaphore name=s`, ` limit=4`,
	} {
		check.That(t, strings.Contains(out.String(), line), "%s\nhas not %s", out.String(), line)
	}
	out.Reset()
	quiet := lockkeeper.LogHooks(slog.New(slog.NewTextHandler(&out, nil)), slog.LevelDebug)
	quiet.Queued(lockkeeper.Event{Context: ctx, Position: 3})
	quiet.Lost(lockkeeper.Event{Context: ctx, Reason: "expired", Local: true})
	if got := out.String(); strings.Contains(got, "queued") || !strings.Contains(got, `msg="lock lost" request=0 held=0s inside=true reason=expired`) {
		t.Error(got)
	}
}
