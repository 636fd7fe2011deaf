package main

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// A job that is skipped while another process holds the lock must not be skipped because Redis is down.
func TestRunDistinguishesOutageFromContention(t *testing.T) {
	t.Parallel()
	redistest.RequireBinary(t)
	s := redistest.Start(t)
	url := "redis://" + s.Addr
	s.Freeze()
	for _, kind := range []string{"mutex", "fair", "redlock"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			command(t, "run", "--redis", url, "--kind", kind, "--wait", "700ms", "x", "--", "true").
				ends(exit.Unreachable, "server unavailable: no ", "deadline exceeded")
		})
	}
}
