package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/inspector"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// TestScreenshots writes the pictures of docs/inspector.md, and others to look at: go test -run Screenshots -args -screenshots DIR
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots is not set")
	}
	useRealServer(t)
	s := newSite(t, &inspector.Options{Title: "Locks of billing", AllowBreak: func(*http.Request) (string, error) { return "ann", nil }})
	light, dark, phone := newTab(t, 960, 600), newTab(t, 960, 600), newTab(t, 360, 740)
	dark.darken()
	light.open(s.url)
	light.waitFor("No lock is held")
	light.save("empty")

	s.populate()
	for _, p := range []*tab{light, dark, phone} {
		p.open(s.url)
		p.waitFor("invoices:2026-11")
	}
	light.save("list")
	dark.save("list-dark")
	phone.save("list-phone")
	limited := s.url + "lock?kind=semaphore&name=encoders"
	queue := s.url + "lock?kind=fair&name=invoices:2026-11"
	dark.open(limited)
	dark.waitUntil("document.querySelector('figure')")
	dark.save("limits-dark")
	for _, p := range []*tab{light, phone} {
		p.open(queue)
		p.waitFor("3 wait for the holder")
	}
	light.save("lock")
	phone.save("lock-phone")
	light.open(s.url + "lock?kind=fair&name=orders:42")
	s.wait(s.keeper("web-3:1201 billing"), "orders:42")
	light.waitFor("alive")
	s.locks.CrashWaiter(t, "orders:42")
	light.waitFor("no heartbeat")
	light.save("crashed")
	light.open(s.url + "lock?kind=ratelimit&name=mail")
	light.waitFor("requests in the last")
	light.save("permits")
	light.open(s.url + "lock?kind=rwlock&name=cache:prices")
	light.waitFor("blocked by")
	light.save("rwlock")
	light.waitUntil("document.querySelector('.all a.danger')")
	light.click(".all a.danger", "End")
	light.save("break")

	for _, name := range oddNames {
		s.lock(s.keeper("alice"), name)
	}
	light.open(s.url)
	light.waitFor("gnp.exe")
	light.save("odd-names")
	k := s.keeper("web-2:812 worker")
	for range 1000 {
		s.wait(k, "orders:42")
	}
	s.locks.RequireWaiting(t, "orders:42", 1000)
	light.open(s.url + "lock?kind=fair&name=orders:42")
	light.waitFor("1–100 of")
	light.save("queue-1000")
	s.many(5000)
	light.open(s.url)
	light.waitFor("there are more")
	light.save("names-5000")
}

// populate makes the locks of a program.
func (s *site) populate() {
	web1, web2, batch := s.keeper("web-1:4711 billing"), s.keeper("web-2:812 billing"), s.keeper("batch-1:99 nightly")
	s.lock(web1, "orders:42")
	s.lock(batch, "invoices:2026-11")
	for _, k := range []*lockkeeper.Keeper{web1, web2, web2} {
		s.wait(k, "invoices:2026-11")
	}
	rw, err := rwlock.New(web1, "cache:prices", nil)
	s.must(err)
	rw2, err := rwlock.New(web2, "cache:prices", nil)
	s.must(err)
	s.acquire(rw.RLock)
	s.acquire(rw2.RLock)
	s.queue(rw2.Lock)
	s.locks.RequireWaiting(s, "cache:prices", 1)
	s.queue(rw.RLock)
	limit, err := ratelimit.NewConcurrent(web1, "partner-api", 100, time.Minute, 8, nil)
	s.must(err)
	for range 6 {
		s.acquire(limit.Acquire)
	}
	for i, k := range []*lockkeeper.Keeper{web1, web2, batch} { // permits that return by the clock
		mail, err := ratelimit.New(k, "mail", 100, time.Minute, nil)
		s.must(err)
		for range 30 * (i + 1) {
			_, err := mail.Allow(s.Context())
			s.must(err)
		}
		if i == 2 {
			s.queue(func(ctx context.Context) (*lockkeeper.Lease, error) {
				return nil, mail.Do(ctx, func(context.Context, uint64) error { return nil })
			})
		}
	}
	sem, err := semaphore.New(batch, "encoders", 10, nil)
	s.must(err)
	s.acquire(func(ctx context.Context) (*lockkeeper.Lease, error) { return sem.AcquireN(ctx, 4) })
	sem2, err := semaphore.New(web2, "encoders", 10, nil)
	s.must(err)
	s.acquire(func(ctx context.Context) (*lockkeeper.Lease, error) { return sem2.AcquireN(ctx, 3) })
	s.queue(func(ctx context.Context) (*lockkeeper.Lease, error) { return sem2.AcquireN(ctx, 6) })
	s.locks.RequireWaiting(s, "encoders", 1)
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) acquire(lock func(context.Context) (*lockkeeper.Lease, error)) {
	s.Helper()
	lease, err := lock(s.Context())
	s.must(err)
	s.Cleanup(func() { _ = lease.Release(context.Background()) })
}

func (s *site) queue(lock func(context.Context) (*lockkeeper.Lease, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if lease, err := lock(ctx); err == nil {
			<-ctx.Done()
			_ = lease.Release(context.Background())
		}
	}()
	s.Cleanup(func() {
		cancel()
		<-ended
	})
}

func (p *tab) darken() {
	p.Helper()
	call(p, "dark", func() error {
		_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
		})
		return err
	})
}

func (p *tab) save(name string) {
	p.Helper()
	picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshots, fmt.Sprintf("inspector-%s.png", name)), picture, 0o644)
	}
	if err != nil {
		p.Fatal(err)
	}
}
