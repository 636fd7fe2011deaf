package election_test

import (
	"os"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/quiet"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	quiet.Redis()
	if address := os.Getenv(candidateAddr); address != "" {
		candidate(address)
		return
	}
	// go-redis checks once a second whether a pool that it dials for has been closed.
	dialing := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
	goleak.VerifyTestMain(m, redistest.IgnoreStarter(), dialing)
}
