package processes

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/lua"
)

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
		Run(t, func(b *Bubble) {
			p := b.Process()
			b.Must(p.RDB.Ping(background).Err()) // the server is up
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
				"TryLock": p.Mutex("x").TryLock, "Lock": p.Mutex("y").Lock,
				"Adopt": func(ctx context.Context) (*lockkeeper.Lease, error) { return p.Mutex("z").Adopt(ctx, "t") },
			} {
				lease, err := call(ctx)
				check.That(t, (lease == nil) != (err == nil), "%s: %v and %v", what, lease, err)
				if lease != nil && what != "Adopt" && (!granted || lease.Fence() == 0 || lease.Err() != nil) {
					t.Errorf("%s: a lease with fence %d, %v, from %q", what, lease.Fence(), lease.Err(), answer)
				}
				_ = lease.Release(ctx)
				check.That(t, lease == nil || lease.Err() != nil, "%s: it is still held after its release", what)
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
		Run(t, func(b *Bubble) {
			holder := b.Process().Hold("x")
			p := b.Process()
			got := p.LockAsync("x")
			for _, channel := range b.Mini.PubSubChannels("lock:wake:" + p.ID() + "*") {
				b.Mini.Publish(channel, payload)
			}
			time.Sleep(HeartbeatInterval / 2)
			select {
			case lease := <-got:
				check.That(t, named, "a lease with fence %d from %q", lease.Fence(), payload)
				return
			default:
			}
			b.Must(holder.Release(context.Background()))
			select {
			case lease := <-got:
				b.Must(lease.Err())
				b.Must(lease.Release(context.Background()))
			case <-time.After(2 * HeartbeatInterval):
				t.Errorf("after the message %q the waiter was not granted the lock", payload)
			}
		})
	})
}
