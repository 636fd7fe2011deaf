package quorum

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/views"
)

// ownerGrace is how long Holder waits at least, after a majority has agreed, for the label of the owner. Only the server of the owner's first
// keeper has it.
const ownerGrace = 10 * time.Millisecond

// Holder returns the lease that a majority of the servers has; held is false if a majority answered and there is none. It asks all
// servers at once, and waits for ServerTimeout at most.
func (m *Majority) Holder(ctx context.Context) (h views.Holder, held bool, err error) {
	if err := server.ContextError(ctx); err != nil {
		return h, false, m.fail(nil, err)
	}
	limit, cancel := context.WithTimeout(ctx, m.spec.ServerTimeout)
	defer cancel()
	type answer struct {
		server  int
		holders []views.Holder
		err     error
	}
	got := make(chan answer, len(m.locks))
	for i, at := range m.locks {
		go func() {
			holders, err := views.Holders(limit, at.AtServer())
			got <- answer{i, holders, err}
		}()
	}
	answers := make([]error, len(m.locks))
	parts := map[string][]views.Holder{} // by token
	answered := 0
	var whole *views.Holder     // as soon as a majority agrees
	var enough <-chan time.Time // receives when the owner is awaited no longer
	began := time.Now()
	for range m.locks {
		var a answer
		select {
		case a = <-got:
		case <-enough:
			return *whole, true, nil
		}
		answers[a.server] = a.err
		if a.err == nil {
			answered++
		}
		for _, h := range a.holders {
			parts[h.Token] = append(parts[h.Token], h)
			if same := parts[h.Token]; len(same) >= m.need {
				h := m.whole(same)
				if h.Owner != "" || h.Fence == 0 {
					return h, true, nil
				}
				whole = &h
			}
		}
		if whole != nil && enough == nil {
			enough = time.After(max(time.Since(began), ownerGrace))
		}
	}
	if whole != nil {
		return *whole, true, nil
	}
	if answered >= m.need {
		return h, false, nil
	}
	causes := []error{errNoQuorum}
	if slices.ContainsFunc(answers, func(err error) bool { return errors.Is(err, server.ErrClosed) }) {
		causes = []error{server.ErrClosed}
	}
	return h, false, m.fail(answers, append(causes, server.ContextError(ctx))...)
}

// whole returns the lease that has these parts. Its fence is the largest of theirs, and it expires with the first part that expires.
func (m *Majority) whole(parts []views.Holder) views.Holder {
	h := parts[0]
	for _, part := range parts[1:] {
		h.Fence = max(h.Fence, part.Fence)
		if part.ExpiresIn >= 0 && (part.ExpiresIn < h.ExpiresIn || h.ExpiresIn < 0) {
			h.ExpiresIn = part.ExpiresIn
		}
		if h.Owner == "" {
			h.Owner = part.Owner
		}
	}
	return h
}

// holders is Holder as a list.
func (m *Majority) holders(ctx context.Context, _ int) ([]views.Holder, int, error) {
	h, held, err := m.Holder(ctx)
	if err != nil || !held {
		return nil, 0, err
	}
	return []views.Holder{h}, 1, nil
}
