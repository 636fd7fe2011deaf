package lockkeepertest

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

var errStale = errors.New("stale")

// memory is a store in memory, which makes a mistake unless that is "".
type memory struct {
	mistake string
	mu      sync.Mutex
	fence   uint64
	value   string
}

// accepts compares a fence with the largest one.
func (m *memory) accepts(fence uint64) bool {
	switch m.mistake {
	case "no fence":
		return true
	case "only larger ones":
		return fence > m.fence
	case "compared as texts":
		return strconv.FormatUint(fence, 10) >= strconv.FormatUint(m.fence, 10)
	case "32 bits":
		return uint32(fence) >= uint32(m.fence)
	}
	return fence >= m.fence
}

func (m *memory) refusal() error {
	if m.mistake == "another error" {
		return errors.New("strange")
	}
	return errStale
}

func (m *memory) write(_ context.Context, fence uint64, value string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.accepts(fence) {
		if m.mistake == "a refusal lowers it" {
			m.fence = fence
		}
		return m.refusal()
	}
	if m.mistake == "two steps" {
		m.mu.Unlock()
		runtime.Gosched()
		m.mu.Lock()
	}
	if m.mistake != "keeps the first value" || m.value == "" {
		m.value = value
	}
	m.fence = fence
	return nil
}

func (m *memory) read(_ context.Context, fence uint64) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mistake == "no value at first" && m.value == "" {
		return "", errors.New("there is no value")
	}
	if m.mistake == "only larger ones" {
		return m.value, nil
	}
	if !m.accepts(fence) && m.mistake != "reads are not refused" {
		return "", m.refusal()
	}
	if m.mistake != "reads do not raise it" {
		m.fence = max(m.fence, fence)
	}
	return m.value, nil
}

func TestCheckFencingAcceptsCorrectStores(t *testing.T) {
	t.Run("read and write", func(t *testing.T) {
		CheckFencing(t, func(*testing.T) Store {
			m := new(memory)
			return Store{m.write, m.read, errStale}
		})
	})
	t.Run("write only", func(t *testing.T) {
		CheckFencing(t, func(*testing.T) Store { return Store{Write: new(memory).write} })
	})
}

// TestCheckFencingFindsMistakes: each by the check that is meant for it.
func TestCheckFencingFindsMistakes(t *testing.T) {
	tested := map[string]bool{}
	for mistake, check := range map[string]string{
		"no fence":              "smaller_fence_is_refused_after_write",
		"another error":         "smaller_fence_is_refused_after_write",
		"reads do not raise it": "smaller_fence_is_refused_after_read",
		"only larger ones":      "same_fence_is_accepted",
		"a refusal lowers it":   "refusal_keeps_largest_fence",
		"compared as texts":     "fences_are_compared_as_numbers",
		"32 bits":               "neighboring_fences_are_distinguished",
		"reads are not refused": "smaller_fence_cannot_read",
		"no value at first":     "first_access_may_be_a_read",
		"two steps":             "concurrent_writes",
		"keeps the first value": "larger_fence_is_accepted",
	} {
		t.Run(mistake, func(t *testing.T) {
			for _, c := range fencingChecks {
				if c.name != check {
					continue
				}
				tested[check] = true
				for range 20 { // two steps are found with luck
					m := &memory{mistake: mistake}
					if c.run(checkedStore{Store{m.write, m.read, errStale}, t.Context()}) != nil {
						return
					}
				}
				t.Error("not found")
			}
		})
	}
	if len(tested) != len(fencingChecks) {
		t.Errorf("of %d checks %d are tested", len(fencingChecks), len(tested))
	}
}
