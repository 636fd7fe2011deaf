package protocol

import "github.com/lockkeeper/lockkeeper/lua"

// AcquireReply is the reply of acquire.lua, of allow.lua, or of a fast script that acquires.
type AcquireReply struct {
	Code          int64 // lua.Granted, Refused, Waiting, Tombstoned, Conflict or AboveLimit; if Undecided: none
	Undecided     bool  // the fast script has not decided anything, and acquire.lua or allow.lua has to
	Now           int64 // the server's clock, if granted, refused or waiting
	Fence         int64 // if granted: of the lease, which lasts for the ttl that was asked for
	RetryAfter    int64 // if refused: until the request could be granted; not positive: not known
	Seq           int64 // if waiting: the last fence that was drawn
	Place         int64 // if waiting: of the queue's entry
	Rank          int   // if waiting: how many are ahead
	RetryIn       int64 // if waiting: when to send the next heartbeat; 0: after the interval
	Quota         Quota // of the window; only set by ParseAllowReply and ParseFastAllowReply, if granted or refused
	More          bool  // the script stopped at its bound before it had admitted all waiters that it could
	LimitsChanged bool  // the request has changed the limits in force
}

// Quota is what remains of a window.
type Quota struct {
	Limit      int
	Remaining  int
	ResetAfter int64 // until all permits have returned
}

// ParseAcquireReply returns the reply of acquire.lua.
func ParseAcquireReply(n []int64) (AcquireReply, error) {
	const script = "acquire"
	if err := reply(n).check(script, acquired); err != nil {
		return AcquireReply{}, err
	}
	a := AcquireReply{Code: n[0]}
	flags := int64(0)
	switch a.Code {
	case lua.Granted:
		until := n[3]
		a.Fence, a.Now, flags = n[1], n[2], n[4]
		if a.Fence <= 0 || a.Now < 0 || until <= a.Now {
			return AcquireReply{}, invalid(script, "fence %d, from %d until %d", a.Fence, a.Now, until)
		}
	case lua.Refused:
		a.Now, a.RetryAfter, flags = n[1], n[2], n[3]
	case lua.Waiting:
		a.Now, a.Seq, a.Place, a.Rank, a.RetryIn, flags = n[1], n[2], n[3], int(n[4]), n[5], n[6]
	}
	a.More, a.LimitsChanged = flags&lua.NoteMore != 0, flags&lua.NoteLimits != 0
	return a, nil
}

// ParseFastAcquireReply returns the reply of a fast script that acquires. The second number of window_acquire.lua is left out.
func ParseFastAcquireReply(n []int64) (AcquireReply, error) {
	const script = "a fast acquire"
	if err := reply(n).check(script, nil); err != nil {
		return AcquireReply{}, err
	}
	switch code := n[0]; {
	case len(n) > 2:
	case code > minFenceAlone && code <= maxFence:
		return AcquireReply{Code: lua.Granted, Fence: code}, nil
	case code < 0:
		return AcquireReply{Code: lua.Refused, RetryAfter: -code}, nil
	case code == lua.Undecided && len(n) == 1:
		return AcquireReply{Undecided: true}, nil
	}
	return AcquireReply{}, invalid(script, "%v", n)
}

// ParseFastAllowReply returns the reply of window_acquire.lua with the quota. limit and window, in ms, are those that the caller has sent.
func ParseFastAllowReply(n []int64, limit int, window int64) (AcquireReply, error) {
	a, err := ParseFastAcquireReply(n)
	switch {
	case err != nil || a.Undecided:
		return a, err
	case len(n) != 2:
		return AcquireReply{}, invalid("a fast acquire", "%v", n)
	case a.Code == lua.Granted:
		return allowed(a, int64(limit), n[1], window+1)
	}
	return allowed(a, int64(limit), 0, n[1])
}

// ParseAllowReply returns the reply of allow.lua: that of acquire.lua, and a quota if it is granted or refused.
func ParseAllowReply(n []int64) (AcquireReply, error) {
	if len(n) < 4 || n[0] != lua.Granted && n[0] != lua.Refused {
		return ParseAcquireReply(n)
	}
	rest := n[len(n)-3:]
	a, err := ParseAcquireReply(n[:len(n)-3])
	if err != nil {
		return AcquireReply{}, err
	}
	return allowed(a, rest[0], rest[1], rest[2])
}

func allowed(a AcquireReply, limit, remaining, reset int64) (AcquireReply, error) {
	if limit <= 0 || remaining < 0 || remaining > limit || reset < 0 {
		return AcquireReply{}, invalid("allow", "%d permits remain of %d, for %d ms", remaining, limit, reset)
	}
	a.Quota = Quota{Limit: int(limit), Remaining: int(remaining), ResetAfter: reset}
	return a, nil
}
