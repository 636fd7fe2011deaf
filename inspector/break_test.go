package inspector

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
)

// allow lets everybody break locks whose request has a user.
func allow(r *http.Request) (string, error) {
	if user := r.Header.Get("X-User"); user != "" {
		return user, nil
	}
	return "", errors.New("only operators may break locks")
}

func asAnn(method, url, form string) *http.Request {
	r := httptest.NewRequest(method, url, strings.NewReader(form))
	r.Header.Set("X-User", "ann")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

func TestBreak(t *testing.T) {
	f := newFake()
	i := f.queue(lockID{"fair", "x"}, 3)
	h := serve(t, f, Options{AllowBreak: allow})
	page := h.do(asAnn("GET", "/lock?kind=fair&name=x", ""), 200, "Break…", "Break all…", "Remove…")
	links := regexp.MustCompile(`href="(break[^"]*)"`).FindAllStringSubmatch(page, -1)
	if len(links) != 5 {
		t.Fatalf("links: %q", links)
	}
	for n, c := range map[int]struct {
		asks, says string
		want       admin.BreakOptions
	}{
		0: {"End 1 lease?", "Ended 1 lease.", admin.BreakOptions{Token: i.Holders[0].Token}},
		1: {"Remove 1 waiter?", "Removed 1 waiter from the queue.", admin.BreakOptions{Token: i.Waiters[0].Token}},
		4: {"End 1 lease and remove 3 waiters?", "Ended 1 lease, and removed 3 waiters", admin.BreakOptions{All: true}},
	} {
		link := "/" + strings.ReplaceAll(links[n][1], "&amp;", "&")
		form := h.do(asAnn("GET", link, ""), 200, c.asks, "<strong>ann</strong>")
		action := regexp.MustCompile(`action="([^"]*)"`).FindStringSubmatch(form)
		if action == nil || "/"+strings.ReplaceAll(action[1], "&amp;", "&") != link {
			t.Errorf("the form of %s is sent to %q", link, action)
		}
		f.broken = nil
		h.do(asAnn("POST", link, "reason=+"), 400, "Enter a reason")
		h.do(asAnn("POST", link, "reason="+strings.Repeat("x", 201)), 400, "longer than 200")
		h.do(asAnn("POST", link, "reason=a%00b"), 400, "cannot be printed")
		if len(f.broken) > 0 {
			t.Error("broken without a reason")
		}
		h.do(asAnn("POST", link, "reason=+hangs+"), 200, c.says)
		c.want.Reason, c.want.By = "hangs", "ann"
		if len(f.broken) != 1 || f.broken[0] != c.want {
			t.Errorf("%+v, want %+v", f.broken, c.want)
		}
	}
	if log := h.log.String(); strings.Count(log, "a lock was broken") != 3 || !strings.Contains(log, "by=ann reason=hangs holders=1 waiters=3 notified=1") {
		t.Error(log)
	}
}

func TestBreakSaysWhatMayStillHappen(t *testing.T) {
	f := newFake()
	f.queue(lockID{"fair", "x"}, 2)
	h := serve(t, f, Options{AllowBreak: allow})
	h.do(asAnn("POST", "/break?kind=fair&name=x&what=all", "reason=x"), 200, "2 of them could not be told", "for up to 15 s", "fences")
}

func TestBreakRefused(t *testing.T) {
	f := newFake()
	f.queue(lockID{"fair", "x"}, 2)
	const link = "/break?kind=fair&name=x&what=all"
	h := serve(t, f, Options{AllowBreak: allow})
	if strings.Contains(h.get("/lock?kind=fair&name=x", 200), "Break") {
		t.Error("a user who may not break has a button")
	}
	h.get(link, 403, "only operators")
	h.post(link, "reason=x", 403, "only operators")
	for header, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "http://evil.example"} {
		r := asAnn("POST", link, "reason=x")
		r.Header.Del("Sec-Fetch-Site")
		r.Header.Set(header, value)
		h.do(r, 403, "cross-origin")
	}
	if n := strings.Count(h.log.String(), "was refused"); n != 4 {
		t.Errorf("%d lines:\n%s", n, h.log)
	}
	readOnly := serve(t, f, Options{})
	readOnly.do(asAnn("GET", link, ""), 403, "read-only")
	readOnly.do(asAnn("POST", link, "reason=x"), 403, "read-only")
	if len(f.broken) > 0 {
		t.Errorf("%+v", f.broken)
	}
	f.set(func() { f.err = errors.New("no answer") })
	h.do(asAnn("POST", link, "reason=x"), 500, "no answer")
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
	f.set(func() { f.locks[id] = i })
	h := serve(t, f, Options{AllowBreak: allow})
	const page = "/lock?kind=ratelimit&name=api"
	body := h.do(asAnn("GET", page, ""), 200, "61 requests in the last 6 s", "Permits by owner", "web-1", "web-2", `<td class="num">60</td>`, "5 s<span class=\"soft of\"> of 6 s")
	if n := strings.Count(body, "<tr data-key"); n != 2 {
		t.Errorf("%d rows, want one for each owner", n)
	}
	if strings.Contains(body, "5 min") || strings.Contains(body, "break?") || strings.Contains(body, "Holders") {
		t.Errorf("permits that nobody holds are shown as leases:\n%s", body)
	}
	h.do(asAnn("POST", "/break?kind=ratelimit&name=api&what=all", "reason=x"), 409, "cannot be ended", "nothing was changed")
	h.do(asAnn("POST", "/break?kind=ratelimit&name=api&what="+holderRef(i.Holders[0]), "reason=x"), 409, "nothing was changed")

	// The queue, which is what matters, comes first, and only waiters can be removed.
	i = &admin.LockState{Kind: i.Kind, Name: i.Name, Limits: i.Limits, Holders: i.Holders, Waiters: []lockkeeper.Waiter{{Token: token("k-web-3", 1), Owner: "web-3", Alive: true}}}
	f.set(func() { f.locks[id] = i })
	other := serve(t, f, Options{AllowBreak: allow})
	body = other.do(asAnn("GET", page, ""), 200, "Remove all waiters…")
	if strings.Index(body, "web-3") > strings.Index(body, "web-1") {
		t.Error("the queue is below the permits")
	}
	other.do(asAnn("GET", "/break?kind=ratelimit&name=api&what=all", ""), 200, "Remove 1 waiter?")
}

// A lease that has ended by itself before it is broken is not listed as ended, and nobody was told.
func TestBreakOfWhatHasEndedSaysSo(t *testing.T) {
	f := newFake()
	f.queue(lockID{"fair", "x"}, 0)
	f.nothing = true
	body := serve(t, f, Options{AllowBreak: allow}).do(asAnn("POST", "/break?kind=fair&name=x&what=all", "reason=x"), 200, "Nothing was changed")
	if strings.Contains(body, "web-1:11") || strings.Contains(body, "sent a message") {
		t.Error(body)
	}
}
