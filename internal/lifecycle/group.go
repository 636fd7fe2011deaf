package lifecycle

import "context"

// Group is several leases that are held together: it ends when the first of them ends, with its error. It refers to them, and a lease
// to its group until it has ended.
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
			g.end(err) // the goroutine that ended the lease may not have called it yet
			return
		}
	}
}

func (g *Group) end(err error) { g.End(err)() }

// ContextFor is as the function ContextFor.
func (g *Group) ContextFor(parent context.Context, user any) context.Context {
	return withUser(g.Context(parent), user)
}
