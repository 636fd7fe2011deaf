package protocol

import "time"

// Defaults of lockkeeper.Options that commands and benchmarks need, too.
const (
	DefaultPrefix            = "lock:"
	DefaultHeartbeatInterval = 2 * time.Second
)
