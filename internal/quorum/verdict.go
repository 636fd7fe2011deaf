package quorum

import (
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/server"
	"github.com/lockkeeper/lockkeeper/internal/transport"
)

// tally counts the servers by how they stand to a lease.
type tally struct {
	agreed  int // granted it, and give only larger fences than the lease's
	granted int // granted it, but may still give smaller fences
	refused int // another holder has it
	pending int // have not answered yet
}

func (u *Lease) tallyLocked(now time.Time) (t tally) {
	for i := range u.members {
		switch s := &u.members[i]; {
		case s.state == memberAsking:
			t.pending++
		case s.state == memberFailed && errors.Is(s.err, server.ErrNotAcquired):
			t.refused++
		case !s.live(now):
		case u.agreesLocked(s):
			t.agreed++
		default:
			t.granted++
		}
	}
	return t
}

// failed reports whether no majority is possible any more. If refusals do not explain it, failed waits until all have answered, so that the cause
// is known.
func (t tally) failed(need int) bool {
	if t.agreed+t.granted+t.pending >= need {
		return false
	}
	return t.pending == 0 || t.refused > 0 && t.agreed+t.granted+t.refused >= need
}

// verdict is the result of an attempt that failed.
type verdict struct {
	answers    []error       // of the servers
	contended  bool          // a majority answered, and only other holders prevented the lease
	hopeless   bool          // another attempt would fail as well until somebody changes something at the servers
	retryAfter time.Duration // if contended: after which enough of the leases in the way may have expired
	causes     []error       // if not contended
}

// verdict is the result of an attempt that failed. A refusal is not evidence of another holder where a cleanup of an earlier
// attempt is unfinished.
func (u *Lease) verdict(leftovers [][]*keeper.Cleanup) verdict {
	u.mu.Lock()
	defer u.mu.Unlock()
	v := verdict{answers: u.answersLocked()}
	granted, refused := 0, 0
	var permanent, passing []error
	var expiries []time.Duration // of the leases in the way
	for i, err := range v.answers {
		switch {
		case errors.Is(err, server.ErrLost): // before there was a majority
			err = keeper.ErrTooLate
		case leftovers != nil && len(leftovers[i]) > 0 && errors.Is(err, server.ErrNotAcquired):
			err = errCleanupPending
		}
		v.answers[i] = err
		switch {
		case err == nil:
			granted++
		case errors.Is(err, server.ErrNotAcquired):
			refused++
			after := u.members[i].retryAfter
			if after == 0 { // not known
				after = server.LongestTTL
			}
			expiries = append(expiries, after)
		case !transport.Retryable(err):
			permanent = append(permanent, err)
		default:
			passing = append(passing, err)
		}
	}
	need := u.lock.need
	v.contended = refused > 0 && granted+refused >= need
	if v.hopeless = len(permanent) > len(u.members)-need; v.hopeless {
		v.causes = append([]error{errMinority}, permanent...)
	} else {
		v.causes = append(append([]error{errNoQuorum}, permanent...), passing...)
	}
	if v.contended {
		slices.Sort(expiries)
		v.retryAfter = expiries[max(need-granted, 1)-1] + time.Millisecond // a lease expires within the millisecond that is named
	}
	return v
}
