package otellockkeeper

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	shards         = 16
	endedPerShard  = 8
	queuedPerShard = 512
	bitsOfShards   = shards - 1
)

// held knows the leases that are held, by their tokens, so that each is counted down exactly once: a lease can end before the
// call that acquired it returns, and callers that share a lease (Linger) lose it together. It has an entry for each lease that is
// held, and none for leases that were adopted.
type held struct {
	seed  maphash.Seed
	shard [shards]heldShard
}

type heldShard struct {
	mu     sync.Mutex
	leases map[heldLease]int     // callers that share it
	ended  [endedPerShard]string // the last tokens that ended while not held, or were lost
	oldest int                   // of ended
	_      [64]byte              // against false sharing
}

// heldLease is a lease by its token. One that was converted keeps its token, in another series.
type heldLease struct {
	token string
	of    *series
}

func newHeld() *held {
	h := &held{seed: maphash.MakeSeed()}
	for i := range h.shard {
		h.shard[i].leases = map[heldLease]int{}
	}
	return h
}

func (h *held) of(token string) *heldShard {
	return &h.shard[maphash.String(h.seed, token)&bitsOfShards]
}

// add counts one more holder of a token, unless the token has just ended.
func (h *held) add(token string, of *series) bool {
	s := h.of(token)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.ended[:], token) {
		return false
	}
	s.leases[heldLease{token, of}]++
	return true
}

// remove counts one holder less, and reports whether it was counted.
func (h *held) remove(token string, of *series) bool {
	s, l := h.of(token), heldLease{token, of}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.leases[l]; n {
	case 0:
		s.endedLocked(token)
		return false
	case 1:
		delete(s.leases, l)
	default:
		s.leases[l] = n - 1
	}
	return true
}

// drop forgets all holders of a token and returns how many they were.
func (h *held) drop(token string, of *series) (n int) {
	s, l := h.of(token), heldLease{token, of}
	s.mu.Lock()
	defer s.mu.Unlock()
	n = s.leases[l]
	delete(s.leases, l)
	s.endedLocked(token)
	return n
}

func (s *heldShard) endedLocked(token string) {
	s.ended[s.oldest] = token
	s.oldest = (s.oldest + 1) % endedPerShard
}

// positions are those of queued requests, until their calls return. A report that arrives later leaves an entry behind, so each
// shard is bounded; a missing entry costs an attribute of a span.
type positions struct {
	n     atomic.Int64 // of all entries
	shard [shards]struct {
		mu sync.Mutex
		m  map[queuedRequest]int
	}
}

// queuedRequest is unique in a keeper. The name is for keepers that share options, whose requests have the same numbers.
type queuedRequest struct {
	request uint64
	name    string
}

// put keeps the first position of a request, and says whether it was.
func (p *positions) put(request uint64, name string, position int) (first bool) {
	s, key := &p.shard[request&bitsOfShards], queuedRequest{request, name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.m[key]; ok {
		return false
	}
	if s.m == nil {
		s.m = map[queuedRequest]int{}
	}
	if len(s.m) >= queuedPerShard {
		for old := range s.m {
			delete(s.m, old)
			p.n.Add(-1)
			break
		}
	}
	s.m[key] = position
	p.n.Add(1)
	return true
}

// take returns the position of a request that was queued, and forgets it.
func (p *positions) take(request uint64, name string) (position int, ok bool) {
	if p.n.Load() == 0 {
		return 0, false
	}
	s, key := &p.shard[request&bitsOfShards], queuedRequest{request, name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if position, ok = s.m[key]; ok {
		delete(s.m, key)
		p.n.Add(-1)
	}
	return position, ok
}
