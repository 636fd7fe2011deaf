package browsertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/fair"
	"github.com/lockkeeper/lockkeeper/inspector"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
	"github.com/redis/go-redis/v9"
)

// site is a server of the pages, and the locks that they show.
type site struct {
	*testing.T
	locks *lockkeepertest.Server
	http  *httptest.Server
	url   string
}

// newSite starts a server that has the pages. What happens to the processes of lockkeepertest does not affect it.
func newSite(t *testing.T, opts *inspector.Options) *site {
	t.Helper()
	s := &site{T: t, locks: lockkeepertest.New(t)}
	rdb := redis.NewClient(must.Get(redis.ParseURL(s.locks.URL(t)))(t))
	k := must.Get(lockkeeper.New(rdb, nil))(t)
	t.Cleanup(func() {
		_ = k.Close()
		_ = rdb.Close()
	})
	s.serve(k, opts)
	return s
}

// serve serves the pages below a path, as a program mounts them.
func (s *site) serve(k *lockkeeper.Keeper, opts *inspector.Options) {
	s.Helper()
	h := must.Get(inspector.New(k, opts))(s)
	mux := http.NewServeMux()
	mux.Handle("/ops/locks/", http.StripPrefix("/ops/locks", h))
	s.http = httptest.NewServer(mux)
	s.Cleanup(func() {
		h.Close()
		s.http.Close()
	})
	s.url = s.http.URL + "/ops/locks/"
}

// keeper returns a keeper that stands for a process of its own.
func (s *site) keeper(owner string) *lockkeeper.Keeper {
	s.Helper()
	return s.locks.Keeper(s.T, &lockkeeper.Options{Owner: owner, HeartbeatInterval: 200 * time.Millisecond, HeartbeatTimeout: time.Second})
}

// holds acquires a lock and releases it at the end of the test, if it is still held.
func (s *site) holds(lock func(context.Context) (*lockkeeper.Lease, error)) *lockkeeper.Lease {
	s.Helper()
	lease := must.Get(lock(s.Context()))(s)
	s.Cleanup(func() { _ = lease.Release(context.Background()) })
	return lease
}

// waits queues for a lock, and returns a channel for the outcome. At the end of the test it leaves the queue.
func (s *site) waits(lock func(context.Context) (*lockkeeper.Lease, error)) <-chan error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		lease, err := lock(ctx)
		done <- err
		if err == nil {
			<-ctx.Done()
			_ = lease.Release(context.Background())
		}
	}()
	s.Cleanup(func() {
		cancel()
		<-ended
	})
	return done
}

// lock acquires a fair lock, and wait queues for one.
func (s *site) lock(k *lockkeeper.Keeper, name string) *lockkeeper.Lease {
	s.Helper()
	return s.holds(must.Get(fair.New(k, name, nil))(s).Lock)
}

func (s *site) wait(k *lockkeeper.Keeper, name string) <-chan error {
	s.Helper()
	return s.waits(must.Get(fair.New(k, name, nil))(s).Lock)
}

// A lock appears in the list, changes hands on its page, and disappears, without a reload.
func TestPageFollowsLock(t *testing.T) {
	s := newSite(t, nil)
	p := newTab(t, 1000, 800)
	p.open(s.url)
	p.waitFor("No lock is held")
	alice := s.lock(s.keeper("alice"), "orders:42")
	p.waitFor("orders:42")
	p.click(".names a[href^='lock']", "orders:42")
	p.waitFor("alice")
	p.waitFor("Nobody waits.")
	s.wait(s.keeper("bob"), "orders:42")
	p.waitUntil("document.querySelector('#queue').closest('section').innerText.includes('bob')")
	must.OK(t, alice.Release(t.Context()))
	p.waitUntil("document.querySelector('#holders').closest('section').innerText.includes('bob')")
	p.waitFor("Nobody waits.")
	check.That(t, !strings.Contains(p.text(), "alice"), "the former holder is still shown")
}

func TestBreak(t *testing.T) {
	s := newSite(t, &inspector.Options{AllowBreak: func(*http.Request) (string, error) { return "ann", nil }})
	p := newTab(t, 1000, 800)
	alice := s.keeper("alice")
	lease := s.lock(alice, "x")
	s.lock(s.keeper("carol"), "y")
	s.wait(alice, "y") // who has waited receives messages
	s.locks.RequireWaiting(t, "y", 1)
	bob := s.wait(s.keeper("bob"), "x")
	s.locks.RequireWaiting(t, "x", 1)
	p.open(s.url + "lock?kind=fair&name=x")
	p.click("a[aria-label='Break the lease of alice']", "End 1 lease?")
	p.waitUntil("document.activeElement.name === 'reason'")
	p.keys("it hangs" + kb.Enter)
	p.waitUntil("document.querySelector('h1')?.innerText === 'Ended 1 lease.'")
	select {
	case <-lease.Done():
	case <-time.After(timeout):
		t.Fatal("the holder was not told")
	}
	var broken *lockkeeper.BrokenError
	check.That(t, errors.As(lease.Err(), &broken) && broken.By == "ann" && broken.Reason == "it hangs", "the holder has %v", lease.Err())
	must.Report(t, <-bob)
	p.click("main a.button", "x")
	p.waitUntil("document.querySelector('#holders').closest('section').innerText.includes('bob')")
}

func TestKeyboard(t *testing.T) {
	s := newSite(t, nil)
	p := newTab(t, 1000, 800)
	k := s.keeper("alice")
	for _, name := range []string{"invoices", "orders:1", "orders:2"} {
		s.lock(k, name)
	}
	p.open(s.url)
	p.waitFor("3 names")
	p.keys(kb.Tab)
	if got := p.focused("className"); got != "skip" {
		t.Errorf("the first stop is %q", got)
	}
	p.slash()
	p.keys("orders/") // the second one is a character
	p.waitFor("No name matches.")
	p.keys(kb.Backspace)
	p.waitFor("2 names of 3")
	if url := value[string](p, "location.search"); url != "?q=orders" {
		t.Errorf("the URL has %q", url)
	}
	var stops []string
	for range 10 {
		p.keys(kb.Tab)
		stops = append(stops, p.focused("innerText.trim().split('\\n')[0]"))
	}
	if got := strings.Join(stops, ", "); !strings.HasSuffix(got, "Name, Owner, Kind, Holders, Expires in, Waiters▼, Longest wait, orders:1, orders:2") {
		t.Errorf("Tab leads to %s", got)
	}
	outline := value[string](p, "getComputedStyle(document.activeElement).outlineStyle")
	check.That(t, outline != "none", "the focus cannot be seen")
	s.lock(s.keeper("bob"), "orders:0") // moves the rows
	p.waitFor("orders:0")
	if got := p.focused("innerText"); got != "orders:2" {
		t.Errorf("after an update the focus is at %q", got)
	}
	p.keys(kb.Enter)
	p.waitUntil("document.querySelector('h1')?.innerText === 'orders:2'")
}

// slash presses the key as a keyboard does: the page can prevent that it is typed. chromedp.KeyEvent types it in any case.
func (p *tab) slash() {
	p.Helper()
	for _, e := range []input.DispatchKeyEventParams{
		{Type: input.DispatchKeyEventTypeKeyDown, Key: "/", Code: "Slash", Text: "/"}, {Type: input.DispatchKeyEventTypeKeyUp, Key: "/", Code: "Slash"},
	} {
		must.Get(chromedp.Call(p.ctx, input.DispatchKeyEvent, e))(p)
	}
}

// oddNames are names that could harm a page.
var oddNames = []string{
	`"><script>console.error(1)</script>`, "'&lt;b&gt;", "a\x00b\n\x1b[31m", "\xff\xfe not UTF-8", "\u202egnp.exe", " spaces  at the ends ", "a?b&c=d#e%2F+g",
	"日本語:é", strings.Repeat("long-", 200), strings.Repeat("W", 1000),
}

// Pages are usable at the width of a phone, whatever the names are, and their links lead to the right name.
func TestOddNamesOnNarrowScreen(t *testing.T) {
	s := newSite(t, &inspector.Options{AllowBreak: func(*http.Request) (string, error) { return "ann", nil }})
	p := newTab(t, 360, 740)
	k := s.keeper("alice, who has a long name too: " + strings.Repeat("x", 100))
	for _, name := range oddNames {
		s.lock(k, name)
		s.wait(k, name)
		s.locks.RequireWaiting(t, name, 1)
	}
	p.open(s.url)
	p.waitFor(fmt.Sprintf("%d names", len(oddNames)))
	p.fits()
	links := value[[]string](p, "[...document.querySelectorAll('.names tbody a')].map((a) => a.href)")
	must.That(t, len(links) == len(oddNames), "%d links", len(links))
	for _, link := range links {
		p.open(link)
		p.waitFor("One waits for the holder.")
		p.fits()
		p.click(".all a.danger", "End 1 lease and remove 1 waiter?")
		p.fits()
	}
}

// fits fails the test if a part of the page is beyond its right edge.
func (p *tab) fits() {
	p.Helper()
	if w := value[int](p, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); w > 0 {
		p.Errorf("%s is %d px too wide:\n%s", value[string](p, "location.href"), w, p.text())
	}
}

// A page recovers by itself when connections break, and when Redis fails.
func TestRecovers(t *testing.T) {
	s := &site{T: t, locks: lockkeepertest.New(t)}
	s.serve(s.keeper("inspector"), nil)
	p := newTab(t, 1000, 800)
	s.lock(s.keeper("alice"), "before")
	p.open(s.url)
	p.waitFor("before")
	p.waitFor("Live")
	p.allowed = "ERR_INCOMPLETE_CHUNKED_ENCODING"
	s.http.CloseClientConnections()
	p.waitFor("Disconnected")
	s.lock(s.keeper("bob"), "meanwhile")
	p.waitFor("meanwhile")
	p.waitFor("Live")

	s.locks.Unreachable()
	p.waitFor("Not up to date")
	p.waitFor("meanwhile")
	s.locks.Restore()
	p.waitUntil("!document.body.innerText.includes('Not up to date')")
}
