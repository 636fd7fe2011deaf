package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/inspector"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/ratelimit"
	"github.com/lockkeeper/lockkeeper/rwlock"
	"github.com/lockkeeper/lockkeeper/semaphore"
)

// TestScreenshots writes the pictures of docs/inspector.md: go test -run Screenshots -args -screenshots DIR
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots is not set")
	}
	s := newSite(t, &inspector.Options{Title: "Locks of billing", AllowBreak: func(*http.Request) (string, error) { return "ann", nil }})
	p := newTab(t, 960, 600)
	s.populate()
	for picture, page := range map[string]string{"list": "", "lock": "lock?kind=fair&name=invoices:2026-11"} {
		p.open(s.url + page)
		p.waitFor("invoices:2026-11")
		png := must.Get(chromedp.Run(p.ctx, chromedp.CaptureScreenshot()))(t)
		must.OK(t, os.WriteFile(filepath.Join(*screenshots, fmt.Sprintf("inspector-%s.png", picture)), png, 0o644))
	}
}

// populate makes the locks of a program.
func (s *site) populate() {
	web1, web2, batch := s.keeper("web-1:4711 billing"), s.keeper("web-2:812 billing"), s.keeper("batch-1:99 nightly")
	s.lock(web1, "orders:42")
	s.lock(batch, "invoices:2026-11")
	for _, k := range []*lockkeeper.Keeper{web1, web2, web2} {
		s.wait(k, "invoices:2026-11")
	}
	s.locks.RequireWaiting(s, "invoices:2026-11", 3)
	rw, rw2 := must.Get(rwlock.New(web1, "cache:prices", nil))(s), must.Get(rwlock.New(web2, "cache:prices", nil))(s)
	s.holds(rw.RLock)
	s.holds(rw2.RLock)
	s.waits(rw2.Lock)
	s.locks.RequireWaiting(s, "cache:prices", 1)
	s.waits(rw.RLock)
	limit := must.Get(ratelimit.NewConcurrent(web1, "partner-api", 100, time.Minute, 8, nil))(s)
	for range 6 {
		s.holds(limit.Acquire)
	}
	mail := must.Get(ratelimit.New(batch, "mail", 100, time.Minute, nil))(s)
	must.Get(mail.AllowN(s.Context(), 60))(s)
	permits := func(k *lockkeeper.Keeper, n int) func(context.Context) (*lockkeeper.Lease, error) {
		return must.Get(must.Get(semaphore.New(k, "encoders", 10, nil))(s).LockerN(n))(s).Lock
	}
	s.holds(permits(batch, 4))
	s.holds(permits(web2, 3))
	s.waits(permits(web2, 6))
	s.locks.RequireWaiting(s, "encoders", 1)
}
