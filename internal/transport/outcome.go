package transport

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/protocol"
	"github.com/redis/go-redis/v9"
)

// OutcomeOf returns whether the server ran a command that has ended with err.
func OutcomeOf(err error) claim.Outcome {
	if err == nil {
		return claim.Answered
	}
	var dial *net.OpError
	var notSent *notSentError
	switch {
	case partiallyExecuted(err):
		return claim.InDoubt
	case isRedis(err):
		return claim.Answered
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return claim.NotSent
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, &notSent):
		return claim.NotSent
	}
	return claim.InDoubt
}

// notSentError is the error of a call that was not sent. It wraps the reason.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// partiallyExecuted reports whether the server stopped the script after some of its writes, which stay. It happens while
// a slot moves to another node: a key that the script deleted no longer belongs to this node, so the script cannot write
// it again.
func partiallyExecuted(err error) bool {
	return isRedis(err) && strings.Contains(err.Error(), "non local key in a cluster node")
}

// Retryable reports whether the same request may succeed later without manual intervention: the connection broke, the
// server is starting, or a failover or slot migration is in progress.
func Retryable(err error) bool {
	if errors.Is(err, redis.ErrClosed) || errors.Is(err, client.ErrClusterNode) || Malformed(err) {
		return false
	}
	if OutcomeOf(err) != claim.Answered {
		return true
	}
	return hasCode(err, nodeCodes) || hasCode(err, []string{"TRYAGAIN ", "MOVED ", "ASK ", "UNBLOCKED ", "NOSCRIPT "})
}

// nodeCodes begin the errors of a node that cannot serve at present, whatever the key.
var nodeCodes = []string{
	"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "BUSY ", "NOREPLICAS ", "max number of clients reached", // go-redis removes "ERR "
}

func hasCode(err error, codes []string) bool {
	return slices.ContainsFunc(codes, func(code string) bool { return redis.HasErrorPrefix(err, code) })
}

// ofNode reports whether the error says that the node does not answer, or cannot serve at present. An error about the command or its key, such as
// a wrong type or a missing permission, does not say so.
func ofNode(err error) bool {
	if err == nil || Malformed(err) {
		return false
	}
	return !isRedis(err) || hasCode(err, nodeCodes)
}

// Malformed reports whether the error is due to a reply that none of our scripts returns.
func Malformed(err error) bool {
	var number *strconv.NumError
	return errors.Is(err, protocol.ErrReply) || errors.As(err, &number) || err != nil && strings.HasPrefix(err.Error(), "redis: can't parse")
}

// WrongType reports whether a key of the lock has another Redis type than the script expects.
func WrongType(err error) bool { return isRedis(err) && strings.Contains(err.Error(), "WRONGTYPE") }

func isRedis(err error) bool {
	if err == nil {
		return false // errors.As would cost an allocation
	}
	var reply redis.Error
	return errors.As(err, &reply)
}
