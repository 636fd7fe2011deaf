package otellockkeeper

import (
	"fmt"
	"testing"
)

func TestLeaseThatEndedBeforeItsCallReturned(t *testing.T) {
	h, s := newHeld(), newSeries(seriesKey{kind: "mutex"})
	if h.remove("a", s) {
		t.Error("an unknown lease was counted out")
	}
	if h.add("a", s) {
		t.Error("a lease that had been released was counted")
	}
	if h.drop("b", s) != 0 {
		t.Error("an unknown lease was counted out")
	}
	if h.add("b", s) {
		t.Error("a lease that had been lost was counted")
	}
	for range 2 {
		if !h.add("c", s) {
			t.Error("a shared lease was not counted")
		}
	}
	if !h.remove("c", s) {
		t.Error("a shared lease was not counted out")
	}
	if n := h.drop("c", s); n != 1 {
		t.Errorf("%d holders were left", n)
	}
}

func TestStateIsBounded(t *testing.T) {
	h, s := newHeld(), newSeries(seriesKey{kind: "mutex"})
	var p positions
	for i := range 100_000 {
		token := fmt.Sprint(i)
		h.add(token, s)
		h.remove(token, s)
		h.remove(token, s) // adopted
		p.put(uint64(i), "a", 3)
	}
	leases, queued := 0, 0
	for i := range shards {
		leases += len(h.shard[i].leases)
		queued += len(p.shard[i].m)
	}
	if leases != 0 || queued > shards*queuedPerShard || p.n.Load() != int64(queued) {
		t.Errorf("%d leases, %d queued requests, counted as %d", leases, queued, p.n.Load())
	}
	if position, ok := p.take(99_999, "a"); !ok || position != 3 {
		t.Error("the last position was not kept")
	}
	table := seriesTable{init: func(*series) {}}
	for i := range 3 * maxCached {
		table.get(seriesKey{name: fmt.Sprint(i)})
	}
	if n := len(table.all()); n != maxCached+1 || table.get(seriesKey{name: "one more"}).key.name != "" {
		t.Errorf("%d series", n)
	}
}
