package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

const (
	// identityTime is how long it is believed which server a keeper uses: a name may come to mean another, or a failover
	// change it.
	identityTime = time.Minute
	// identityPause is the pause before a server is asked again that has not answered.
	identityPause = time.Second
	// identityKey says which node of a cluster is asked. Two keepers on one cluster ask the same.
	identityKey = "lockkeeper"
)

// runID is what a server calls itself from its start to its end; zero: it is not known.
type runID [4]int64

// identity is what a keeper knows of its server. The zero value knows nothing.
type identity struct {
	mu     sync.Mutex // guards what follows
	id     runID
	next   time.Time     // when the server is to be asked again; zero: it never was asked
	asking chan struct{} // closed when the question is answered that is under way; nil: none is
	warned bool
}

// known is which server this is, as far as is known, and whether it was ever asked. What is known is refreshed in the background
// now and then.
func (e *Engine) known() (id runID, asked bool) {
	e.identity.mu.Lock()
	id, next := e.identity.id, e.identity.next
	e.identity.mu.Unlock()
	if next.IsZero() {
		return id, false
	}
	if !time.Now().Before(next) {
		e.identify()
	}
	return id, true
}

// identify asks the server which it is, unless a question is under way, and returns what is closed when it is answered.
func (e *Engine) identify() <-chan struct{} {
	e.identity.mu.Lock()
	if answered := e.identity.asking; answered != nil {
		e.identity.mu.Unlock()
		return answered
	}
	answered := make(chan struct{})
	e.identity.asking = answered
	e.identity.next = time.Now().Add(identityPause)
	e.identity.mu.Unlock()
	s := lua.Redlock.Identity
	e.transport.Send(&transport.Call{Script: s, Key: identityKey, Args: s.AppendCommand(nil), Done: func(call *transport.Call) {
		id, err := parseIdentity(call)
		e.identified(id, err)
		close(answered)
	}})
	return answered
}

func (e *Engine) identified(id runID, err error) {
	e.identity.mu.Lock()
	e.identity.asking = nil
	warn := false
	if transport.OutcomeOf(err) == transport.Answered {
		e.identity.id, e.identity.next = id, time.Now().Add(identityTime)
		warn = id == runID{} && !e.identity.warned
		e.identity.warned = e.identity.warned || warn
	}
	e.identity.mu.Unlock()
	if warn {
		e.cfg.Log.Warn("lockkeeper: the server does not say which it is (INFO server, run_id); a redlock cannot see whether another of its keepers uses the same server",
			"keeper", e.id, "error", err)
	}
}

// parseIdentity looks at the answer of identity.lua.
func parseIdentity(call *transport.Call) (id runID, err error) {
	n, err := parseReply(call)
	switch {
	case err != nil:
		return id, err
	case n[0] == lua.Unknown:
		return id, n.checkLength(1)
	case n[0] != lua.Granted:
		return id, fmt.Errorf("%w: code %d from identity", transport.ErrReply, n[0])
	}
	if err := n.checkLength(1 + len(id)); err != nil {
		return id, err
	}
	return runID(n[1:]), nil
}

// checkServers refuses keepers that use the same server. It asks each at the first use, and waits for that as long as for
// any answer; a server that does not answer, or does not say which it is, is not held against anybody.
func (m *Majority) checkServers(ctx context.Context) error {
	if len(m.locks) == 1 {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, m.spec.ServerTimeout)
	defer cancel()
	var answers []<-chan struct{}
	for _, l := range m.locks {
		if _, asked := l.e.known(); !asked {
			answers = append(answers, l.e.identify())
		}
	}
	for _, answered := range answers {
		waitFor(limit, answered)
	}
	i, k := m.sameServer()
	if k == 0 {
		return nil
	}
	// What is known of the two may be of different times, and one have moved to where the other was.
	answers = []<-chan struct{}{m.locks[i].e.identify(), m.locks[k].e.identify()}
	for _, answered := range answers {
		waitFor(limit, answered)
	}
	if i, k = m.sameServer(); k > 0 {
		return Invalid("keepers %d and %d of %d use the same server, by its run_id: each server counts once", i+1, k+1, len(m.locks))
	}
	return nil
}

// sameServer is two keepers that use the same server, as far as is known; 0 and 0 if there are none.
func (m *Majority) sameServer() (i, k int) {
	seen := map[runID]int{}
	for k, l := range m.locks {
		id, _ := l.e.known()
		if i, is := seen[id]; is && id != (runID{}) {
			return i, k
		}
		seen[id] = k
	}
	return 0, 0
}
