package lockkeepertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

var errStale = errors.New("stale")

// memory is a store in memory. Its fields make it wrong.
type memory struct {
	noFence, noFenceOfReads, onlyLarger, lowers, texts, bits32, twoSteps, lateReads, strange, noStart, ignoresLast bool

	mu    sync.Mutex
	fence uint64
	value string
}

// accepts compares a fence with the largest one.
func (m *memory) accepts(fence uint64) bool {
	switch {
	case m.noFence:
		return true
	case m.onlyLarger:
		return fence > m.fence
	case m.texts:
		return strconv.FormatUint(fence, 10) >= strconv.FormatUint(m.fence, 10)
	case m.bits32:
		return uint32(fence) >= uint32(m.fence)
	}
	return fence >= m.fence
}

func (m *memory) refusal() error {
	if m.strange {
		return errors.New("strange")
	}
	return errStale
}

func (m *memory) write(_ context.Context, fence uint64, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.accepts(fence) {
		if m.lowers {
			m.fence = fence
		}
		return m.refusal()
	}
	if m.twoSteps {
		m.mu.Unlock()
		runtime.Gosched()
		m.mu.Lock()
	}
	if !m.ignoresLast || m.value == "" {
		m.value = value
	}
	m.fence = fence
	return nil
}

func (m *memory) read(_ context.Context, fence uint64) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.noStart && m.value == "" {
		return "", errors.New("there is no value")
	}
	if !m.accepts(fence) && !m.lateReads && !m.onlyLarger {
		return "", m.refusal()
	}
	if !m.noFenceOfReads && !m.onlyLarger && fence > m.fence {
		m.fence = fence
	}
	return m.value, nil
}

func (m *memory) store() Store { return Store{m.write, m.read, errStale} }

func TestCheckFencingAcceptsCorrectStores(t *testing.T) {
	t.Run("read and write", func(t *testing.T) {
		CheckFencing(t, func(*testing.T) Store { return new(memory).store() })
	})
	t.Run("write only", func(t *testing.T) {
		CheckFencing(t, func(*testing.T) Store { return Store{Write: new(memory).write} })
	})
}

// TestCheckFencingFindsMistakes: each by the check that is meant for it. What a mistake is, is in the name of the field.
func TestCheckFencingFindsMistakes(t *testing.T) {
	for check, stores := range map[string][]func() *memory{
		"smaller_fence_is_refused_after_write": {func() *memory { return &memory{noFence: true} }, func() *memory { return &memory{strange: true} }},
		"smaller_fence_is_refused_after_read":  {func() *memory { return &memory{noFenceOfReads: true} }},
		"same_fence_is_accepted":               {func() *memory { return &memory{onlyLarger: true} }},
		"refusal_keeps_largest_fence":          {func() *memory { return &memory{lowers: true} }},
		"fences_are_compared_as_numbers":       {func() *memory { return &memory{texts: true} }},
		"neighboring_fences_are_distinguished": {func() *memory { return &memory{bits32: true} }},
		"smaller_fence_cannot_read":            {func() *memory { return &memory{lateReads: true} }},
		"first_access_may_be_a_read":           {func() *memory { return &memory{noStart: true} }},
		"concurrent_writes":                    {func() *memory { return &memory{twoSteps: true} }},
		"larger_fence_is_accepted":             {func() *memory { return &memory{ignoresLast: true} }},
	} {
		for i, open := range stores {
			t.Run(fmt.Sprintf("%s_%d", check, i), func(t *testing.T) {
				for _, c := range fencingChecks {
					if c.name == check {
						err := c.run(checkedStore{open().store(), t.Context()})
						for try := 0; err == nil && check == "concurrent_writes" && try < 20; try++ { // it needs luck
							err = c.run(checkedStore{open().store(), t.Context()})
						}
						if err == nil {
							t.Error("not found")
						}
						t.Log(err)
						return
					}
				}
				t.Error("there is no such check")
			})
		}
	}
	if n := 10; len(fencingChecks) != n {
		t.Errorf("%d checks, of which %d are tested", len(fencingChecks), n)
	}
}
