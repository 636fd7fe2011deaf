package output

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

func TestNamesAreSafeForTerminals(t *testing.T) {
	for name, want := range map[string]string{
		"orders:42":       "orders:42",
		"räksmörgås/日本":   "räksmörgås/日本",
		`back\slash`:      `back\slash`,
		"":                `""`,
		"nbsp\u00a0":      `"nbsp\u00a0"`,
		"\x1b[2Jclear":    `"\x1b[2Jclear"`,
		"\u202egnp.exe":   `"\u202egnp.exe"`,
		"zero\u200bwidth": `"zero\u200bwidth"`,
		"csi\u009b31m":    `"csi\u009b31m"`,
		"invalid\xff":     `"invalid\xff"`,
		"replaced\ufffd":  `"replaced�"`,
		`"quoted"`:        `"\"quoted\""`,
		`in"side`:         `in"side`,
		"tag\U000e0041":   `"tag\U000e0041"`,
	} {
		got := Name(name)
		check.That(t, got == want, "%q is shown as %s, want %s", name, got, want)
	}
	for text, want := range map[string]string{"web-1:4711 invoiced": "web-1:4711 invoiced", "a\tb": `"a\tb"`, "": ""} {
		got := Text(text)
		check.That(t, got == want, "%q is shown as %s, want %s", text, got, want)
	}
}

func FuzzNamesAreSafeAndDistinct(f *testing.F) {
	f.Add("a", `"a"`)
	f.Add("a b", "\x1b]0;x\a")
	f.Fuzz(func(t *testing.T, a, b string) {
		check.That(t, (Name(a) == Name(b)) == (a == b), "%q and %q are shown as %s and %s", a, b, Name(a), Name(b))
		for _, r := range Name(a) {
			if r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e {
				t.Errorf("%q is shown with %U", a, r)
			}
		}
	})
}

func TestDocsOfVersions(t *testing.T) {
	const pseudo = "v0.0.0-20261122063000-0123456789ab"
	for version, want := range map[string]string{"v1.2.3": "v1.2.3", "": "main", "(devel)": "main", pseudo: "main", "v1.2.3+dirty": "main"} {
		got := docsRef(version)
		check.That(t, got == want, "the documentation of %q is at %s, want %s", version, got, want)
	}
}

func TestWidthsOfText(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "日本": 4, "e\u0301": 1, "한국": 4, "🔒x": 3, "…": 1, "ｆ": 2} {
		got := Width(text)
		check.That(t, got == want, "the width of %q is %d, want %d", text, got, want)
	}
	for _, c := range []struct {
		text    string
		columns int
		want    string
	}{
		{"orders", 6, "orders"}, {"orders", 5, "orde…"}, {"orders", 1, "…"}, {"orders", 0, ""}, {"日本語", 5, "日本…"}, {"日本語", 4, "日…"},
		{"e\u0301e\u0301e\u0301", 2, "e\u0301…"}, {"orders", -1, ""},
	} {
		got := Cut(c.text, c.columns)
		check.That(t, got == c.want && Width(got) <= max(c.columns, 0), "%q in %d columns is %q, want %q", c.text, c.columns, got, c.want)
	}
}

func TestDurationsForPeople(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ms", 999 * time.Microsecond: "0ms", 35 * time.Millisecond: "35ms", 999 * time.Millisecond: "999ms", 4290 * time.Millisecond: "4.2s",
		42 * time.Second: "42s", time.Minute: "1m", 90 * time.Second: "1m30s", time.Hour: "1h", 5*time.Hour + 2*time.Minute + 9*time.Second: "5h2m",
		76 * time.Hour: "3d4h", -time.Second: "-1.0s",
	} {
		got := Duration(d)
		check.That(t, got == want, "%v is shown as %s, want %s", d, got, want)
	}
	if got := Expiry(-1); got != "never" {
		t.Error(got)
	}
}

func TestBlockedByNamesWhatAWaiterWaitsFor(t *testing.T) {
	type (
		holders = []lockkeeper.Holder
		waiters = []lockkeeper.Waiter
	)
	read, write := lockkeeper.Holder{}, lockkeeper.Holder{Writes: true}
	for name, c := range map[string]struct {
		i    admin.LockState
		want string
	}{
		"mutex":            {admin.LockState{Kind: "mutex", Holders: make(holders, 1), Waiters: make(waiters, 3)}, "the holder; the holder, 1 waiter ahead; the holder, 2 waiters ahead"},
		"mutex_being_free": {admin.LockState{Kind: "fair", Waiters: make(waiters, 2)}, "; 1 waiter ahead"},
		"writer_by_readers": {
			admin.LockState{Kind: "rwlock", Holders: holders{read, read, read}, Waiters: waiters{{Writes: true}, {Writes: true}, {}}},
			"3 readers; 3 readers, 1 waiter ahead; 2 writers ahead",
		},
		"reader_by_writer": {admin.LockState{Kind: "rwlock", Holders: holders{write}, Waiters: waiters{{Writes: true}, {}}}, "the writer that holds it; the writer that holds it"},
		"semaphore": {
			admin.LockState{Kind: "semaphore", Limits: &admin.Limits{Limit: 5, Used: 3}, Holders: make(holders, 2), Waiters: waiters{{Permits: 3}, {Permits: 1}}},
			"the limit: it needs 3, 2 of 5 free; 1 waiter ahead",
		},
		"lowered_limit": {admin.LockState{Kind: "semaphore", Limits: &admin.Limits{Limit: 2, Used: 3}, Waiters: waiters{{Permits: 1}}}, "the limit: it needs 1, 0 of 2 free"},
		"rate_limit": {
			admin.LockState{Kind: "ratelimit", Limits: &admin.Limits{Limit: 9, Used: 3, MaxConcurrent: 2, Held: 2}, Waiters: waiters{{Permits: 1}}},
			"the concurrent permits: it needs 1, 0 of 2 free",
		},
		"semaphore_without_limits": {admin.LockState{Kind: "semaphore", Holders: make(holders, 2), Waiters: make(waiters, 1)}, "2 holders"},
	} {
		got := strings.Join(BlockedBy(&c.i), "; ")
		check.That(t, got == c.want, "%s: %q, want %q", name, got, c.want)
	}
}

func TestJSONHasDocumentedFields(t *testing.T) {
	for _, c := range []struct {
		value any
		want  string
	}{
		{
			NewEntry(admin.LockSummary{Kind: "fair", Name: "a<b>", Holders: 1, Waiters: 2, ExpiresIn: 1500 * time.Microsecond, LongestWait: time.Second}),
			`{"kind":"fair","name":"a<b>","holders":1,"waiters":2,"expires_in_ms":1,"longest_wait_ms":1000}`,
		},
		{
			NewEntry(admin.LockSummary{Kind: "mutex", Name: "x\xff", Holders: 1, ExpiresIn: -1}),
			`{"kind":"mutex","name":"x\ufffd","name_base64":"eP8=","holders":1,"waiters":0,"expires_in_ms":-1,"longest_wait_ms":0}`,
		},
		{
			NewInspection(&admin.LockState{
				Kind: "rwlock", Name: "n", Fence: 7,
				Holders: []lockkeeper.Holder{{Token: "t", Keeper: "k", Owner: "o", Since: time.UnixMicro(1500), Fence: 7, ExpiresIn: time.Second, Writes: true}},
				Waiters: []lockkeeper.Waiter{{Token: "u", WaitTime: time.Second, Alive: true, HeartbeatAge: 1500 * time.Millisecond}},
			}),
			`{"kind":"rwlock","name":"n","fence":7,"holders":[{"token":"t","keeper":"k","owner":"o","since":"1970-01-01T00:00:00.0015Z","fence":7,"expires_in_ms":1000,"mode":"write"}],` +
				`"waiters":[{"token":"u","keeper":"","owner":"","wait_ms":1000,"alive":true,"mode":"read","blocked_by":"the writer that holds it","heartbeat_age_ms":1500}]}`,
		},
		{
			NewInspection(&admin.LockState{Kind: "ratelimit", Name: "n", Limits: &admin.Limits{Limit: 5, Used: 2, Window: time.Second, MaxConcurrent: 3, Held: 1}}),
			`{"kind":"ratelimit","name":"n","fence":0,"limits":{"limit":5,"used":2,"window_ms":1000,"max_concurrent":3,"held":1},"holders":[],"waiters":[]}`,
		},
	} {
		var b strings.Builder
		err := JSON(&b, c.value)
		check.That(t, err == nil && b.String() == c.want+"\n", "%v\n%swant\n%s", err, b.String(), c.want)
	}
}

func TestTablesLeaveOutEmptyColumns(t *testing.T) {
	got := Table([][]string{{"A", "EMPTY", "NAME"}, {"日本", "", "x"}, {"b", "", "yy"}})
	want := "A     NAME\n日本  x\nb     yy\n"
	check.That(t, got == want, "%q, want %q", got, want)
	if got := HolderTable(&admin.LockState{Limits: &admin.Limits{Window: 1}}) + WaiterTable(&admin.LockState{}); got != "" {
		t.Errorf("%q", got)
	}
}

// TestHostileText: what others have written cannot move the cursor, add lines, or fill the screen.
func TestHostileText(t *testing.T) {
	for _, s := range []string{"\x1b[2J", "a\nb", "\u202eabc", "\u200b", "\xff", "\u009b31m", strings.Repeat("x", 1e6), strings.Repeat("\x1b", 1e6)} {
		for what, shown := range map[string]string{"name": Name(s), "text": Text(s), "who": Who(s, ""), "keeper": Who("", s), "error": Message(errors.New(s))} {
			if len(shown) > 5*maxShown || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) && (what != "error" || r != '\n') }) {
				t.Errorf("%s of %.20q: %.40q, %d bytes", what, s, shown, len(shown))
			}
		}
	}
}
