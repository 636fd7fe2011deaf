// Package lookup finds a lock by its name, of whichever kind it is.
package lookup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper"
	"github.com/lockkeeper/lockkeeper/admin"
	"github.com/lockkeeper/lockkeeper/internal/cli/exit"
	"github.com/lockkeeper/lockkeeper/internal/cli/output"
	"github.com/lockkeeper/lockkeeper/lua"
	"github.com/spf13/cobra"
)

// Kinds returns the kinds of locks.
func Kinds() []string {
	var all []string
	for _, s := range lua.All {
		all = append(all, s.Kind)
	}
	return all
}

// searched are the kinds that a search without a kind asks for: one for each set of keys, so not redlock, which uses those of a
// mutex.
func searched() []lockkeeper.Kind {
	var all []lockkeeper.Kind
	for _, s := range lua.All {
		if s.Kind == s.KeyKind {
			all = append(all, lockkeeper.Kind(s.Kind))
		}
	}
	return all
}

// KindFlag adds the flag --kind to a command that takes one name.
func KindFlag(c *cobra.Command, kind *string) {
	c.Flags().StringVar(kind, "kind", "", "`kind` of the lock, if there are several of this name: "+strings.Join(Kinds(), ", "))
	CompleteKinds(c)
}

// CompleteKinds makes the shell complete the flag --kind.
func CompleteKinds(c *cobra.Command) {
	if err := c.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(Kinds(), cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(fmt.Sprintf("bug: lookup: %v", err))
	}
}

// CheckKind returns a usage error if kind is neither one nor "".
func CheckKind(kind string) error {
	if kind != "" && !slices.Contains(Kinds(), kind) {
		return exit.Usagef("--kind %q is not one of: %s", kind, strings.Join(Kinds(), ", "))
	}
	return nil
}

// OneName is the Args of a command that takes one name.
func OneName(c *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return exit.Usagef("NAME is missing; usage: %s", c.UseLine())
	case 1:
		return nil
	}
	return exit.Usagef("%d names, want one; usage: %s", len(args), c.UseLine())
}

// Inspect is admin.Inspect for one keeper.
type Inspect func(ctx context.Context, kind lockkeeper.Kind, name string) (*admin.LockState, error)

// With returns the Inspect of a keeper.
func With(k *lockkeeper.Keeper) Inspect {
	return func(ctx context.Context, kind lockkeeper.Kind, name string) (*admin.LockState, error) {
		return admin.Inspect(ctx, k, kind, name)
	}
}

// Contended reports whether anybody holds the lock or waits for it.
func Contended(i *admin.LockState) bool { return len(i.Holders)+len(i.Waiters) > 0 }

// All returns the state of a name in the given kind or, if that is "", in every kind.
func All(ctx context.Context, inspect Inspect, kind lockkeeper.Kind, name string) ([]*admin.LockState, error) {
	kinds := []lockkeeper.Kind{kind}
	if kind == "" {
		kinds = searched()
	}
	all, errs := make([]*admin.LockState, len(kinds)), make([]error, len(kinds))
	var wg sync.WaitGroup
	for i, kind := range kinds {
		wg.Go(func() { all[i], errs[i] = inspect(ctx, kind, name) })
	}
	wg.Wait()
	for _, err := range errs { // of several, one says enough
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// One returns the lock of a name, in the given kind or, if that is "", in the only one in which anybody holds it or waits for
// it; if there is none, in the only one in which it was used recently.
func One(ctx context.Context, inspect Inspect, kind lockkeeper.Kind, name string) (*admin.LockState, error) {
	all, err := All(ctx, inspect, kind, name)
	if err != nil {
		return nil, err
	}
	var contended, used []*admin.LockState
	for _, i := range all {
		switch {
		case Contended(i):
			contended = append(contended, i)
		case i.Fence != 0 || i.Limits != nil || i.RunAgainIn != 0: // the record of a job can outlast the metadata
			used = append(used, i)
		}
	}
	found := contended
	if len(found) == 0 {
		found = used
	}
	switch len(found) {
	case 0:
		return nil, notFound(kind, name)
	case 1:
		return found[0], nil
	}
	var kinds []string
	for _, i := range found {
		kinds = append(kinds, string(i.Kind))
	}
	return nil, exit.Usagef("there are locks of %d kinds with the name %s: %s; choose one with --kind", len(kinds), output.Name(name), strings.Join(kinds, ", "))
}

func notFound(kind lockkeeper.Kind, name string) error {
	if kind == "" {
		kind = "lock"
	}
	return &exit.Error{Code: exit.NotFound, Err: errors.New("no " + string(kind) + " " + output.Name(name) + ": nobody holds it or waits for it, and it was not used recently")}
}

// DefaultTimeout is how long a command that looks at one lock waits for the answer of the server.
const DefaultTimeout = 10 * time.Second
