package keeper

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lease"
)

// guardedLog is a log that one goroutine writes while another reads it.
type guardedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (g *guardedLog) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

// take returns what was written since it was last called.
func (g *guardedLog) take() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer g.text.Reset()
	return g.text.String()
}

// TestLeaksAreLoggedOnce checks that of many leases that leak one is logged, and then the number of the others, while the hook gets all.
func TestLeaksAreLoggedOnce(t *testing.T) {
	inBubble(t, func(s *fixture) {
		log := &guardedLog{}
		s.Config.Log = slog.New(slog.NewTextHandler(log, nil))
		l := s.lock("x")
		leak := func(n int) {
			for i := range n {
				l.ReportLeak(nil, fmt.Sprint("token", i), 1, time.Second)
			}
		}
		lines := log.take
		leak(10_000)
		if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "token0") {
			s.Errorf("at first:\n%s", got)
		}
		time.Sleep(time.Minute + time.Second)
		if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "leases=9999") {
			s.Errorf("a minute later:\n%s", got)
		}
		time.Sleep(2 * time.Minute)
		leak(2)
		if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "token0") {
			s.Errorf("later:\n%s", got)
		}
		time.Sleep(time.Minute + time.Second)
		if got := lines(); !strings.Contains(got, "leases=1") {
			s.Errorf("at the end:\n%s", got)
		}
		if n := s.countEvents(lease.Leaked); n != 10_002 {
			s.Errorf("%d events", n)
		}
	})
}
