//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "holder" {
		holder(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

// each runs a test on every kind of store.
func each(t *testing.T, test func(t *testing.T, r *rig, kind string)) {
	for kind := range stores {
		t.Run(kind, func(t *testing.T) {
			r, err := newRig()
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			test(t, r, kind)
		})
	}
}

// open opens an empty store, so many times.
func open(t *testing.T, r *rig, kind string, n int) (list []store) {
	t.Helper()
	place, err := r.place(kind, "it")
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		s, err := stores[kind](place)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		list = append(list, s)
	}
	return list
}

func TestOnlyTheFenceStopsALateWrite(t *testing.T) {
	each(t, func(t *testing.T, r *rig, kind string) {
		for way, want := range map[string]result{
			"without": {"done", "first\n"}, // what the second wrote is gone
			"with":    {"refused", "second\nfirst\n"},
		} {
			got, err := r.run(kind, way)
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("%s the fence: %q, want %q", way, got, want)
			}
		}
	})
}

func TestAStoreRefusesSmallerFences(t *testing.T) {
	for kind := range stores {
		t.Run(kind, func(t *testing.T) {
			lockkeepertest.CheckFencing(t, func(t *testing.T) lockkeepertest.Store {
				r, err := newRig()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(r.close)
				s := open(t, r, kind, 1)[0]
				return lockkeepertest.Store{Write: s.write, Read: s.read, Stale: errStale}
			})
		})
	}
}

// Many writers come with fences in no order. What is in the text at the end is each write that was let in, and no other,
// in the order of their fences.
func TestWhatWasLetInStaysInTheOrderOfTheFences(t *testing.T) {
	const writers, rounds = 8, 25
	each(t, func(t *testing.T, r *rig, kind string) {
		ctx := context.Background()
		list := open(t, r, kind, writers+1)
		var mu sync.Mutex
		var done []uint64 // guarded by mu
		var all sync.WaitGroup
		for i, s := range list[:writers] {
			all.Go(func() {
				for n := range rounds {
					fence := uint64(n*writers + (i+n)%writers + 1)
					text, err := s.read(ctx, fence)
					if err == nil {
						err = s.write(ctx, fence, fmt.Sprintf("%s%d ", text, fence))
					}
					switch {
					case err == nil:
						mu.Lock()
						done = append(done, fence)
						mu.Unlock()
					case !errors.Is(err, errStale):
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		text, err := list[writers].read(ctx, 1<<52)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(done)
		if want := strings.Trim(fmt.Sprint(done), "[]") + " "; text != want {
			t.Errorf("let in: %s\nthe text: %s", want, text)
		}
		t.Logf("%d of %d were let in", len(done), writers*rounds)
	})
}
