package server

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// LogInterval is how often a LogLimit logs a message that repeats.
const LogInterval = time.Minute

// LogLimit keeps what happens again and again from filling the log. The zero value is ready to use. It is safe for concurrent use.
type LogLimit struct {
	mu    sync.Mutex
	at    time.Time // when it last logged
	level slog.Level
}

// Log logs a message, unless one of the same level was logged less than LogInterval ago.
func (l *LogLimit) Log(log *slog.Logger, level slog.Level, message string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	due := l.at.IsZero() || l.level != level || now.Sub(l.at) >= LogInterval
	if due {
		l.at, l.level = now, level
	}
	l.mu.Unlock()
	if due {
		log.Log(context.Background(), level, message, args...)
	}
}
