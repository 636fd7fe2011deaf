package server

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/claim"
)

// Millis converts a duration to whole milliseconds, which scripts take.
func Millis(d time.Duration) int64 { return claim.Millis(d) }

// Duration converts milliseconds to a duration.
func Duration(ms int64) time.Duration { return claim.Duration(ms) }

// Margin is the safety margin subtracted from a lease's server-side TTL.
func Margin(d time.Duration) time.Duration { return claim.Margin(d) }
