package server

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

const (
	// serverIDKey says which node of a cluster is queried: the same one for two keepers on the same cluster.
	serverIDKey = "lockkeeper"
	// serverIDTTL is how long a server's identity is used before it is queried again: an address may come to mean another
	// server, or a failover may change it.
	serverIDTTL = time.Minute
	// serverIDRetry is the pause before the next query of a server that did not answer.
	serverIDRetry = time.Second
)

// ServerID returns which server the keeper of the lock uses, as far as is known, and whether it was ever queried. It does not
// block. A result that is a minute old is refreshed in the background.
func (r *Resource) ServerID() (id ID, queried bool) {
	s := r.s
	s.identity.mu.Lock()
	id, next := s.identity.id, s.identity.next
	s.identity.mu.Unlock()
	if next.IsZero() {
		return id, false
	}
	if !time.Now().Before(next) {
		r.QueryServerID()
	}
	return id, true
}

// QueryServerID asks the server for its run_id, unless a query is already unanswered. It does not block; the result is closed
// when the query has been answered or has failed.
func (r *Resource) QueryServerID() <-chan struct{} {
	s := r.s
	s.identity.mu.Lock()
	if answered := s.identity.query; answered != nil {
		s.identity.mu.Unlock()
		return answered
	}
	answered := make(chan struct{})
	s.identity.query = answered
	s.identity.next = time.Now().Add(serverIDRetry)
	s.identity.mu.Unlock()
	call := &transport.Call{Key: serverIDKey, Done: transport.Func(func(call *transport.Call) {
		id, err := Decode(call, protocol.ParseIdentityReply)
		s.setServerID(id, err)
		close(answered)
	})}
	call.SetCommand(r.scripts.Identity, nil)
	s.Transport.Send(call)
	return answered
}

func (s *Server) setServerID(id ID, err error) {
	s.identity.mu.Lock()
	s.identity.query = nil
	warn := false
	if transport.OutcomeOf(err) == claim.Answered {
		s.identity.id, s.identity.next = id, time.Now().Add(serverIDTTL)
		warn = id == ID{} && !s.identity.warned
		s.identity.warned = s.identity.warned || warn
	}
	s.identity.mu.Unlock()
	if warn {
		s.Config.Log.Warn("lockkeeper: the server does not report its run_id (INFO server); whether another keeper uses the same server cannot be detected",
			"keeper", s.id, "error", err)
	}
}
