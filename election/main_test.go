package election_test

import (
	"fmt"
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
	before := goleak.IgnoreCurrent()
	code := m.Run()
	if code == 0 {
		// go-redis checks once a second whether a pool that it dials for has been closed.
		dialing := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
		if err := goleak.Find(before, redistest.IgnoreStarter(), dialing); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left:", err)
			code = 1
		}
	}
	os.Exit(code)
}
