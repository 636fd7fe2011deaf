package quorum

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
)

// Adopt makes a lease of a token that another process was granted, and extends it to the whole TTL. If it fails, the servers
// keep what they have of the token. It blocks until a majority has answered, for ServerTimeout at most for each of two steps.
func (m *Majority) Adopt(ctx context.Context, token string) (*Lease, error) {
	if token == "" {
		return nil, m.locks[0].Invalid("the token is empty")
	}
	if err := server.ContextError(ctx); err != nil {
		return nil, m.fail(nil, err)
	}
	if m.closed() {
		return nil, m.fail(nil, server.ErrClosed)
	}
	if err := m.checkServers(ctx); err != nil {
		return nil, err
	}
	u := m.newLease(token, m.locks[0].NewObservation(ctx, ""))
	u.adopted, u.ttl = true, m.spec.TTL // the token may say another ttl
	for i := range u.members {
		u.members[i].askedAt = u.since
	}
	u.register()
	for i := range m.locks {
		go u.adoptAt(ctx, i)
	}
	if u.await(ctx) {
		return u, nil
	}
	u.mu.Lock()
	answers := u.answersLocked()
	u.mu.Unlock()
	u.giveUp(server.ErrReleased)
	lost, causes := 0, []error{errMinority}
	for _, err := range answers {
		switch {
		case errors.Is(err, server.ErrLost):
			lost++
		case errors.Is(err, errRecentRestart):
			causes = append(causes, server.Chain(server.ErrUnavailable, err))
		case err != nil:
			causes = append(causes, err)
		}
	}
	switch {
	case lost > len(u.members)-m.need:
		return nil, m.lost(answers)
	case ctx.Err() == nil && m.closed():
		return nil, m.fail(answers, server.ErrClosed)
	}
	return nil, m.fail(answers, append(causes, server.ContextError(ctx))...)
}

// adoptAt adopts the part at one server. The end of ctx does not end it, because the Lease has to know what the server has.
func (u *Lease) adoptAt(ctx context.Context, i int) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.lock.spec.ServerTimeout)
	defer cancel()
	part, err := u.lock.locks[i].AdoptAs(limited, u.token, u)
	if err != nil && errors.Is(err, limited.Err()) {
		err = server.ErrNoAnswer
	}
	u.answered(i, keeper.Part{Lease: part, Err: err, InDoubt: part == nil && !errors.Is(err, server.ErrLost)})
}
