// Package quiet keeps the output of tests free of messages about faults that they inject, and collects messages that a test checks.
package quiet

import (
	"bytes"
	"context"
	"log/slog"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Redis discards what go-redis logs in this process, such as each broken connection.
func Redis() { redis.SetLogger(discard{}) }

type discard struct{}

// Printf implements the logger of go-redis.
func (discard) Printf(context.Context, string, ...any) {}

// Logger returns a logger that discards what keepers warn of, such as faults that a test injects. What they log as an error is a bug of this
// module: then report is called with it, or the process panics if report is nil.
func Logger(report func(bug string)) *slog.Logger {
	if report == nil {
		report = func(bug string) { panic(bug) }
	}
	return slog.New(bugs{slog.DiscardHandler, report})
}

// bugs is a slog.Handler that passes errors on.
type bugs struct {
	slog.Handler
	report func(string)
}

// Enabled implements slog.Handler.
func (bugs) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }

// Handle implements slog.Handler.
func (b bugs) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += " " + a.String()
		return true
	})
	b.report(text)
	return nil
}

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
