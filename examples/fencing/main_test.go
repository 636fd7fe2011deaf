//go:build unix

package main

import (
	"context"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func TestMain(m *testing.M) { example.Main(m, main, "holder") }

// open opens an empty store, so many times.
func open(t *testing.T, kind string, n int) (list []store) {
	r := must.Get(newRig())(t)
	t.Cleanup(r.close)
	place := must.Get(r.place(kind, "it"))(t)
	for range n {
		s := must.Get(stores[kind](place))(t)
		t.Cleanup(func() { _ = s.Close() })
		list = append(list, s)
	}
	return list
}

func TestOnlyTheFenceStopsALateWrite(t *testing.T) {
	for kind := range stores {
		r := must.Get(newRig())(t)
		defer r.close()
		for way, want := range map[string]result{
			"without": {"done", "first\n"}, // what the second wrote is gone
			"with":    {"refused", "second\nfirst\n"},
		} {
			if got, err := r.run(kind, way); got != want || err != nil {
				t.Errorf("%s, %s the fence: %q, %v, want %q", kind, way, got, err, want)
			}
		}
	}
}

func TestAStoreRefusesSmallerFences(t *testing.T) {
	for kind := range stores {
		t.Run(kind, func(t *testing.T) {
			lockkeepertest.CheckFencing(t, func(t *testing.T) lockkeepertest.Store {
				s := open(t, kind, 3) // as in several processes
				return lockkeepertest.Store{
					Write: func(ctx context.Context, fence uint64, text string) error { return s[fence%2].write(ctx, fence, text) },
					Read:  s[2].read,
					Stale: errStale,
				}
			})
		})
	}
}
