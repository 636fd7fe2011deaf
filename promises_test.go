package lockkeeper_test

import (
	"bytes"
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
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
					for what, list := range map[string][2][]string{"keys": {b.Mini.Keys(), keys}, "channels": {b.Mini.PubSubChannels("*"), channels}} {
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

// TestWaiterThatCannotReceiveKeepsItsPlace checks that a waiter whose subscription is lost, and cannot be restored, is granted the lock in
// its turn, while others take it from each other all the time.
func TestWaiterThatCannotReceiveKeepsItsPlace(t *testing.T) {
	lost := map[string]func(b *bubble, w *process){
		"denied":      func(b *bubble, _ *process) { b.denySubscriptions() },
		"unreachable": func(_ *bubble, w *process) { w.net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.LoseRequest) },
	}
	for _, kind := range []string{"mutex", "fair", "rwlock", "semaphore", "ratelimit"} {
		for how, lose := range lost {
			t.Run(kind+"/"+how, func(t *testing.T) {
				inBubble(t, func(b *bubble) {
					w, others := b.process(), []*process{b.process(), b.process()}
					open := func(p *process) lockkeeper.Locker { return oneAtATime(t, p.Keeper)[kind] }
					for _, o := range others { // they subscribe
						must.Get(open(o).TryLock(background))(t).Release(background)
					}
					synctest.Wait()
					held := must.Get(open(others[0]).TryLock(background))(t)
					granted := make(chan time.Time, 1)
					ctx, cancel := context.WithCancel(background)
					defer cancel()
					go func() {
						if lease, err := open(w).Lock(ctx); err == nil {
							granted <- time.Now()
							b.must(lease.Release(background))
						}
					}()
					synctest.Wait()
					lose(b, w)
					w.net.CutSubscriptions()
					time.Sleep(time.Millisecond)
					began, turns := time.Now(), 0
					for _, o := range others {
						lock := open(o)
						go func() {
							for {
								lease, err := lock.Lock(ctx)
								if err != nil {
									return
								}
								turns++
								time.Sleep(10 * time.Millisecond)
								b.must(lease.Release(background))
							}
						}()
					}
					synctest.Wait()
					b.must(held.Release(background))
					select {
					case at := <-granted:
						// The connection counts as lost after an interval, and the waiter says so in the heartbeat after that; it learns of its grant by another.
						d := at.Sub(began)
						check.That(t, d <= 3*heartbeatInterval+20*time.Millisecond, "granted after %v and %d turns of others", d, turns)
					case <-time.After(30 * time.Second):
						t.Errorf("not granted while others had %d turns", turns)
					}
					cancel()
					synctest.Wait()
				})
			})
		}
	}
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
	m := must.Get(mutex.New(k, "a name", &mutex.Options{Retain: true}))(t)
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
