package quorum

import (
	"context"

	"github.com/lockkeeper/lockkeeper/internal/server"
)

// checkServers returns ErrInvalid if two keepers use the same server, by its run_id. At the first use it queries each server and
// waits for ServerTimeout at most. A server that does not answer, or does not report its run_id, is not compared.
func (m *Majority) checkServers(ctx context.Context) error {
	if len(m.locks) == 1 {
		return nil
	}
	var answers []<-chan struct{}
	for _, at := range m.locks {
		if _, queried := at.ServerID(); !queried {
			answers = append(answers, at.QueryServerID())
		}
	}
	if _, k := m.sameServer(); k == 0 && answers == nil {
		return nil // the usual case
	}
	limit, cancel := context.WithTimeout(ctx, m.spec.ServerTimeout)
	defer cancel()
	for _, answered := range answers {
		server.WaitFor(limit, answered)
	}
	i, k := m.sameServer()
	if k == 0 {
		return nil
	}
	// The two may have been queried at different times, and one of them may have moved to where the other was.
	answers = []<-chan struct{}{m.locks[i].QueryServerID(), m.locks[k].QueryServerID()}
	for _, answered := range answers {
		server.WaitFor(limit, answered)
	}
	if i, k = m.sameServer(); k > 0 {
		return m.locks[0].Invalid("keepers %d and %d of %d use the same server, by its run_id: each server counts once", i+1, k+1, len(m.locks))
	}
	return nil
}

// sameServer returns two keepers that use the same server, as far as is known; 0 and 0 if there are none.
func (m *Majority) sameServer() (i, k int) {
	seen := map[server.ID]int{}
	for k, at := range m.locks {
		id, _ := at.ServerID()
		if i, is := seen[id]; is && id != (server.ID{}) {
			return i, k
		}
		seen[id] = k
	}
	return 0, 0
}
