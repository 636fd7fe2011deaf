package protocol

import "github.com/lockkeeper/lockkeeper/lua"

// AcquireReply is the reply of acquire.lua or allow.lua.
type AcquireReply struct {
	Code          int64 // lua.Granted, Refused, Waiting, Tombstoned, Conflict or AboveLimit; if NeedsLong: none
	NeedsLong     bool  // the short form has not decided anything
	Now           int64 // the server's clock, if granted, refused or waiting
	Fence         int64 // if granted: of the lease, which lasts for the ttl that was asked for
	RetryAfter    int64 // if refused: until the request could be granted; not positive: not known
	Seq           int64 // if waiting: the last fence that was drawn
	Place         int64 // if waiting: of the queue's entry
	Rank          int   // if waiting: how many are ahead
	RetryIn       int64 // if waiting: when to send the next heartbeat; 0: after the interval
	Quota         Quota // of the window; only set by ParseAllowReply, if granted or refused
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
	code, err := reply(n).code(script)
	if err != nil {
		return AcquireReply{}, err
	}
	if len(n) == 1 {
		switch {
		case code > minFenceAlone && code <= maxFence: // a fence alone
			return AcquireReply{Code: lua.Granted, Fence: code}, nil
		case code == 0:
			return AcquireReply{NeedsLong: true}, nil
		case code < 0:
			return AcquireReply{Code: lua.Refused, RetryAfter: -code}, nil
		}
	}
	a := AcquireReply{Code: code}
	flags := int64(0)
	switch code {
	case lua.Granted:
		if err := reply(n).checkLength(script, 5); err != nil {
			return AcquireReply{}, err
		}
		until := n[3]
		a.Fence, a.Now, flags = n[1], n[2], n[4]
		if a.Fence <= 0 || a.Now < 0 || until <= a.Now {
			return AcquireReply{}, invalid(script, "fence %d, from %d until %d", a.Fence, a.Now, until)
		}
	case lua.Refused:
		if err := reply(n).checkLength(script, 4); err != nil {
			return AcquireReply{}, err
		}
		a.Now, a.RetryAfter, flags = n[1], n[2], n[3]
	case lua.Waiting:
		if err := reply(n).checkLength(script, 7); err != nil {
			return AcquireReply{}, err
		}
		a.Now, a.Seq, a.Place, a.Rank, a.RetryIn, flags = n[1], n[2], n[3], int(n[4]), n[5], n[6]
	case lua.Tombstoned, lua.Conflict, lua.AboveLimit:
	default:
		return AcquireReply{}, invalid(script, "code %d", code)
	}
	a.More, a.LimitsChanged = flags&moreToAdmit != 0, flags&limitsChanged != 0
	return a, nil
}

// ParsePartReply returns the reply of redlock's acquire.lua to a request whose token names that least fence, or none if it is 0.
func ParsePartReply(n []int64, least int64) (AcquireReply, error) {
	a := AcquireReply{Code: lua.Granted, Fence: least}
	switch {
	case len(n) == 1 && n[0] > minFenceAlone:
		a.Now = n[0] / 1000
	case len(n) == 2 && n[0] > minFenceAlone:
		a.Fence, a.Now = n[0], n[1]/1000
	case len(n) == 1 && n[0] == 0:
		return AcquireReply{}, invalid("acquire", "neither form has decided")
	default:
		return ParseAcquireReply(n)
	}
	if a.Fence <= 0 || a.Fence > maxFence || a.Now <= 0 || a.Now > maxFence/1000 {
		return AcquireReply{}, invalid("acquire", "fence %d at %d", a.Fence, a.Now)
	}
	return a, nil
}

// ParseAllowReply returns the reply of allow.lua: that of acquire.lua, and a quota if it is granted or refused. The short form
// leaves out what follows from the limit and the window, in ms, that the caller has sent.
func ParseAllowReply(n []int64, limit int, window int64) (AcquireReply, error) {
	if len(n) == 2 && n[0] > minFenceAlone && n[0] <= maxFence {
		return allowed(AcquireReply{Code: lua.Granted, Fence: n[0]}, int64(limit), n[1], window+1)
	}
	if len(n) == 3 && n[0] == lua.Refused {
		return allowed(AcquireReply{Code: lua.Refused, RetryAfter: n[1]}, int64(limit), 0, n[2])
	}
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

// allowed adds a quota to a reply.
func allowed(a AcquireReply, limit, remaining, reset int64) (AcquireReply, error) {
	if limit <= 0 || remaining < 0 || remaining > limit || reset < 0 {
		return AcquireReply{}, invalid("allow", "%d permits remain of %d, for %d ms", remaining, limit, reset)
	}
	a.Quota = Quota{Limit: int(limit), Remaining: int(remaining), ResetAfter: reset}
	return a, nil
}
