package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// singleClient is implemented by clients of a single server, with or without Sentinel.
type singleClient interface {
	Pipeline() redis.Pipeliner
	Subscribe(ctx context.Context, channels ...string) *redis.PubSub
	Conn() *redis.Conn
	Options() *redis.Options
}

// server is a single server, with or without Sentinel.
type server struct{ rdb singleClient }

func (s server) Pipeline() redis.Pipeliner { return s.rdb.Pipeline() }

// Primary returns none: there are no other nodes.
func (server) Primary(context.Context, string) (Node, error) { return nil, nil }

// Reload does nothing: there is no slot map.
func (server) Reload(context.Context) {}

func (s server) Subscribe(ctx context.Context, _ Node) Subscription {
	return s.rdb.Subscribe(ctx)
}

func (s server) Conn(context.Context, string) (Conn, string, error) {
	return s.rdb.Conn(), "", nil
}

func (s server) PrimaryConns(context.Context) ([]Conn, error) {
	return []Conn{s.rdb.Conn()}, nil
}

func (s server) Pipelines(Node) int { return pipelines(s.rdb.Options()) }

func pipelines(o *redis.Options) int {
	switch {
	case o.PipelinePoolSize == 0:
		return redis.DefaultPipelinePoolSize
	case o.PipelinePoolSize > 0:
		return o.PipelinePoolSize
	}
	return max(o.PoolSize, 1)
}

// failoverAddr is what go-redis shows as the address of a primary behind Sentinel.
const failoverAddr = "FailoverClient"

func (s server) String() string {
	o := s.rdb.Options()
	switch {
	case o.Addr == failoverAddr:
		return "primary behind Sentinel, database " + strconv.Itoa(o.DB)
	case o.Network == "unix":
		return "unix://" + o.Addr
	case o.TLSConfig != nil:
		return "rediss://" + o.Addr + "/" + strconv.Itoa(o.DB)
	}
	return "redis://" + o.Addr + "/" + strconv.Itoa(o.DB)
}

func (s server) Own(ctx context.Context, dialed func(net.Conn), lost func()) (own, hooked Conn) {
	application, ok := s.rdb.(*redis.Client)
	if !ok || application.Options().Addr == failoverAddr {
		return nil, nil
	}
	o := *application.Options()
	dial := o.Dialer
	var again atomic.Bool
	o.Dialer = func(of context.Context, network, addr string) (net.Conn, error) {
		if again.Swap(true) {
			lost()
			return failed(&net.OpError{Op: "dial", Net: network, Err: errors.New("the connection was lost")}), nil
		}
		of, cancel := context.WithCancel(of)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		conn, err := dial(of, network, addr)
		if err != nil {
			return failed(err), nil
		}
		dialed(conn)
		return conn, nil
	}
	o.PoolSize, o.PipelinePoolSize = 1, -1
	o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 0, 0, 0
	o.DialerRetries, o.MaxRetries = 1, -1
	o.ClientSideCacheConfig, o.ClientSideCache = nil, nil
	// The application's processor handles messages about its own pool, and go-redis cannot register its handlers again.
	o.PushNotificationProcessor = nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.ReadTimeout, o.WriteTimeout = asGiven(o.ReadTimeout), asGiven(o.WriteTimeout)
	client := redis.NewClient(&o)
	conn := application.Conn() // it has the hooks, and would take a connection at its first command only
	conn.AddHook(sendBy{client})
	return client, conn
}

// failed returns a connection that fails with the error of a dial. go-redis would log the error itself, although the application's pool works.
func failed(err error) net.Conn {
	conn, _ := net.Pipe()                          // for the methods that do nothing
	return failedConn{conn, fmt.Errorf("%w", err)} // go-redis unwraps it once
}

type failedConn struct {
	net.Conn
	err error
}

func (c failedConn) Write([]byte) (int, error) { return 0, c.err }

// asGiven returns the timeout to set for one that a client's options show. go-redis shows -1, which means none, as 0, but takes 0 as its default.
func asGiven(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return timeout - 1
	}
	return timeout
}

// sendBy is a hook that sends commands by another client.
type sendBy struct{ other *redis.Client }

// DialHook implements redis.Hook.
func (sendBy) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (s sendBy) ProcessHook(redis.ProcessHook) redis.ProcessHook { return s.other.Process }

// ProcessPipelineHook implements redis.Hook.
func (sendBy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
