package lifecycle

import "context"

// Group is several leases that are held together. It ends when the first of them ends, with the error of that lease. The group refers to its
// leases, and each lease refers to the group until the lease ends.
type Group struct {
	Lifecycle
	leases []Handle
}

// NewGroup returns a group without leases.
func NewGroup() *Group {
	g := &Group{}
	g.Begin(g)
	return g
}

// Add adds a lease. The group must not be in use elsewhere yet.
func (g *Group) Add(h Handle) {
	g.leases = append(g.leases, h)
	h.OnEnd(g.end)
}

// CheckDeadline implements DeadlineChecker.
func (g *Group) CheckDeadline() {
	for _, h := range g.leases {
		if err := h.Err(); err != nil {
			g.end(err) // the goroutine that ended the lease may not have called end yet
			return
		}
	}
}

func (g *Group) end(err error) { g.End(err)() }

// ContextFor returns a context of the group that refers to user, as the function ContextFor does for one lease.
func (g *Group) ContextFor(parent context.Context, user any) context.Context {
	return withUser(g.Context(parent), user)
}
