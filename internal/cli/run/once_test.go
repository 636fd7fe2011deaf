package run

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/keepers"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// TestOnceInterruptedAtTheGrant: a signal that comes when the lease was granted, and the command was not started yet.
func TestOnceInterruptedAtTheGrant(t *testing.T) {
	signals := make(chan os.Signal, 16)
	k := keepers.New(t, redistest.At(t, miniredis.RunT(t).Addr()), &lockkeeper.Options{Hooks: lockkeeper.Hooks{AcquireDone: func(lockkeeper.Event) {
		signals <- syscall.SIGTERM
		for len(signals) > 0 { // until the loop has received it
			time.Sleep(time.Millisecond)
		}
	}}})
	started := filepath.Join(t.TempDir(), "started")
	o := options{oncePer: time.Hour, ttl: 30 * time.Second, grace: time.Second}
	err := o.runOnce(context.Background(), k, "job", "/bin/sh", []string{"sh", "-c", "trap '' TERM; echo > " + started + "; sleep 0.1"}, signals)
	_, e := os.Stat(started)
	check.That(t, e != nil, "the command was started after the interrupt")
	var code *exit.Error
	check.That(t, errors.As(err, &code) && code.Code == 128+int(syscall.SIGTERM), "%#v: %v", code, err)
}
