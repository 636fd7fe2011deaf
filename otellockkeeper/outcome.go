package otellockkeeper

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/once"
	"github.com/lockkeeper/lockkeeper/ratelimit"
)

// outcome says how a call ended. Both fields have few values.
type outcome struct{ result, errorType string }

var acquired = outcome{result: "acquired"}

func outcomeOf(kind lockkeeper.Kind, err error) outcome {
	switch {
	case err == nil:
		return acquired
	case errors.Is(err, lockkeeper.ErrUnavailable): // also if the context ended meanwhile
		return outcome{"error", "unavailable"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return outcome{result: "canceled"}
	case errors.Is(err, lockkeeper.ErrNotAcquired) && kind == ratelimit.Kind:
		return outcome{result: "rejected"}
	case errors.Is(err, lockkeeper.ErrNotAcquired) && kind == once.Kind:
		return outcome{result: "skipped"}
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

// otherReason stands for a reason that has no name.
const otherReason = "_OTHER"

// lossReasons are the results of reasonOf.
func lossReasons() []string {
	list := []string{otherReason}
	for _, reason := range lockkeeper.LossReasons() {
		list = append(list, string(reason))
	}
	return list
}

// reasonOf says why a lease was lost.
func reasonOf(e *lockkeeper.Event) string { return cmp.Or(string(e.Reason), otherReason) }
