package browsertest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

var screenshots = flag.String("screenshots", "", "write screenshots for the documentation to this `directory`")

// timeout is how long a page may take to show what a test waits for.
const timeout = 30 * time.Second

var browser context.Context // nil if there is none

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(withBrowser(m))
}

func withBrowser(m *testing.M) int {
	path := findBrowser()
	if path == "" {
		return m.Run()
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.Flag("hide-scrollbars", true))
	if os.Getuid() == 0 {
		opts = append(opts, chromedp.NoSandbox) // Chromium has none for root; the pages are our own
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if err := chromedp.Do(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s cannot be started: %v\n", path, err)
		return 1
	}
	browser = ctx
	return m.Run()
}

func findBrowser() string {
	names := []string{"chromium-headless-shell", "headless_shell", "chromium", "chromium-browser", "google-chrome"}
	if b := os.Getenv("BROWSER"); b != "" {
		names = []string{b}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// tab is a page in the browser.
type tab struct {
	*testing.T
	ctx     context.Context
	mu      sync.Mutex
	console []string // errors
	allowed string   // an error that the test expects
}

// newTab opens a tab of a size. At the end of the test it fails if there was an error on the console; so it is opened after the site,
// which is closed after it.
func newTab(t *testing.T, width, height int64) *tab {
	t.Helper()
	if browser == nil {
		report := t.Skip
		if os.Getenv("LOCKKEEPER_NEED_BROWSER") != "" {
			report = t.Fatal
		}
		report("no browser was found; install chromium-headless-shell, or set BROWSER")
	}
	ctx, cancel := chromedp.NewContext(browser)
	p := &tab{T: t, ctx: ctx}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.IsException() || m.Type == "error" || m.Type == "warning" {
				p.mu.Lock()
				p.console = append(p.console, m.String())
				p.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range p.console {
			check.That(t, p.allowed != "" && strings.Contains(m, p.allowed), "on the console: %s", m)
		}
	})
	p.do(chromedp.EmulateViewport(width, height))
	focused := emulation.SetFocusEmulationEnabledParams{Enabled: true} // a page that is hidden is not updated
	must.Get(chromedp.Call(p.ctx, emulation.SetFocusEmulationEnabled, focused))(t)
	return p
}

// run does something in the page, for as long as a test waits at most.
func run[V any](p *tab, action chromedp.Action[V]) (V, error) {
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	return chromedp.Run(ctx, action)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	for _, step := range steps {
		if _, err := run(p, step); err != nil {
			p.Fatalf("%v\n%s", err, p.text())
		}
	}
}

func (p *tab) open(url string) {
	p.Helper()
	p.do(chromedp.Navigate(url))
}

// value returns the value of an expression in the page.
func value[V any](p *tab, expression string) V {
	p.Helper()
	v, err := run(p, chromedp.Evaluate[V](expression))
	must.That(p, err == nil, "%s: %v", expression, err)
	return v
}

func (p *tab) text() string {
	s, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string]("document.body.innerText"))
	return s
}

// waitUntil waits until an expression is true in the page, which may be navigating. It is evaluated when the
// document or the focus changes.
func (p *tab) waitUntil(expression string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	js := `new Promise((resolve) => {
		const observer = new MutationObserver(() => check());
		const check = () => { if (` + expression + `) { observer.disconnect(); document.removeEventListener('focusin', check); resolve(true); } };
		observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
		document.addEventListener('focusin', check);
		check();
	})`
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](js, chromedp.EvalAwaitPromise))
		if ok {
			return
		}
		if ctx.Err() != nil {
			p.Fatalf("the page is not so that %s: %v\n%s", expression, err, p.text())
		}
		time.Sleep(10 * time.Millisecond) // it was replaced by another page
	}
}

func (p *tab) waitFor(text string) {
	p.Helper()
	p.waitUntil(fmt.Sprintf("document.body && document.body.innerText.includes(%s)", strconv.Quote(text)))
}

// click clicks an element and so leads to another page, whose heading has a text.
func (p *tab) click(selector, heading string) {
	p.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
	p.waitUntil(fmt.Sprintf("document.querySelector('h1')?.innerText.includes(%s)", strconv.Quote(heading)))
}

func (p *tab) keys(keys string) {
	p.Helper()
	p.do(chromedp.KeyEvent(keys))
}

func (p *tab) focused(what string) string {
	p.Helper()
	return value[string](p, "String(document.activeElement."+what+" ?? '')")
}
