// Package embedded runs tests on an embedded Redis server in virtual time.
package embedded

import (
	"context"
	"crypto/fips140"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
)

// Server is an embedded server in a synctest bubble. Its keys expire by the bubble's clock.
type Server struct {
	*testing.T
	Mini *miniredis.Miniredis
}

// Run runs a test in a synctest bubble with a server of its own. The test closes its clients itself, or by Cleanup. The
// bubble fails if a goroutine is left running.
func Run(t *testing.T, test func(s *Server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{T: t, Mini: miniredis.NewMiniRedis()}
		s.Mini.ClockTTL(true)
		t.Cleanup(func() {
			time.Sleep(time.Minute) // goroutines of go-redis poll once a second whether their pool was closed
			s.Mini.Close()
		})
		test(s)
	})
}

// Dial connects to the server. It is a faultnet.Dialer.
func (s *Server) Dial(context.Context, string, string) (conn net.Conn, err error) {
	fips140.WithoutEnforcement(func() { conn, err = s.Mini.Dial() }) // because the server computes SHA-1, in a goroutine that begins here
	return conn, err
}

// Network returns a new network on which faults can be injected, with this server behind it. It buffers what is written, as TCP does.
func (s *Server) Network() *faultnet.Net { return faultnet.New(faultnet.Buffer(s.Dial)) }
