// Package quiet keeps the output of tests free of messages about faults that they inject, and collects messages that a test checks.
package quiet

import (
	"bytes"
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Redis discards what go-redis logs in this process, such as each broken connection.
func Redis() { redis.SetLogger(discard{}) }

type discard struct{}

// Printf implements the logger of go-redis.
func (discard) Printf(context.Context, string, ...any) {}

// Buffer is a log that can be read while it is written.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Take returns what was written since it was last called.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
