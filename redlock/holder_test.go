package redlock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

func TestHolderIsThatOfAMajority(t *testing.T) {
	onServers(t, 3, func(w *world) {
		p, q := w.process(), w.process()
		l, watcher := p.lock(), q.lock()
		check := func(what string, want *lockkeeper.Lease) {
			t.Helper()
			began := time.Now()
			h, held, err := watcher.Holder(w.Context())
			switch {
			case err != nil, held != (want != nil):
				t.Errorf("%s: %+v, %v, %v", what, h, held, err)
			case held && (h.Token != want.Token() || h.Fence != want.Fence() || (h.Owner == "") != (what == "one does not answer") || h.Since.IsZero() || h.ExpiresIn <= 0 || h.ExpiresIn > ttl):
				t.Errorf("%s: %+v, want token %s and fence %d", what, h, want.Token(), want.Fence())
			case time.Since(began) > limit:
				t.Errorf("%s: it took %v", what, time.Since(began))
			}
		}
		check("nobody holds it", nil)
		lease := w.hold(l)
		synctest.Wait() // the third server grants it as well
		check("held at three servers", lease)
		q.nets[0].Down()
		check("one does not answer", lease)
		q.nets[1].Down()
		if _, _, err := watcher.Holder(w.Context()); !errors.Is(err, lockkeeper.ErrUnavailable) {
			t.Errorf("without a majority: %v", err)
		}
		q.nets[0].Restore()
		q.nets[1].Restore()
		time.Sleep(2 * time.Second)
		w.must(lease.Release(w.Context()))
		w.occupy(1)
		check("a minority is held", nil)
		w.occupy(2)
		h, held, err := watcher.Holder(w.Context())
		if err != nil || !held || h.Token != "theirs" || h.Fence != 0 || h.Keeper != "" || !h.Since.IsZero() {
			t.Errorf("held by another library: %+v, %v, %v", h, held, err)
		}
	})
}
