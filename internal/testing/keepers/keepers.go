// Package keepers makes keepers for tests that do not see the type of their clients, because a package that sees it is slow to
// build (see package client).
package keepers

import (
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/redis/go-redis/v9"
)

// New returns a keeper on a client. It is closed with the test.
func New(t testing.TB, rdb redistest.Client, o *lockkeeper.Options) *lockkeeper.Keeper {
	t.Helper()
	k := must.Get(lockkeeper.New(rdb.(redis.UniversalClient), o))(t)
	t.Cleanup(func() { _ = k.Close() })
	return k
}
