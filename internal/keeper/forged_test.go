package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/views"
	"github.com/lockkeeper/lockkeeper/lua"
)

// TestForgedGrants: who may publish, and knows the channel of a keeper, cannot grant its waiter the lock by guessing. Who also knows the
// waiter's serial cannot make it take a fence that the server does not draw; the keeper asks the server instead.
func TestForgedGrants(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x", queued)
		l := s.lock("x", queued)
		granted := s.acquire(l)
		time.Sleep(1100 * time.Millisecond) // avoid the time of a heartbeat
		synctest.Wait()
		publish := func(serial string, fence int64) {
			s.mini.Publish(l.Channel+s.Subscriber.ID(l.Channel), serial+" "+strconv.FormatInt(fence, 10))
		}
		none := func(what string) {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-granted:
				t.Fatalf("%s: the waiter has a lease with fence %d", what, got.Fence())
			default:
			}
		}
		soon := time.Now().UnixMicro() + 1000
		for i := range uint64(2000) {
			publish(strconv.FormatUint(i, 36), soon)
		}
		none("a serial that counts")
		publish(s.waitingToken(l), soon)
		none("a token in place of a serial")
		waiter, ok := protocol.ParseToken(s.waitingToken(l))
		must.That(t, ok && len(waiter.Serial) == protocol.SerialLength, "waiter %+v", waiter)
		for _, ahead := range []time.Duration{2 * time.Second, time.Hour, 1e6 * time.Hour} {
			publish(waiter.Serial, time.Now().Add(ahead).UnixMicro())
			none(fmt.Sprint("a fence ahead of the clock by ", ahead))
		}
		for _, fence := range []int64{int64(h.Fence()), 1, 1 << 53, 9007199254740000, math.MaxInt64} {
			publish(waiter.Serial, fence)
			none(fmt.Sprint("the fence ", fence))
		}
		s.must(h.Release(context.Background()))
		next := <-granted
		check.That(t, next.Fence() > h.Fence() && next.Fence() <= uint64(time.Now().UnixMicro())+1000,
			"fence %d after %d", next.Fence(), h.Fence())
		s.must(next.Release(context.Background()))
	})
}

// waitingToken returns the token of the first waiter of a lock.
func (s *fixture) waitingToken(l *Lock) string {
	members := must.Get(s.mini.ZMembers(l.KeyOf(server.QueueKey)))(s)
	return members[0]
}

// TestUpgradesAreCounted: of two requests to upgrade a lease, the later one has the larger number, by which the script tells them apart.
func TestUpgradesAreCounted(t *testing.T) {
	inBubble(t, func(s *fixture) {
		l := s.lock("x", func(spec *Spec) { spec.Scripts, spec.LocalQueue = lua.RWLock, false })
		read := must.Get(l.Try(context.Background(), Terms{Flags: protocol.FlagRead}))(s)
		last := int64(0)
		for range 3 {
			r := l.newRequest(context.Background(), Terms{Flags: protocol.FlagUpgrade, lease: read}, claim.Wait)
			token, _ := protocol.ParseToken(r.Token())
			check.That(t, token.Number > last, "the number of an upgrade is %d, after %d", token.Number, last)
			last = token.Number
			r.Step(claim.Event{Kind: claim.Cancelled}, server.ErrReleased)
		}
		s.must(read.Release(context.Background()))
	})
}

// TestForgedReplyToRelease: a server that replies to a release what is no reply to one causes an error.
func TestForgedReplyToRelease(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		s.mini.Server().SetPreHook(func(c *miniserver.Peer, command string, args ...string) bool {
			if command != "EVALSHA" {
				return false
			}
			code := lua.Undecided // by each fast script
			if args[0] == lua.Mutex.Release.SHA {
				code = lua.Held
			}
			c.WriteInt(code)
			return true
		})
		err := h.Release(context.Background())
		check.That(t, errors.Is(err, protocol.ErrReply), "error %v, want ErrReply", err)
		s.mini.Server().SetPreHook(nil)
	})
}

// TestIgnoredMessagesAreLoggedOnce: whoever may publish can send any number of messages that are none of ours, and any text. There is one
// short line a minute, with their number.
func TestIgnoredMessagesAreLoggedOnce(t *testing.T) {
	inBubble(t, func(s *fixture) {
		log := &lines{}
		s.Config.Log = slog.New(log)
		l := s.lock("x")
		s.must(s.Subscriber.Subscribe(context.Background(), l.Channel))
		for range 1000 {
			s.mini.Publish(l.Channel+s.Subscriber.ID(l.Channel), "\x1b[2J\n"+strings.Repeat("x", 100_000))
		}
		synctest.Wait()
		for i, text := range []string{"1 \x1b]0;title\x07", "\u202e1 1", "1 " + strings.Repeat("x", 60_000), "\x1b[2J\n" + strings.Repeat("x", 60_000) + " 1"} {
			time.Sleep(time.Minute)
			s.mini.Publish(l.Channel+s.Subscriber.ID(l.Channel), text)
			synctest.Wait()
			must.That(t, len(log.list) == 2+i, "%d lines after %.20q: %.1000q", len(log.list), text, log.list)
		}
		check.That(t, strings.Contains(log.list[1], "messages=1000"), "%q", log.list[1])
		log.check(t)
	})
}

// TestHostileTokensInLogs: a stranger's token is logged as others show it.
func TestHostileTokensInLogs(t *testing.T) {
	for _, token := range []string{"\x1b[2J", "a\nb", "\u202eabc", "\xff", strings.Repeat("x", 100_000)} {
		inBubble(t, func(s *fixture) {
			log := &lines{}
			s.Config.Log = slog.New(log)
			s.must(s.mini.Set("lock:x", token))
			s.mini.SetTTL("lock:x", time.Hour)
			s.longWaits.Bound = time.Second
			stop := s.lock("x").WatchWait(nil)
			time.Sleep(2 * time.Second)
			stop()
			b := must.Get(views.Break(context.Background(), s.lock("x").AtServer(), views.BreakOptions{All: true}))(s)
			check.That(t, len(b.Holders) == 1 && len(log.list) == 2,
				"%d holders of %.20q were broken, lines %.400q", len(b.Holders), token, log.list)
			log.check(t)
		})
	}
}

// lines are what was logged, as a handler gets it that writes it as it is.
type lines struct {
	slog.Handler
	mu   sync.Mutex
	list []string
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	line := r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, line)
	return nil
}

// check checks that the lines are short and have no characters that cannot be printed.
func (l *lines) check(t *testing.T) {
	t.Helper()
	for _, line := range l.list {
		if len(line) > 400 || !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%d bytes: %.400q", len(line), line)
		}
	}
}

// TestHostileLabelsAreUnknown: a label that no keeper stores is not shown.
func TestHostileLabelsAreUnknown(t *testing.T) {
	inBubble(t, func(s *fixture) {
		h := s.hold("x")
		for label, want := range map[string]string{"ann": "ann", "\x1b[31mann": "", "ann\nroot": "", "\u202eann": "", strings.Repeat("x", 1e6): ""} {
			s.must(s.mini.Set(protocol.OwnerKey("lock:", s.ID()), label))
			list := must.Get(views.Holders(context.Background(), s.lock("x").AtServer()))(s)
			check.That(t, len(list) == 1 && list[0].Owner == want, "%.20q: %+.200v", label, list)
		}
		s.must(h.Release(context.Background()))
	})
}
