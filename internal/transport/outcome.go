package transport

import (
	"errors"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Outcome is what is known of a command that ended with an error.
type Outcome int

const (
	// Answered: the server has said what it did, or that it refused.
	Answered Outcome = iota
	// NotSent: the command never left.
	NotSent
	// InDoubt: the command may have run, may run yet, or may not, or only its first part has.
	InDoubt
)

// OutcomeOf tells from an error what is known of its command.
func OutcomeOf(err error) Outcome {
	var dial *net.OpError
	var left *notSentError
	switch {
	case partiallyExecuted(err):
		return InDoubt
	case err == nil, isRedis(err):
		return Answered
	case errors.Is(err, redis.ErrClosed), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return NotSent
	case errors.As(err, &dial) && dial.Op == "dial", errors.As(err, &left):
		return NotSent
	}
	return InDoubt
}

// notSentError is why a call could not be sent: no server was found for it.
type notSentError struct{ err error }

func (u *notSentError) Error() string { return u.err.Error() }
func (u *notSentError) Unwrap() error { return u.err }

// partiallyExecuted says whether the script was stopped in the middle, and what it had done by then stays: while a slot moves away, a
// key that a script has deleted is not the node's any more, and so cannot be written again by the same script.
func partiallyExecuted(err error) bool {
	return isRedis(err) && strings.Contains(err.Error(), "non local key in a cluster node")
}

// Retryable says whether the same request may succeed later without anybody mending anything by hand: the connection
// broke, the server is starting, a failover or a migration is under way.
func Retryable(err error) bool {
	if errors.Is(err, redis.ErrClosed) || Malformed(err) {
		return false
	}
	if OutcomeOf(err) != Answered {
		return true
	}
	for _, code := range []string{
		"LOADING ", "READONLY ", "MASTERDOWN ", "CLUSTERDOWN ", "TRYAGAIN ", "BUSY ", "NOREPLICAS ", "MOVED ", "ASK ",
		"UNBLOCKED ", "max number of clients reached", "NOSCRIPT ", // go-redis takes "ERR " away
	} {
		if redis.HasErrorPrefix(err, code) {
			return true
		}
	}
	return false
}

// Malformed says whether what came back was not a reply that a script of ours gives.
func Malformed(err error) bool {
	var number *strconv.NumError
	return errors.Is(err, ErrReply) || errors.As(err, &number) || err != nil && strings.HasPrefix(err.Error(), "redis: can't parse")
}

// WrongType says whether a key of the lock holds something else.
func WrongType(err error) bool {
	return isRedis(err) && strings.Contains(err.Error(), "WRONGTYPE")
}

func isRedis(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}
