package lockkeeper_test

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// oneAtATime are primitives of which one request at a time holds the lock.
var oneAtATime = []struct {
	kind string
	open func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error)
}{
	{"mutex", func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		return mutex.New(k, "x", &mutex.Options{TTL: ttl})
	}},
	{"fair", func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		return fair.New(k, "x", &fair.Options{TTL: ttl})
	}},
	{"rwlock", func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		return rwlock.New(k, "x", &rwlock.Options{TTL: ttl})
	}},
	{"semaphore", func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		s, err := semaphore.New(k, "x", 2, &semaphore.Options{TTL: ttl})
		if err != nil {
			return nil, err
		}
		return s.LockerN(2)
	}},
	{"ratelimit", func(k *lockkeeper.Keeper, ttl time.Duration) (lockkeeper.Locker, error) {
		r, err := ratelimit.NewConcurrent(k, "x", 1_000_000, time.Minute, 1, &ratelimit.ConcurrentOptions{TTL: ttl})
		if err != nil {
			return nil, err
		}
		return r.Locker(), nil
	}},
}

// TestWaiterThatCannotReceiveKeepsItsPlace checks that a waiter whose subscription is lost, and cannot be restored, is granted the lock in
// its turn, while others take it from each other all the time.
func TestWaiterThatCannotReceiveKeepsItsPlace(t *testing.T) {
	lost := map[string]func(b *bubble, w *process){
		"denied": func(b *bubble, w *process) {
			b.Mini.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
				denied := strings.EqualFold(command, "subscribe")
				if denied {
					c.WriteError("NOPERM this user has no permissions to access one of the channels")
				}
				return denied
			})
		},
		"unreachable": func(b *bubble, w *process) { w.net.Break("\r\nsubscribe\r\n", 1_000_000, faultnet.LoseRequest) },
	}
	for _, p := range oneAtATime {
		for how, lose := range lost {
			t.Run(p.kind+"/"+how, func(t *testing.T) {
				inBubble(t, func(b *bubble) {
					w, others := b.process(), []*process{b.process(), b.process()}
					open := func(k *process) lockkeeper.Locker { return must(p.open(k.Keeper, 10*time.Second)) }
					for _, o := range others { // they subscribe
						must(open(o).TryLock(background)).Release(background)
					}
					synctest.Wait()
					held := must(open(others[0]).TryLock(background))
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
						if d := at.Sub(began); d > 3*heartbeatInterval+20*time.Millisecond {
							t.Errorf("granted after %v and %d turns of others", d, turns)
						}
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

// TestWaiterLosesItsSubscription is the same on a real server: the right to the channel is revoked, which closes the connection, or the
// server has no connection left for a new subscription.
func TestWaiterLosesItsSubscription(t *testing.T) {
	s := redistest.Start(t)
	admin := s.Client()
	do := func(args ...any) string {
		t.Helper()
		text, err := admin.Do(background, args...).Text()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const interval = 100 * time.Millisecond
	for how, lose := range map[string]func(){
		"denied": func() { do("ACL", "SETUSER", "w", "resetchannels") },
		"full": func() {
			clients := strings.Count(do("CLIENT", "LIST"), "\n")
			do("CONFIG", "SET", "maxclients", clients-1)
			if n := must(admin.ClientKillByFilter(background, "TYPE", "pubsub", "USER", "w").Result()); n != 1 {
				t.Errorf("%d subscriptions", n)
			}
		},
	} {
		t.Run(how, func(t *testing.T) {
			do("CONFIG", "SET", "maxclients", 1000)
			do("ACL", "SETUSER", "w", "reset", "on", "nopass", "~*", "&*", "+@all")
			open := func(user string) lockkeeper.Locker {
				o := *admin.Options()
				o.Username, o.Password = user, "x"
				if user == "default" {
					o.Username, o.Password = "", ""
				}
				rdb := redis.NewClient(&o)
				k := must(lockkeeper.New(rdb, &lockkeeper.Options{HeartbeatInterval: interval, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}))
				t.Cleanup(func() { k.Close(); rdb.Close() })
				return must(fair.New(k, "x", nil))
			}
			w, others := open("w"), []lockkeeper.Locker{open("default"), open("default")}
			ctx, cancel := context.WithTimeout(background, 20*time.Second)
			defer cancel()
			held := must(others[0].Lock(ctx))
			granted := make(chan error, 1)
			go func() {
				lease, err := w.Lock(ctx)
				granted <- err
				if err == nil {
					_ = lease.Release(background)
				}
			}()
			ended := make(chan struct{}, len(others))
			for _, o := range others {
				for must(admin.ZCard(ctx, "{lock:x}:fair:queue").Result()) == 0 { // the first to wait is w
					time.Sleep(time.Millisecond)
				}
				go func() {
					defer func() { ended <- struct{}{} }()
					for {
						lease, err := o.Lock(ctx)
						if err != nil {
							return
						}
						time.Sleep(5 * time.Millisecond)
						_ = lease.Release(background)
					}
				}()
			}
			for must(admin.ZCard(ctx, "{lock:x}:fair:queue").Result()) < 6 {
				time.Sleep(time.Millisecond)
			}
			lose()
			if err := held.Release(background); err != nil {
				t.Fatal(err)
			}
			if err := <-granted; err != nil {
				t.Error(err)
			}
			cancel()
			<-ended
			<-ended
		})
	}
}
