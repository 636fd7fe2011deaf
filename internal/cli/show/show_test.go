package show

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

func TestTextOfLocks(t *testing.T) {
	since := time.Date(2026, 11, 23, 1, 2, 3, 0, time.UTC)
	for _, c := range []struct {
		lock admin.LockState
		want string
	}{
		{admin.LockState{Kind: "fair", Name: "a b", Fence: 7}, "fair \"a b\": 0 holders, 0 waiters, last fence 7\n"},
		{
			admin.LockState{
				Kind: "rwlock", Name: "catalogue", Fence: 9,
				Holders: []lockkeeper.Holder{
					{Token: "k1:1:30000", Keeper: "k1", Owner: "web-1:10 reader", Since: since, Fence: 8, ExpiresIn: 25 * time.Second},
					{Token: "k2:1:30000", Keeper: "k2", Since: since, Fence: 9, ExpiresIn: 1500 * time.Millisecond},
				},
				Waiters: []lockkeeper.Waiter{
					{Token: "k3:1:30000", Keeper: "k3", Owner: "web-3:\x1b[31m", WaitTime: 90 * time.Second, Alive: true, HeartbeatAge: 1200 * time.Millisecond, Writes: true},
					{Token: "k4:1:30000", Keeper: "k4", Owner: "web-4", WaitTime: 20 * time.Millisecond, HeartbeatAge: 7 * time.Second},
				},
			},
			`rwlock catalogue: 2 holders, 2 waiters, last fence 9

HOLDER           MODE  SINCE                 EXPIRES IN  FENCE  TOKEN
web-1:10 reader  read  2026-11-23 01:02:03Z  25s         8      k1:1:30000
keeper k2        read  2026-11-23 01:02:03Z  1.5s        9      k2:1:30000

WAITER            MODE   WAITS  ALIVE  HEARTBEAT  BLOCKED BY      TOKEN
"web-3:\x1b[31m"  write  1m30s  yes    1.2s ago   2 readers       k3:1:30000
web-4             read   20ms   no     7.0s ago   1 writer ahead  k4:1:30000
`,
		},
		{
			admin.LockState{
				Kind: "ratelimit", Name: "api", Limits: &admin.Limits{Limit: 100, Used: 99, Window: time.Minute, MaxConcurrent: 10, Held: 2},
				Holders: []lockkeeper.Holder{{Token: "t", Keeper: "k", Owner: "o", Since: since, Fence: 1, ExpiresIn: time.Minute, Permits: 2}},
			},
			`ratelimit api: 1 holder, 0 waiters
permits: 99 of 100 used in 1m, 2 of 10 held

HOLDER  PERMITS  SINCE                 EXPIRES IN  FENCE  TOKEN
o       2        2026-11-23 01:02:03Z  1m          1      t
`,
		},
		{
			admin.LockState{
				Kind: "ratelimit", Name: "api", Limits: &admin.Limits{Limit: 4, Used: 4, Window: 6 * time.Second},
				Holders: []lockkeeper.Holder{
					{Token: "a:1:300000.6000c1", Keeper: "a", Owner: "web-1", Since: since, Fence: 1, ExpiresIn: 2 * time.Second, Permits: 1},
					{Token: "b:1:300000.6000c1", Keeper: "b", Since: since, Fence: 1, ExpiresIn: 3 * time.Second, Permits: 1},
					{Token: "a:2:300000.6000c2", Keeper: "a", Owner: "web-1", Since: since, Fence: 1, ExpiresIn: 5 * time.Second, Permits: 2, Ahead: true},
				},
				Waiters: []lockkeeper.Waiter{{Token: "t", Keeper: "k", Owner: "o", Alive: true, Permits: 1}},
			},
			`ratelimit api: 3 requests, 1 waiter
permits: 4 of 4 used in 6.0s

WAITER  PERMITS  WAITS  ALIVE  HEARTBEAT  BLOCKED BY                          TOKEN
o       1        0ms    yes    0ms ago    the limit: it needs 1, 0 of 4 free  t

TAKEN BY  PERMITS  AHEAD  REQUESTS  FIRST RETURN  LAST RETURN
web-1     3        2      2         2.0s          5.0s
keeper b  1               1         3.0s          3.0s
`,
		},
		{
			admin.LockState{
				Kind: "ratelimit", Name: "api", Limits: &admin.Limits{Limit: 9, Used: 1, Window: time.Minute, PausedFor: 90 * time.Second},
				Waiters: []lockkeeper.Waiter{{Token: "t", Keeper: "k", Owner: "o", Alive: true, Permits: 1}},
			},
			`ratelimit api: 0 requests, 1 waiter
permits: 1 of 9 used in 1m, paused for another 1m30s

WAITER  PERMITS  WAITS  ALIVE  HEARTBEAT  BLOCKED BY  TOKEN
o       1        0ms    yes    0ms ago    the pause   t
`,
		},
		{
			admin.LockState{Kind: "once", Name: "report", RunAgainIn: time.Hour},
			`once report: 0 holders, 0 waiters
the job has succeeded; it may be run again in 1h
`,
		},
		{
			admin.LockState{Kind: "once", Name: "report", RunAgainIn: -1},
			`once report: 0 holders, 0 waiters
the job has succeeded; the record of that never expires
`,
		},
		{
			admin.LockState{Kind: "mutex", Name: "shared", Holders: []lockkeeper.Holder{{Token: "foreign token", ExpiresIn: -1}}},
			`mutex shared: 1 holder, 0 waiters

HOLDER           EXPIRES IN  TOKEN
another library  never       "foreign token"
`,
		},
	} {
		got := text(&c.lock)
		check.That(t, got == c.want, "\n%swant\n%s", got, c.want)
	}
}
