package server

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
	"github.com/lockkeeper/lockkeeper/internal/transport"
	"github.com/lockkeeper/lockkeeper/lua"
)

// This file converts between what scripts and calls say and what claims know.

// CodeOf returns what a code of a script says.
func CodeOf(code int64) claim.Code { return codes[code] }

var codes = map[int64]claim.Code{
	lua.Granted: claim.Granted, lua.Waiting: claim.Queued, lua.Refused: claim.Denied, lua.Tombstoned: claim.Tombstoned,
	lua.Conflict: claim.Conflict, lua.AboveLimit: claim.AboveLimit,
}

// OutcomeOf returns whether the server ran a call that has ended with that error.
func OutcomeOf(err error) claim.Outcome { return claim.Outcome(transport.OutcomeOf(err)) }

// Millis converts a duration to whole milliseconds, which scripts take.
func Millis(d time.Duration) int64 { return claim.Millis(d) }

// Duration converts milliseconds to a duration.
func Duration(ms int64) time.Duration { return claim.Duration(ms) }
