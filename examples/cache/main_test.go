package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/embedded"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
)

// TestClaims runs the example in virtual time, in which commands take none: so it does not depend on the machine.
func TestClaims(t *testing.T) {
	w := workload{processes: 4, readers: 2, pause: 5 * time.Millisecond, rewrite: 500 * time.Millisecond, length: 1750 * time.Millisecond}
	results := map[string]*result{}
	var all []*result
	for _, way := range ways {
		embedded.Run(t, func(s *embedded.Server) {
			r, err := w.run(context.Background(), way, func() *redis.Client {
				return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: s.Network().Dial})
			})
			must.OK(t, err)
			results[way.name] = r
			all = append(all, r)
			if r.reads < 1000 || r.writes < 3 {
				t.Errorf("%s: %d reads, %d writes", r.name, r.reads, r.writes)
			}
		})
	}
	print(t.Output(), all)
	must.Report(t, check(all))
	if results["no lock"].mixed == 0 {
		t.Error("no lock: no mixed reads; the lock would have nothing to prevent")
	}
	lock, shared, pointer := results["Linger 0"], results["Linger 50ms"], results["pointer"]
	if most := lock.commandsPer1000() / 10; shared.commandsPer1000() > most {
		t.Errorf("with Linger: %.0f commands for 1,000 reads, at most %.0f expected", shared.commandsPer1000(), most)
	}
	if pointer.commandsPer1000() > shared.commandsPer1000() {
		t.Errorf("pointer: %.0f commands for 1,000 reads", pointer.commandsPer1000())
	}
	if pointer.mixed > 0 || pointer.stale == 0 || pointer.oldest > w.rewrite/10 {
		t.Errorf("pointer: %d mixed and %d stale reads, the oldest by %v", pointer.mixed, pointer.stale, pointer.oldest)
	}
	if len(lock.waits) == 0 || len(shared.waits) == 0 || slices.Max(shared.waits) > slices.Max(lock.waits)+60*time.Millisecond {
		t.Errorf("waits: %v, with Linger %v", lock.waits, shared.waits)
	}
}

func TestReadsAreJudged(t *testing.T) {
	h := &history{}
	h.add(3)
	for _, c := range []struct {
		document
		mixed, stale int
	}{
		{document{3, 3}, 0, 0},
		{document{4, 4}, 0, 0}, // its write has not finished
		{document{4, 3}, 1, 0},
		{document{2, 2}, 0, 1},
		{document{3, 2}, 1, 1},
	} {
		var r result
		err := r.read(context.Background(), h, func(context.Context) (document, error) { return c.document, nil })
		if err != nil || r.reads != 1 || r.mixed != c.mixed || r.stale != c.stale {
			t.Errorf("%v: %+v, %v", c.document, r, err)
		}
	}
	r := &result{waits: []time.Duration{0}, stale: 1}
	if check([]*result{r}) == nil {
		t.Error("a stale read under a lock is not noticed")
	}
}
