package keeper

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
)

// TestLeaksAreLoggedOnce checks that of many leases that leak one is logged, and then the number of the others, while the hook gets all.
func TestLeaksAreLoggedOnce(t *testing.T) {
	inBubble(t, func(s *fixture) {
		log := &quiet.Buffer{}
		s.Config.Log = slog.New(slog.NewTextHandler(log, nil))
		l := s.lock("x")
		leak := func(n int) {
			for i := range n {
				l.ReportLeak(nil, fmt.Sprint("token", i), 1, time.Second)
			}
		}
		leak(10_000)
		if got := log.Take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "token0") {
			s.Errorf("at first:\n%s", got)
		}
		time.Sleep(time.Minute + time.Second)
		if got := log.Take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "leases=9999") {
			s.Errorf("a minute later:\n%s", got)
		}
		time.Sleep(2 * time.Minute)
		leak(2)
		if got := log.Take(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "token0") {
			s.Errorf("later:\n%s", got)
		}
		time.Sleep(time.Minute + time.Second)
		if got := log.Take(); !strings.Contains(got, "leases=1") {
			s.Errorf("at the end:\n%s", got)
		}
		if n := s.countEvents(lease.Leaked); n != 10_002 {
			s.Errorf("%d events", n)
		}
	})
}
