package otellockkeeper

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper"
)

// outcome says how a call ended. Both fields have few values.
type outcome struct{ result, errorType string }

var acquired = outcome{result: "acquired"}

func outcomeOf(kind string, err error) outcome {
	switch {
	case err == nil:
		return acquired
	case errors.Is(err, lockkeeper.ErrUnavailable): // also if the context ended meanwhile
		return outcome{"error", "unavailable"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcome{result: "canceled"}
	case errors.Is(err, lockkeeper.ErrNotAcquired) && kind == "ratelimit":
		return outcome{result: "rejected"}
	case errors.Is(err, lockkeeper.ErrNotAcquired):
		return outcome{result: "not_acquired"}
	}
	return outcome{"error", errorType(err)}
}

// errorType names an error that is neither contention nor an end of the context.
func errorType(err error) string {
	var (
		replicas *lockkeeper.NotAcknowledgedError
		reply    redis.Error
		network  net.Error
	)
	switch {
	case errors.Is(err, lockkeeper.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, lockkeeper.ErrClosed):
		return "closed"
	case errors.Is(err, lockkeeper.ErrInvalid):
		return "invalid"
	case errors.Is(err, lockkeeper.ErrLost):
		return "lost"
	case errors.Is(err, lockkeeper.ErrReleased):
		return "released"
	case errors.As(err, &replicas):
		return "not_acknowledged"
	case errors.As(err, &reply):
		code, _, _ := strings.Cut(reply.Error(), " ")
		switch code {
		case "NOPERM", "NOAUTH", "WRONGPASS", "OOM", "MISCONF", "WRONGTYPE":
			return code
		}
		return "redis"
	case errors.As(err, &network):
		return "network"
	}
	return "_OTHER"
}

// reasons are texts in errors of lost leases. They follow ErrLost, and have no errors of their own in the API.
var reasons = []struct{ text, reason string }{
	{"reached its maximum lifetime", "max_lifetime"},
	{"its time is over and it is not renewed", "not_renewed"},
	{"it was not renewed in time", "expired"},
	{"the server does not know the token", "gone"},
	{"no majority of the servers", "no_majority"},
}

// lossReasons are the results of reasonOf.
var lossReasons = []string{"unavailable", "max_lifetime", "not_renewed", "expired", "gone", "no_majority", "_OTHER"}

// reasonOf says why a lease was lost.
func reasonOf(err error) string {
	switch {
	case err == nil:
		return "_OTHER"
	case errors.Is(err, lockkeeper.ErrUnavailable):
		return "unavailable"
	}
	for _, r := range reasons {
		if strings.Contains(err.Error(), r.text) {
			return r.reason
		}
	}
	return "_OTHER"
}
