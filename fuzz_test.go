package lockkeeper_test

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/lockkeeper/lockkeeper/mutex"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
	"github.com/redis/go-redis/v9"
)

// FuzzOptions checks that keepers and locks reject numbers with ErrInvalid unless they are within the documented
// bounds.
func FuzzOptions(f *testing.F) {
	ms := int64(time.Millisecond)
	for _, n := range [][7]int64{
		{}, {30000 * ms, 90000 * ms, 2000 * ms, 6000 * ms, 3600000 * ms, 10 * ms, 1000 * ms},
		{1, 1, 1, 1, 1, 1, 1}, {-1, -1, -1, -1, -1, -1, -1}, {1<<63 - 1, 1<<63 - 1, 1<<63 - 1, 1<<63 - 1, 1<<63 - 1, 1<<63 - 1, 1<<63 - 1},
		{-1 << 63, -1 << 63, -1 << 63, -1 << 63, -1 << 63, -1 << 63, -1 << 63}, {10 * ms, 9 * ms, 10 * ms, 20 * ms, 60000 * ms, 2 * ms, ms},
	} {
		f.Add(n[0], n[1], n[2], n[3], n[4], n[5], n[6])
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	f.Cleanup(func() { _ = rdb.Close() })
	f.Fuzz(func(t *testing.T, ttl, most, interval, timeout, idle, low, high int64) {
		refused := func(err error) bool {
			if err != nil && !errors.Is(err, lockkeeper.ErrInvalid) {
				t.Errorf("neither accepted nor ErrInvalid: %v", err)
			}
			return err != nil
		}
		between := func(option string, n, least, greatest int64) {
			if n != 0 && (n < least || n > greatest) {
				t.Errorf("%s %v was accepted", option, time.Duration(n))
			}
		}
		day := int64(24 * time.Hour)
		k, err := lockkeeper.New(rdb, &lockkeeper.Options{
			HeartbeatInterval: time.Duration(interval), HeartbeatTimeout: time.Duration(timeout), MetadataTTL: time.Duration(idle),
			Retry: lockkeeper.RetryPolicy{MinBackoff: time.Duration(low), MaxBackoff: time.Duration(high)},
		})
		if refused(err) {
			k = must.Get(lockkeeper.New(rdb, nil))(t)
		} else {
			between("HeartbeatInterval", interval, 10*ms, day/24)
			between("HeartbeatTimeout", timeout, 20*ms, day)
			between("MetadataTTL", idle, 60000*ms, 365*day)
			between("Retry.MinBackoff", low, ms, day/24)
			between("Retry.MaxBackoff", high, ms, day/24)
			if interval != 0 && timeout != 0 && timeout < 2*interval || low != 0 && high != 0 && high < low {
				t.Errorf("HeartbeatInterval %d, HeartbeatTimeout %d, Retry.MinBackoff %d, Retry.MaxBackoff %d were accepted", interval, timeout, low, high)
			}
		}
		d, m := time.Duration(ttl), time.Duration(most)
		_, err1 := mutex.New(k, "x", &mutex.Options{TTL: d, MaxLifetime: m})
		_, err2 := fair.New(k, "x", &fair.Options{TTL: d, MaxLifetime: m})
		_, err3 := rwlock.New(k, "x", &rwlock.Options{TTL: d, MaxLifetime: m})
		_, err4 := semaphore.New(k, "x", 3, &semaphore.Options{TTL: d, MaxLifetime: m})
		for _, err := range []error{err1, err2, err3, err4} {
			if !refused(err) {
				between("TTL", ttl, 10*ms, 365*day)
				between("MaxLifetime", most, max(ttl, 10*ms), 1<<63-1)
			}
		}
		streak := int(most)
		if _, err := rwlock.New(k, "x", &rwlock.Options{MaxWriterStreak: streak}); !refused(err) && streak > 1_000_000 {
			t.Errorf("MaxWriterStreak %d was accepted", streak)
		}
		limit := int(low)
		_, err5 := ratelimit.New(k, "x", limit, d, nil)
		_, err6 := ratelimit.NewConcurrent(k, "x", limit, d, int(high), nil)
		for _, err := range []error{err5, err6} {
			if !refused(err) && (limit < 1 || limit > 1_000_000_000 || d < ratelimit.MinWindow || d > ratelimit.MaxWindow) {
				t.Errorf("limit %d, window %v were accepted", limit, d)
			}
		}
		if !refused(err6) && (high < 1 || high > 1_000_000_000) {
			t.Errorf("maxConcurrent %d was accepted", high)
		}
	})
}

// hugeReply announces a million elements or bytes. The client allocates memory for them before it has read any, so a
// hostile server can exhaust the memory of a client; code on top of the client cannot prevent it.
var hugeReply = regexp.MustCompile(`[0-9]{7}`)

// fenceAlone is a grant by a fast script: a number as large as a time in µs.
var fenceAlone = regexp.MustCompile(`^(\*1\r\n)?:\+?\d{13,}\r\n`)

// FuzzServer checks that no reply to a script causes a panic, or a lease unless the reply grants one, and that such
// a lease can be released.
func FuzzServer(f *testing.F) {
	for _, s := range []string{
		"*5\r\n:" + strconv.Itoa(lua.Granted) + "\r\n:7\r\n:100\r\n:3100\r\n:0\r\n",
		":1792319239123456\r\n", ":100\r\n", ":1000000000000\r\n",
		"*5\r\n:" + strconv.Itoa(lua.Granted) + "\r\n:0\r\n:100\r\n:3100\r\n:0\r\n",
		"*5\r\n:" + strconv.Itoa(lua.Granted) + "\r\n:7\r\n:100\r\n:100\r\n:0\r\n",
		"*4\r\n:" + strconv.Itoa(lua.Refused) + "\r\n:100\r\n:25\r\n:0\r\n",
		"*7\r\n:" + strconv.Itoa(lua.Waiting) + "\r\n:100\r\n:9\r\n:8\r\n:2\r\n:50\r\n:1\r\n",
		"*1\r\n:" + strconv.Itoa(lua.Tombstoned) + "\r\n",
		"*0\r\n", "*-1\r\n", "$-1\r\n", "+OK\r\n", ":1\r\n", "$2\r\nno\r\n", "_\r\n", "#t\r\n", "%1\r\n:1\r\n:2\r\n", "~1\r\n:1\r\n",
		"-ERR no\r\n", "-OOM no\r\n", "-NOSCRIPT no\r\n", "-WRONGTYPE no\r\n", "-MOVED 1 127.0.0.1:1\r\n", "-\r\n", "-LOADING \r\n",
		"*2\r\n:1\r\n*1\r\n:1\r\n", "*2\r\n$1\r\n1\r\n:7\r\n", "*5\r\n:1\r\n", ">2\r\n+message\r\n:1\r\n", "\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n",
		"*9999\r\n", "$9999\r\n", ",1.5\r\n", "(123456789012345678901234567890\r\n", "!3\r\nERR\r\n", "|1\r\n:1\r\n:1\r\n:1\r\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		if hugeReply.MatchString(answer) {
			return
		}
		granted := strings.HasPrefix(answer, "*5\r\n:"+strconv.Itoa(lua.Granted)+"\r\n") || fenceAlone.MatchString(answer)
		inBubble(t, func(b *bubble) {
			p := b.process()
			b.must(p.rdb.Ping(background).Err()) // the server is up
			b.Mini.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
				if !strings.HasPrefix(cmd, "EVAL") {
					return false
				}
				c.WriteRaw(answer)
				c.Flush()
				c.Close() // no more data
				return true
			})
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			for what, call := range map[string]func(context.Context) (*lockkeeper.Lease, error){
				"TryLock": p.mutex("x").TryLock, "Lock": p.mutex("y").Lock,
				"Adopt": func(ctx context.Context) (*lockkeeper.Lease, error) { return p.mutex("z").Adopt(ctx, "t") },
			} {
				lease, err := call(ctx)
				if (lease == nil) == (err == nil) {
					t.Errorf("%s: %v and %v", what, lease, err)
				}
				if lease != nil && what != "Adopt" && (!granted || lease.Fence() == 0 || lease.Err() != nil) {
					t.Errorf("%s: a lease with fence %d, %v, from %q", what, lease.Fence(), lease.Err(), answer)
				}
				_ = lease.Release(ctx)
				if lease != nil && lease.Err() == nil {
					t.Errorf("%s: it is still held after its release", what)
				}
			}
			b.Mini.Server().SetPreHook(nil)
		})
	})
}

// FuzzWakeup checks that no message on a keeper's channel grants a lease to a request that is not in it with a
// fence, and that the wait continues.
func FuzzWakeup(f *testing.F) {
	for _, s := range []string{"", "1 7", "1 -250", "1 0", "1", "2 7", "1 x", "1 99999999999999999", "1 -9223372036854775808", "1 7 2", "\x00 1", strings.Repeat("1 -1 ", 500)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		fields := strings.Fields(payload)
		named := false
		for i, x := range fields {
			n, err := strconv.ParseInt(x, 10, 64)
			named = named || i%2 == 1 && err == nil && n > 0
		}
		inBubble(t, func(b *bubble) {
			holder := b.process().hold("x")
			p := b.process()
			got := p.lockAsync("x")
			b.Mini.Publish("lock:wake:"+p.ID(), payload)
			time.Sleep(heartbeatInterval / 2)
			select {
			case lease := <-got:
				if !named {
					t.Errorf("a lease with fence %d from %q", lease.Fence(), payload)
				}
				return
			default:
			}
			b.must(holder.Release(context.Background()))
			select {
			case lease := <-got:
				b.must(lease.Err())
				b.must(lease.Release(context.Background()))
			case <-time.After(2 * heartbeatInterval):
				t.Errorf("after the message %q the waiter was not granted the lock", payload)
			}
		})
	})
}
