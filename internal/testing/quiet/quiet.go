// Package quiet keeps the output of tests free of messages about faults that they inject.
package quiet

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Redis discards what go-redis logs in this process, such as each broken connection.
func Redis() { redis.SetLogger(discard{}) }

type discard struct{}

// Printf implements the logger of go-redis.
func (discard) Printf(context.Context, string, ...any) {}
