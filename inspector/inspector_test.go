package inspector

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInvalidOptions(t *testing.T) {
	for says, o := range map[string]Options{
		"Server has 201 bytes":          {Server: strings.Repeat("x", 201)},
		"Title has 101 bytes":           {Title: strings.Repeat("x", 101)},
		"MaxNames -1 is not between":    {MaxNames: -1},
		"Interval 999ms is not between": {Interval: 999 * time.Millisecond},
		"Interval 1m1s is not between":  {Interval: 61 * time.Second},
	} {
		_, err := newHandler(newFake(), &o)
		check.That(t, errors.Is(err, lockkeeper.ErrInvalid) && strings.Contains(err.Error(), says), "%s: %v", says, err)
	}
	check.Is(t, check.ErrorOf(New(nil, nil)), lockkeeper.ErrInvalid, "the error")
}

// answer returns the answer to a GET.
func (h *testHandler) answer(url string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	h := serve(t, newFake(), Options{})
	for _, url := range []string{"/", "/lock?kind=fair&name=x", "/lock", "/break", "/style.css", "/inspector.js", "/nothing", "/events", "/?sort=x", "/../x"} {
		w := h.answer(url)
		for header, says := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'",
			"X-Content-Type-Options":  "nosniff",
			"Referrer-Policy":         "no-referrer",
			"Cache-Control":           "no-store",
			"Content-Type":            "charset=utf-8",
		} {
			if !strings.Contains(w.Header().Get(header), says) {
				t.Errorf("%s: %s is %q", url, header, w.Header().Get(header))
			}
		}
		csp := w.Header().Get("Content-Security-Policy")
		check.That(t, !strings.Contains(csp, "unsafe") && strings.Contains(csp, "frame-ancestors 'none'"), "%s: %s", url, csp)
		check.That(t, !regexp.MustCompile(`(?i)<script>|\sstyle=|\son[a-z]+=|javascript:`).MatchString(w.Body.String()),
			"%s has an inline script or style:\n%s", url, w.Body)
	}
	for _, m := range regexp.MustCompile(`(?:src|href)="((?:style|inspector)\.\w+\?v=\w+)"`).FindAllStringSubmatch(h.get("/", 200), -1) {
		if w := h.answer("/" + m[1]); w.Code != 200 || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", m[1], w.Code, w.Header())
		}
	}
}

func TestAuthorize(t *testing.T) {
	f := newFake()
	f.names(3)
	opts := byAnn
	opts.Authorize = func(r *http.Request) error { return errors.New("staff only <b>") }
	h := serve(t, f, opts)
	for _, url := range []string{"/", "/lock?kind=mutex&name=name-00001", "/break?kind=mutex&name=x&what=all", "/style.css", "/nothing"} {
		h.lacks(h.get(url, 403, "staff only"), "name-0", "staff only <b>")
	}
	h.get("/events?of=list", 403, "staff only")
	h.post("/break?kind=mutex&name=x&what=all", "reason=x", 403)
	check.That(t, f.looks() == 0 && len(f.broken) == 0 && len(f.inspects) == 0, "Redis was asked")
}

func TestMountedBelowPath(t *testing.T) {
	h := serve(t, newFake(), Options{})
	s := httptest.NewServer(http.StripPrefix("/ops/locks", h))
	defer s.Close()
	for _, path := range []string{"/ops/locks", "/ops/locks/", "/ops/locks/style.css", "/ops/locks/lock?kind=fair&name=x"} {
		r := must.Get(http.Get(s.URL + path))(t)
		_ = r.Body.Close()
		check.That(t, r.StatusCode == 200 && strings.HasPrefix(r.Request.URL.Path, "/ops/locks/"),
			"%s: %d at %s", path, r.StatusCode, r.Request.URL)
	}
	for _, m := range regexp.MustCompile(`(?:src|href|action)="([^"]*)"`).FindAllStringSubmatch(h.get("/", 200), -1) {
		check.That(t, !strings.HasPrefix(m[1], "/") && !strings.Contains(m[1], "://"), "%s is not relative", m[1])
	}
}

func TestBadRequests(t *testing.T) {
	h := serve(t, newFake(), byAnn)
	for _, url := range []string{
		"/?sort=size", "/?page=0", "/?page=x", "/?kind=lock", "/lock", "/lock?kind=fair", "/lock?name=x", "/lock?kind=x&name=x",
		"/lock?kind=fair&name=" + strings.Repeat("x", 1025), "/lock?kind=fair&name=x&queue=-1", "/?q=" + strings.Repeat("x", 1025), "/break?kind=x&name=x", "/events", "/events?of=x",
	} {
		h.get(url, 400)
	}
	h.get("/favicon.ico", 404)
	h.post("/", "", 405)
	h.post("/lock?kind=fair&name=x", "", 405)
	h.get("/?page=99", 200)
	h.get("/break?kind=fair&name=x&what=all", 409, "nothing was changed")
	h.get("/break?kind=fair&name=x&what=0123", 409, "has ended")
}

func TestListSortsAndFilters(t *testing.T) {
	f := newFake()
	f.entries = []admin.LockSummary{
		{Kind: "mutex", Name: "b", Holders: 1, ExpiresIn: -1},
		{Kind: "fair", Name: "a", Holders: 1, ExpiresIn: 3 * time.Second, Keeper: "k2", Owner: "web-1 billing", Waiters: 2, LongestWait: time.Hour},
		{Kind: "semaphore", Name: "c", Holders: 7, ExpiresIn: time.Second, Keeper: "k1", Owner: "batch", Waiters: 30, LongestWait: 90 * time.Second},
		{Kind: "rwlock", Name: "orders/1", Waiters: 1, LongestWait: time.Millisecond},
	}
	h := serve(t, f, Options{})
	for query, want := range map[string]string{
		"":                                 "c a orders/1 b", // what somebody waits for is first
		"sort=name":                        "a b c orders/1",
		"sort=owner":                       "b orders/1 c a",
		"sort=name&reverse=1":              "orders/1 c b a",
		"sort=kind":                        "a b orders/1 c",
		"sort=holders":                     "c a b orders/1",
		"sort=holders&reverse=1":           "orders/1 a b c",
		"sort=expires":                     "b a c orders/1",
		"sort=waiters":                     "c a orders/1 b",
		"sort=wait":                        "a c orders/1 b",
		"kind=mutex":                       "b",
		"q=order":                          "orders/1",
		"q=*1":                             "orders/1",
		"q=[ab]":                           "a b",
		"q=[ab]&sort=waiters&reverse=1":    "b a",
		"q=c&kind=fair":                    "",
		"q=%2A&kind=semaphore&sort=wait":   "c",
		"q=zzz":                            "",
		"q=" + url.QueryEscape("orders/?"): "orders/1",
	} {
		body := h.get("/?"+query, 200)
		var got []string
		for _, m := range regexp.MustCompile(`<bdi>([^<]*)</bdi>`).FindAllStringSubmatch(body, -1) {
			got = append(got, m[1])
		}
		check.That(t, strings.Join(got, " ") == want, "%s: %q, want %s", query, got, want)
	}
	h.get("/", 200, "4 names", "3 held", "33 waiters", "never", "1 h 00 min", "web-1 billing", "batch</span> <span class=\"soft\">and 6 more holders", "another library", `aria-sort="descending"`, `<form id="search" method="get" action="./"`, "<noscript>As of this request.", `scope="col"`, `scope="row"`)
	h.get("/?sort=name", 200, `aria-sort="ascending"`)
	h.get("/?q=zzz", 200, "No name matches")
	none := serve(t, newFake(), Options{}).get("/", 200, "No lock is held")
	check.That(t, !strings.Contains(none, "only its locks"), "%s", none)
	one := newFake()
	one.oneNode = true
	serve(t, one, Options{}).get("/", 200, "a node of a Cluster, and only its locks are shown")
}

func TestListSaysWhatTheProcessDoes(t *testing.T) {
	f := newFake()
	idle := serve(t, f, Options{}).get("/", 200)
	check.That(t, !strings.Contains(idle, "This process"), "%s", idle)
	f.process = lockkeeper.Stats{Leases: 1, Requests: 1200, Waiting: 7, Channels: 3}
	serve(t, f, Options{}).get("/", 200, "This process: 1 lease · 1,200 requests, 7 in queues</p>")
	f.process = lockkeeper.Stats{Channels: 3, Unsubscribed: 2, Silence: 90 * time.Second}
	serve(t, f, Options{}).get("/", 200, "0 requests, 0 in queues · 2 of 3 subscriptions not acknowledged · no answer from the server for 1 min 30 s</p>")
}

func TestLongListIsPaged(t *testing.T) {
	f := newFake()
	f.names(6000)
	h := serve(t, f, Options{})
	body := h.get("/", 200, "5,000 names", "there are more", "1–200 of 5,000", `rel="next"`)
	n := strings.Count(body, "<bdi>")
	check.That(t, n == namesPerPage, "%d rows", n)
	h.get("/?page=25", 200, "4,801–5,000 of 5,000", `rel="prev"`, "name-04999")
	h.get("/?page=999", 200, "4,801–5,000 of 5,000")
	h.get("/?q=name-0599", 200, "name-05990", "name-05999") // not among those that were read at first
	check.That(t, f.lists["*name-0599*"] == 1, "%v", f.lists)
}

func TestLockPage(t *testing.T) {
	f := newFake()
	i := f.queue(lockID{"fair", "orders:42"}, 1000)
	i.Waiters[0].HeartbeatAge = 1900 * time.Millisecond
	i.Waiters[1].HeartbeatAge, i.Waiters[1].Alive = 7*time.Second, false
	i.Waiters[2].Owner = ""
	i.Waiters[3].HeartbeatAge = 4 * time.Second // which is a sign of a frozen process
	h := serve(t, f, Options{})
	body := h.get("/lock?kind=fair&name=orders:42", 200, "orders:42", "web-1:11 billing", "1,000 wait for the holder", "15 s", " of 30 s", `width="50"`,
		"2026-11-27 01:00:00", "1795741200000000", "no heartbeat for 7 s", "silent for 4 s", "1 waiter does not respond", "unknown", "keeper aaaaaaaa", "1–100 of 1,000", "1 min 00 s")
	if n := strings.Count(body, `class="num place"`); n != 101 {
		t.Errorf("%d rows", n)
	}
	for _, sign := range []string{"no heartbeat", "silent for"} {
		n := strings.Count(body, sign)
		check.That(t, n == 1, "%d waiters with %s", n, sign)
	}
	h.get("/lock?kind=fair&name=orders:42&queue=10", 200, "901–1,000 of 1,000", "web-2:999 worker")
	h.get("/lock?kind=fair&name=other", 200, "Nobody holds it, and nobody waits.")
	h.lacks(body+h.get("/", 200), ":30000.6000", "Break") // tokens and buttons, on pages that are read-only
}

func TestForeignHolder(t *testing.T) {
	f := newFake()
	f.locks[lockID{"mutex", "x"}] = &admin.LockState{Holders: []lockkeeper.Holder{{Token: "redsync's", ExpiresIn: -1}}}
	h := serve(t, f, Options{})
	h.lacks(h.get("/lock?kind=mutex&name=x", 200, "another library", "never", "Nobody waits."), "redsync", "0001-01-01")
}

func TestSentences(t *testing.T) {
	read, write := lockkeeper.Holder{}, lockkeeper.Holder{Writes: true}
	r, w := lockkeeper.Waiter{}, lockkeeper.Waiter{Writes: true}
	type waiters = []lockkeeper.Waiter
	for want, i := range map[string]*admin.LockState{
		"1 writer is blocked by 2 read leases.":                                                       {Kind: "rwlock", Holders: []lockkeeper.Holder{read, read}, Waiters: waiters{w}},
		"1 writer and 2 readers are blocked by 1 read lease; readers wait because a writer does.":     {Kind: "rwlock", Holders: []lockkeeper.Holder{read}, Waiters: waiters{w, r, r}},
		"2 writers and 1 reader are blocked by a write lease.":                                        {Kind: "rwlock", Holders: []lockkeeper.Holder{write}, Waiters: waiters{w, w, r}},
		"1 reader is blocked by a write lease.":                                                       {Kind: "rwlock", Holders: []lockkeeper.Holder{write}, Waiters: waiters{r}},
		"One waits for the holder.":                                                                   {Kind: "mutex", Holders: []lockkeeper.Holder{{}}, Waiters: waiters{{}}},
		"Nobody holds it. The first waiter that responds is about to be granted it.":                  {Kind: "fair", Waiters: waiters{{}}},
		"1 waiter: the first wants 3 permits, and 2 of 10 are free.":                                  {Kind: "semaphore", Limits: &admin.Limits{Limit: 10, Used: 8}, Waiters: waiters{{Permits: 3}}},
		"1 waiter: the first wants 1 permit, and 0 of 5 are free. All 2 concurrent calls are in use.": {Kind: "ratelimit", Limits: &admin.Limits{Limit: 5, Used: 6, MaxConcurrent: 2, Held: 2}, Waiters: waiters{{Permits: 1}}},
		"2 calls wait for the end of the pause, in 30 s.":                                             {Kind: "ratelimit", Limits: &admin.Limits{Limit: 5, PausedFor: 30 * time.Second}, Waiters: waiters{{}, {}}},
		"The job has succeeded. It may be run again in 2 h 00 min.":                                   {Kind: "once", RunAgainIn: 2 * time.Hour},
		"The job has succeeded. The record of that never expires.":                                    {Kind: "once", RunAgainIn: -time.Millisecond},
		"Nobody waits.":                      {Kind: "ratelimit", Limits: &admin.Limits{Limit: 5, Used: 6}},
		"Nobody holds it, and nobody waits.": {Kind: "ratelimit", Limits: &admin.Limits{Limit: 5}},
	} {
		got := sentence(i)
		check.That(t, got == want, "%q, want %q", got, want)
	}
}

func TestLimits(t *testing.T) {
	f := newFake()
	f.locks[lockID{"ratelimit", "api"}] = &admin.LockState{Kind: "ratelimit", Limits: &admin.Limits{Limit: 100, Used: 40, Window: time.Minute, MaxConcurrent: 8, Held: 5}}
	h := serve(t, f, Options{})
	body := h.get("/lock?kind=ratelimit&name=api", 200, "40 of 100 permits used in the last 1 min", "5 of 8 concurrent calls", `width="40"`)
	h.lacks(body, "<figure>") // of one sample
	at := time.Now()
	p := newPlot([]sample{{at, 0, 10}, {at.Add(time.Second), 10, 10}, {at.Add(60 * time.Second), 5, 10}, {at.Add(61 * time.Second), 20, 10}})
	if p.Line != "M478 80H480V42M598 61H600V4" || p.LimitY != 42 || p.Top != "20" || !strings.Contains(p.Label, "between 0 and 20") {
		t.Errorf("%+v", p)
	}
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "< 1 s", 999 * time.Millisecond: "< 1 s", 1500 * time.Millisecond: "1 s", 59 * time.Second: "59 s", 61 * time.Second: "1 min 01 s",
		3600 * time.Second: "1 h 00 min", 25*time.Hour + time.Minute: "1 d 01 h", 400 * 24 * time.Hour: "400 d 00 h",
	} {
		got := duration(d)
		check.That(t, got == want, "%v: %s, want %s", d, got, want)
	}
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		got := number(n)
		check.That(t, got == want, "%d: %s", n, got)
	}
}

// FuzzNames checks that any name is shown without harm, and that the link of its row leads to it.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"orders:42", `"><script>alert(1)</script>`, "a\x00b\n", "\xff\xfe", "\u202egnp.exe", "  x  ", "a?b&c=d#e%2F", "é日本語", "{tag}x", strings.Repeat("長", 300), "'`\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if name == "" || len(name) > 1024 {
			return
		}
		src := newFake()
		src.entries = []admin.LockSummary{{Kind: "fair", Name: name, Waiters: 1}}
		src.queue(lockID{"fair", name}, 1)
		h := serve(t, src, Options{AllowBreak: func(*http.Request) (string, error) { return name, nil }})
		get := func(url string) string {
			body := h.get(url, 200)
			h.lacks(body, "<script>")
			if !utf8.ValidString(body) || strings.ContainsFunc(body, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("%s:\n%q", url, body)
			}
			return body
		}
		link := func(body, page string) string {
			m := regexp.MustCompile(`(?:href|action)="(` + page + `\?[^"]*)"`).FindStringSubmatch(body)
			must.That(t, m != nil, "no link to %s:\n%s", page, body)
			u, err := url.Parse(html.UnescapeString(m[1]))
			if err != nil || u.Query().Get("name") != name {
				t.Fatalf("%s leads to %q, %v", m[1], u.Query().Get("name"), err)
			}
			return "/" + html.UnescapeString(m[1])
		}
		page := get(link(get("/"), "lock"))
		link(get(link(page, "break")), "break") // the form
		check.That(t, src.inspects[lockID{"fair", name}] != 0 && len(src.inspects) == 1, "%q was looked at", fmt.Sprint(src.inspects))
	})
}

// A lease that was just handed over lasts for the heartbeat timeout until it is renewed, which is no sign of trouble.
func TestLeaseFreshFromHandOffIsNotLow(t *testing.T) {
	f := newFake()
	i := f.queue(lockID{"fair", "x"}, 0)
	i.Holders[0].ExpiresIn, i.Holders[0].Unconfirmed = 4500*time.Millisecond, true
	h := serve(t, f, Options{})
	h.lacks(h.get("/lock?kind=fair&name=x", 200, " of 6 s, new", `width="75"`), "bar low")
	i.Holders[0].Unconfirmed = false
	serve(t, f, Options{}).get("/lock?kind=fair&name=x", 200, " of 30 s", "bar low")
}
