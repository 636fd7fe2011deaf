package lookup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
)

// inspectOf returns an Inspect that knows these locks, by kind.
func inspectOf(locks map[lockkeeper.Kind]admin.LockState) Inspect {
	return func(_ context.Context, kind lockkeeper.Kind, name string) (*admin.LockState, error) {
		i := locks[kind]
		i.Kind, i.Name = kind, name
		return &i, nil
	}
}

func TestOneFindsTheKind(t *testing.T) {
	held := admin.LockState{Holders: make([]lockkeeper.Holder, 1)}
	waited := admin.LockState{Waiters: make([]lockkeeper.Waiter, 1)}
	used := admin.LockState{Fence: 1}
	limited := admin.LockState{Limits: &admin.Limits{}}
	type locks = map[lockkeeper.Kind]admin.LockState
	for name, c := range map[string]struct {
		locks      locks
		kind, want lockkeeper.Kind
		code       int
		says       string
	}{
		"held":             {locks{"fair": held}, "", "fair", 0, ""},
		"waited_for":       {locks{"rwlock": waited, "fair": used, "mutex": used}, "", "rwlock", 0, ""},
		"used":             {locks{"semaphore": limited}, "", "semaphore", 0, ""},
		"done":             {locks{"once": admin.LockState{RunAgainIn: 1}}, "", "once", 0, ""},
		"none":             {locks{}, "", "", exit.NotFound, "nobody holds it"},
		"none_of_the_kind": {locks{"fair": held}, "mutex", "", exit.NotFound, "no mutex"},
		"several":          {locks{"fair": held, "semaphore": waited}, "", "", exit.Usage, "fair, semaphore; choose one with --kind"},
		"several_used":     {locks{"fair": used, "once": used}, "", "", exit.Usage, "fair, once"},
		"chosen":           {locks{"fair": held, "semaphore": waited}, "semaphore", "semaphore", 0, ""},
		"redlock":          {locks{"mutex": held, "redlock": held}, "", "mutex", 0, ""},
		"redlock_chosen":   {locks{"mutex": held, "redlock": held}, "redlock", "redlock", 0, ""},
	} {
		i, err := One(t.Context(), inspectOf(c.locks), c.kind, "x")
		var own *exit.Error
		switch {
		case c.code == 0 && (err != nil || i.Kind != c.want || i.Name != "x"):
			t.Errorf("%s: %+v, %v", name, i, err)
		case c.code != 0 && (!errors.As(err, &own) || own.Code != c.code || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOneReturnsErrorOfTheServer(t *testing.T) {
	failed := errors.New("NOPERM")
	inspect := func(_ context.Context, kind lockkeeper.Kind, _ string) (*admin.LockState, error) {
		if kind == "once" {
			return nil, failed
		}
		return &admin.LockState{Fence: 1}, nil
	}
	check.Is(t, check.ErrorOf(One(t.Context(), inspect, "", "x")), failed, "the error")
}

func TestKindsCoverAllKeys(t *testing.T) {
	if got := searched(); slices.Contains(got, "redlock") || len(got) != len(Kinds())-1 {
		t.Errorf("%q of %q are searched", got, Kinds())
	}
}
