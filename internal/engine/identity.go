package engine

import (
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

const (
	// serverIDTTL is how long a server's identity is used before it is queried again: an address may come to mean another
	// server, or a failover may change it.
	serverIDTTL = time.Minute
	// serverIDRetry is the pause before the next query of a server that did not answer.
	serverIDRetry = time.Second
)

// ServerID is the run_id of a server, which differs after each restart; zero: the server does not report it.
type ServerID [4]int64

// serverIdentity is what an engine knows of its server's run_id. The zero value is ready for use.
type serverIdentity struct {
	mu     sync.Mutex // guards what follows
	id     ServerID
	next   time.Time     // when the server is to be queried again; zero: it has not been queried
	query  chan struct{} // closed when the query that was sent has been answered; nil: there is none
	warned bool
}

// ServerID returns which server the keeper of the lock uses, as far as is known, and whether it was ever queried. It does not
// block. A result that is a minute old is refreshed in the background.
func (l *Lock) ServerID() (id ServerID, queried bool) {
	e := l.e
	e.server.mu.Lock()
	id, next := e.server.id, e.server.next
	e.server.mu.Unlock()
	if next.IsZero() {
		return id, false
	}
	if !time.Now().Before(next) {
		l.QueryServerID()
	}
	return id, true
}

// QueryServerID asks the server for its run_id, unless a query is already unanswered. It does not block; the result is closed
// when the query has been answered or has failed.
func (l *Lock) QueryServerID() <-chan struct{} {
	e := l.e
	e.server.mu.Lock()
	if answered := e.server.query; answered != nil {
		e.server.mu.Unlock()
		return answered
	}
	answered := make(chan struct{})
	e.server.query = answered
	e.server.next = time.Now().Add(serverIDRetry)
	e.server.mu.Unlock()
	e.transport.Send(l.identityCall(func(call *transport.Call) {
		id, err := decode(call, protocol.ParseIdentityReply)
		e.setServerID(id, err)
		close(answered)
	}))
	return answered
}

func (e *Engine) setServerID(id ServerID, err error) {
	e.server.mu.Lock()
	e.server.query = nil
	warn := false
	if transport.OutcomeOf(err) == transport.Answered {
		e.server.id, e.server.next = id, time.Now().Add(serverIDTTL)
		warn = id == ServerID{} && !e.server.warned
		e.server.warned = e.server.warned || warn
	}
	e.server.mu.Unlock()
	if warn {
		e.cfg.Log.Warn("lockkeeper: the server does not report its run_id (INFO server); whether another keeper uses the same server cannot be detected",
			"keeper", e.id, "error", err)
	}
}
