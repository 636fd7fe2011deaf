package inspector

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(t *testing.T, f *fake)) {
	synctest.Test(t, func(t *testing.T) { test(t, newFake()) })
}

// However many browsers are open, the list is read once per interval, and not at all once they are closed.
func TestOneLookPerInterval(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, 7 * time.Second} {
		inBubble(t, func(t *testing.T, f *fake) {
			f.names(3)
			h := serve(t, f, Options{Interval: interval})
			var all []*browser
			for range 50 {
				all = append(all, h.open("/events?of=list", nil))
			}
			for range 100 {
				time.Sleep(interval / 10)
				h.get("/", 200, "name-00001")
			}
			if n := f.looks(); n < 9 || n > 11 {
				t.Errorf("%d looks in 10 intervals", n)
			}
			for _, b := range all {
				b.close()
			}
			time.Sleep(interval)
			synctest.Wait()
			before := f.looks()
			time.Sleep(time.Hour)
			if n := f.looks(); n != before {
				t.Errorf("%d looks while nobody looked", n-before)
			}
			h.get("/", 200)
			time.Sleep(time.Hour)
			if n := f.looks(); n != before+1 {
				t.Errorf("%d looks for one page", n-before)
			}
		})
	}
}

// Searches that have to read at the server take turns, so the server sees one look per interval nevertheless.
func TestSearchesTakeTurns(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.names(50)
		f.takes = 10 * time.Millisecond
		h := serve(t, f, Options{MaxNames: 10})
		var all []*browser
		for i := range 5 {
			all = append(all, h.open(fmt.Sprintf("/events?of=list&q=name-%04d", i), nil))
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		n := f.looks()
		check.That(t, n >= 19 && n <= 22 && f.overlaps == 0, "%d looks in 20 s, %d at the same time as another", n, f.overlaps)
		for i, b := range all {
			want := fmt.Sprintf("name-%04d7", i)
			check.That(t, strings.Contains(b.text(), want), "search %d did not find %s", i, want)
			b.close()
		}
		for i := range 20 {
			h.get(fmt.Sprintf("/?q=name-%d", i), 200) // replaces searches that are not used any more
		}
	})
}

// After a look that takes long there is a pause of three times as long.
func TestSlowLooksAreFollowedByPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.names(3)
		f.takes = 5 * time.Second
		h := serve(t, f, Options{})
		h.get("/", 200, "Reading from Redis")
		b := h.open("/events?of=list", nil)
		time.Sleep(200 * time.Second)
		synctest.Wait()
		n := f.looks()
		check.That(t, n == 10 || n == 11, "%d looks of 5 s in 200 s", n)
		check.That(t, strings.Contains(b.text(), "name-00002"), "the page was not updated")
		b.close()
	})
}

// A stream that was slow gets the latest state, and not those before. One that receives nothing is given up. Others are not delayed.
func TestSlowBrowsers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		id := lockID{"fair", "x"}
		i := f.queue(id, 9)
		h := serve(t, f, Options{})
		const url = "/events?of=lock&kind=fair&name=x"
		block := make(chan struct{})
		fast, slow, deaf := h.open(url, nil), h.open(url, block), h.open(url, make(chan struct{}))
		time.Sleep(500 * time.Millisecond) // changes are between looks
		for n := range 8 {
			time.Sleep(time.Second)
			next := *i
			next.Waiters = i.Waiters[n+1:]
			f.set(func() { f.locks[id] = &next })
		}
		time.Sleep(time.Second)
		if n := fast.events(); n != 9 {
			t.Errorf("%d events for the first state and 8 changes", n)
		}
		close(block)
		synctest.Wait()
		if n := slow.events(); n > 2 || !strings.Contains(slow.text(), "One waits for the holder") {
			t.Errorf("%d events:\n%s", n, slow.text())
		}
		time.Sleep(2 * writeTimeout)
		select {
		case <-deaf.done:
		default:
			t.Error("a browser that receives nothing was not given up")
		}
		fast.close()
		slow.close()
	})
}

func TestOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.names(3)
		f.err, f.process = errors.New("dial: refused"), lockkeeper.Stats{Requests: 1, Silence: 3 * time.Second}
		h := serve(t, f, Options{})
		h.get("/", 200, "could not be read", "dial: refused", "This process: 0 leases · 1 request, 0 in queues · no answer from the server for 3 s")
		b := h.open("/events?of=list", nil)
		time.Sleep(time.Minute)
		if !strings.Contains(b.text(), "dial: refused") || strings.Contains(b.text(), "name-00001") {
			t.Error(b.text())
		}
		f.set(func() { f.err, f.process = nil, lockkeeper.Stats{Leases: 1} })
		time.Sleep(2 * time.Second)
		if !strings.HasSuffix(b.text(), "\n\n") || !strings.Contains(b.text(), "name-00001") {
			t.Error("the page did not recover:", b.text())
		}
		f.set(func() { f.err, f.process.Silence = errors.New("gone again"), 90*time.Second })
		time.Sleep(time.Minute)
		h.get("/", 200, "gone again", "state 1 min 0", "name-00001", "This process: 1 lease", "no answer from the server for 1 min 30 s")
		if !strings.Contains(b.text(), "gone again") || !strings.Contains(b.text(), "1 min 30 s") || !strings.Contains(b.text(), "state 50 s ago") {
			t.Error(b.text())
		}
		b.close()
	})
}

// Redis does not answer at all.
func TestHungServer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.takes = time.Hour
		h := serve(t, f, Options{})
		takes := func(limit time.Duration, do func()) {
			t.Helper()
			began := time.Now()
			do()
			d := time.Since(began)
			check.That(t, d <= limit, "it took %v", d)
		}
		takes(patience, func() { h.get("/lock?kind=fair&name=x", 200, "Reading from Redis") })
		time.Sleep(lockTimeout)
		takes(patience, func() { h.get("/lock?kind=fair&name=x", 200, "deadline exceeded") })
		takes(0, h.Close)
	})
}

func TestClose(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		h := serve(t, f, Options{})
		b, l := h.open("/events?of=list", nil), h.open("/events?of=lock&kind=mutex&name=x", nil)
		time.Sleep(10 * time.Second)
		h.Close()
		<-b.done
		<-l.done
		h.Close()
		h.get("/", 503, "shutting down")
		h.get("/events?of=list", 503)
	})
}

func TestTooManyLocksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := serve(t, newFake(), Options{})
		var all []*browser
		for n := range maxLocks {
			all = append(all, h.open(fmt.Sprintf("/events?of=lock&kind=mutex&name=%d", n), nil))
		}
		synctest.Wait()
		h.get("/lock?kind=mutex&name=more", 503, "too many")
		h.get("/lock?kind=mutex&name=7", 200)
		all[3].close()
		time.Sleep(2 * time.Second)
		h.get("/lock?kind=mutex&name=more", 200)
		for _, b := range all {
			b.close()
		}
	})
}

func TestHistoryIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		id := lockID{"semaphore", "x"}
		f.locks[id] = &admin.LockState{Kind: id.kind, Name: id.name, Limits: &admin.Limits{Limit: 10, Used: 3}}
		h := serve(t, f, Options{})
		b := h.open("/events?of=lock&kind=semaphore&name=x", nil)
		time.Sleep(time.Hour)
		b.close()
		w := must.Get(h.watches.lock(id))(t)
		s, _ := w.last()
		n := len(s.value.history)
		check.That(t, n >= 299 && n <= 302, "%d samples", n)
	})
}
