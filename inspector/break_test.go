package inspector

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// byAnn lets Ann break locks.
var byAnn = Options{AllowBreak: func(*http.Request) (string, error) { return "ann", nil }}

func TestBreak(t *testing.T) {
	f := newFake()
	i := f.queue(lockID{"fair", "x"}, 3)
	h := serve(t, f, byAnn)
	page := h.get("/lock?kind=fair&name=x", 200, "Break…", "Break all…", "Remove…")
	links := regexp.MustCompile(`href="(break[^"]*)"`).FindAllStringSubmatch(page, -1)
	must.That(t, len(links) == 5, "links: %q", links)
	for n, c := range map[int]struct {
		asks string
		says []string
		want admin.BreakOptions
	}{
		0: {"End 1 lease?", []string{"Ended 1 lease."}, admin.BreakOptions{Token: i.Holders[0].Token}},
		1: {"Remove 1 waiter?", []string{"Removed 1 waiter from the queue."}, admin.BreakOptions{Token: i.Waiters[0].Token}},
		4: {
			"End 1 lease and remove 3 waiters?",
			[]string{"Ended 1 lease, and removed 3 waiters", "3 of them could not be told", "for up to 15 s", "fences"},
			admin.BreakOptions{All: true},
		},
	} {
		f.broken = nil
		link := "/" + html.UnescapeString(links[n][1])
		h.get(link, 200, c.asks, "<strong>ann</strong>", `action="`+links[n][1]+`"`)
		h.post(link, "reason=+", 400, "Enter a reason")
		h.post(link, "reason="+strings.Repeat("x", 201), 400, "longer than 200")
		h.post(link, "reason=a%00b", 400, "cannot be printed")
		check.That(t, len(f.broken) == 0, "broken without a reason")
		h.post(link, "reason=+hangs+", 200, c.says...)
		c.want.Reason, c.want.By = "hangs", "ann"
		check.That(t, len(f.broken) == 1 && f.broken[0] == c.want, "%+v, want %+v", f.broken, c.want)
	}
	if log := h.log.String(); strings.Count(log, "a lock was broken") != 3 || !strings.Contains(log, "by=ann reason=hangs holders=1 waiters=3 notified=1") {
		t.Error(log)
	}
}

func TestBreakRefused(t *testing.T) {
	f := newFake()
	f.queue(lockID{"fair", "x"}, 2)
	const link = "/break?kind=fair&name=x&what=all"
	h := serve(t, f, Options{AllowBreak: func(*http.Request) (string, error) { return "", errors.New("only operators may break locks") }})
	h.lacks(h.get("/lock?kind=fair&name=x", 200), "Break")
	h.get(link, 403, "only operators")
	h.post(link, "reason=x", 403, "only operators")
	ann := serve(t, f, byAnn)
	for header, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"} {
		r := posted(link, "reason=x")
		r.Header.Del("Sec-Fetch-Site")
		r.Header.Set(header, value)
		ann.do(r, 403, "cross-origin")
	}
	if log := h.log.String() + ann.log.String(); strings.Count(log, "was refused") != 4 {
		t.Error(log)
	}
	readOnly := serve(t, f, Options{})
	readOnly.get(link, 403, "read-only")
	readOnly.post(link, "reason=x", 403, "read-only")
	check.That(t, len(f.broken) == 0, "%+v", f.broken)
	f.set(func() { f.err = errors.New("no answer") })
	ann.post(link, "reason=x", 500, "no answer")
}

// taking is a request whose permits return by the clock in d.
func taking(owner string, n int, serial int, d time.Duration) lockkeeper.Holder {
	return lockkeeper.Holder{
		Token: fmt.Sprintf("k-%s:%d:300000.6000c%d", owner, serial, n), Keeper: "k-" + owner, Owner: owner, Fence: 1795741200000000, ExpiresIn: d, Permits: n,
	}
}

func TestPermitsThatReturnByTheClockAreNotBroken(t *testing.T) {
	f := newFake()
	id := lockID{"ratelimit", "api"}
	i := &admin.LockState{Kind: "ratelimit", Name: "api", Limits: &admin.Limits{Limit: 100, Used: 61, Window: 6 * time.Second}}
	for n := range 60 {
		i.Holders = append(i.Holders, taking("web-1", 1, n, time.Duration(n)*50*time.Millisecond))
	}
	i.Holders = append(i.Holders, taking("web-2", 3, 1, 5*time.Second))
	f.locks[id] = i
	h := serve(t, f, byAnn)
	const page = "/lock?kind=ratelimit&name=api"
	body := h.get(page, 200, "61 requests in the last 6 s", "Permits by owner", "web-1", "web-2",
		`<td class="num">60</td>`, `5 s<span class="soft of"> of 6 s`)
	if n := strings.Count(body, "<tr data-key"); n != 2 {
		t.Errorf("%d rows, want one for each owner", n)
	}
	h.lacks(body, "5 min", "break?", "Holders") // nobody holds a lease
	h.post("/break?kind=ratelimit&name=api&what=all", "reason=x", 409, "cannot be ended", "nothing was changed")
	h.post("/break?kind=ratelimit&name=api&what="+holderRef(i.Holders[0]), "reason=x", 409, "nothing was changed")

	// The queue, which is what matters, comes first, and only waiters can be removed.
	queued := *i
	queued.Waiters = []lockkeeper.Waiter{{Token: token("k-web-3", 1), Owner: "web-3", Alive: true}}
	f.set(func() { f.locks[id] = &queued })
	h = serve(t, f, byAnn)
	body = h.get(page, 200, "Remove all waiters…")
	check.That(t, strings.Index(body, "web-3") <= strings.Index(body, "web-1"), "the queue is below the permits")
	h.get("/break?kind=ratelimit&name=api&what=all", 200, "Remove 1 waiter?")
}

// A lease that has ended by itself before it is broken is not listed as ended, and nobody was told.
func TestBreakOfWhatHasEndedSaysSo(t *testing.T) {
	f := newFake()
	f.queue(lockID{"fair", "x"}, 0)
	f.nothing = true
	h := serve(t, f, byAnn)
	h.lacks(h.post("/break?kind=fair&name=x&what=all", "reason=x", 200, "Nothing was changed"), "web-1:11", "sent a message")
}
