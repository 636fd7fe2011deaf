package admin_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/parallel"
	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	parallel.Tests("8")
	goleak.VerifyTestMain(m, redistest.IgnoreStarter())
}

var background = context.Background()

// noServer returns a client that fails the test if it connects.
func noServer(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		t.Error("the client has connected")
		return nil, io.EOF
	}})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}
