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
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultnet"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/redis/go-redis/v9"
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

// Connect returns a client on a network that waits timeout for a reply, and what closes it. Its callers do not see redis.Client,
// which would slow down their build (see package client).
//
//go:noinline
func Connect(t testing.TB, n *faultnet.Net, timeout time.Duration) (c *client.Client, end func()) {
	t.Helper()
	rdb := redis.NewClient(faultnet.Options(n, timeout))
	return must.Get(client.New(rdb))(t), func() { must.Report(t, rdb.Close()) }
}
