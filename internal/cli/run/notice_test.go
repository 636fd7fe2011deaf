package run

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

func TestNoticeText(t *testing.T) {
	for _, c := range []struct {
		list  []lockkeeper.Holder
		total int
		err   error
		want  string
	}{
		{nil, 0, nil, `waiting for "x" for 1m5s: it is free at the moment`},
		{nil, 0, context.DeadlineExceeded, `waiting for "x" for 1m5s: no answer from Redis`},
		{nil, 0, errors.New("lockkeeper: EOF"), `waiting for "x" for 1m5s: no answer from Redis: EOF`},
		{[]lockkeeper.Holder{{Keeper: "k", Fence: 7, ExpiresIn: 1500 * time.Millisecond}}, 1, nil, `waiting for "x" for 1m5s: held by keeper k with fence 7; the lease expires in 2s unless it is renewed`},
		{[]lockkeeper.Holder{{Token: "theirs", ExpiresIn: -1}}, 1, nil, `waiting for "x" for 1m5s: held by token theirs; the lease never expires`},
		{[]lockkeeper.Holder{{Keeper: "k", Fence: 7}}, 3, nil, `waiting for "x" for 1m5s: held by keeper k with fence 7 and 2 more`},
		{[]lockkeeper.Holder{{Keeper: "\x1b[2J\n"}}, 2, nil, `waiting for "x" for 1m5s: held by keeper "\x1b[2J\n" and 1 more`},
		{[]lockkeeper.Holder{{Token: "\x1b]0;a\x07"}}, 2, nil, `waiting for "x" for 1m5s: held by token "\x1b]0;a\a" and 1 more`},
		{nil, 0, errors.New("ERR \x1b[2J"), `waiting for "x" for 1m5s: no answer from Redis: ERR \x1b[2J`},
	} {
		n := notices{name: "x"}
		got := n.notice(c.list, c.total, c.err, 65*time.Second)
		check.That(t, got == c.want, "%q, want %q", got, c.want)
	}
	n := notices{name: "x", byClock: true}
	list := []lockkeeper.Holder{{Keeper: "k", Fence: 7, ExpiresIn: 1500 * time.Millisecond}}
	if got, want := n.notice(list, 1, nil, time.Second), `waiting for "x" for 1s: permits are taken by keeper k with fence 7; they return in 2s`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := n.notice(list, 3, nil, time.Second), `waiting for "x" for 1s: permits are taken by keeper k with fence 7 and 2 more`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
