package server

import (
	"sync"
	"time"
)

// Clock is the last reading of the server's clock. It is safe for concurrent use.
type Clock struct {
	mu   sync.Mutex
	ms   int64     // 0: not known
	sent time.Time // when the call was sent that has read it
}

// Note records a reading in ms, from the reply to a call that was sent at that time.
func (c *Clock) Note(ms int64, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ms > 0 && sent.After(c.sent) {
		c.ms, c.sent = ms, sent
	}
}

// Last returns the last reading in ms, 0 if there is none, and when the call was sent that has read it.
func (c *Clock) Last() (ms int64, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ms, c.sent
}
