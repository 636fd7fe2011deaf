package lockkeepertest_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

func TestRecorder(t *testing.T) {
	everywhere(t, func(t *testing.T, s *lockkeepertest.Server) {
		var r lockkeepertest.Recorder
		k := s.Keeper(t, &lockkeeper.Options{Hooks: r.Hooks()})
		m := newMutex(t, k, "x", ttl)
		for range 2 {
			release(t, lock(t, m))
		}
		release(t, lock(t, newMutex(t, k, "y", ttl)))
		first, second, third := r.Require(t, "Released", "x"), r.Require(t, "Released", "x"), r.Require(t, "Released", "y")
		check.That(t, first.Fence < second.Fence && third.Name == "y" && first.Kind == "mutex",
			"released: %+v, %+v, %+v", first, second, third)
		any := r.Require(t, "Released", "")
		check.That(t, any.Fence == first.Fence, "the first of any name: %+v", any)
		lease := lock(t, m)
		go func() {
			time.Sleep(10 * time.Millisecond)
			s.LoseLease(t, "x")
		}()
		lost := r.Require(t, "Lost", "x")
		check.That(t, errors.Is(lost.Err, lockkeeper.ErrLost), "lost: %+v", lost)
		_ = lease.Release(t.Context()) // until here it is reachable, and so not reported as leaked
		var hooks []string
		for _, e := range r.Events() {
			if e.Name == "x" && e.Hook != "Renewed" {
				hooks = append(hooks, e.Hook)
			}
		}
		want := []string{"AcquireStart", "AcquireDone", "Released", "AcquireStart", "AcquireDone", "Released", "AcquireStart", "AcquireDone", "Lost"}
		check.That(t, slices.Equal(hooks, want), "recorded %q", hooks)
	})
}

// TestRecorderSetsAllHooks: also those that are added later.
func TestRecorderSetsAllHooks(t *testing.T) {
	hooks := reflect.ValueOf(new(lockkeepertest.Recorder).Hooks())
	for i := range hooks.NumField() {
		check.That(t, !hooks.Field(i).IsNil(), "%s is not recorded", hooks.Type().Field(i).Name)
	}
}

func TestRecorderFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lockkeepertest.New(t)
		var r lockkeepertest.Recorder
		release(t, lock(t, newMutex(t, s.Keeper(t, &lockkeeper.Options{Hooks: r.Hooks()}), "x", nil)))
		for hook, want := range map[string]string{"Lost": `no Lost of "x" within 1m0s. Recorded were: AcquireStart mutex "x", AcquireDone mutex "x", Released mutex "x"`, "Last": `no hook "Last"`} {
			got := failuresOf(t, func(t testing.TB) { r.Require(t, hook, "x") })
			check.That(t, len(got) == 1 && strings.Contains(got[0], want), "%s: %q", hook, got)
		}
	})
}
