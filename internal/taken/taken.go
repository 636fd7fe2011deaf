// Package taken adds up, by owner, permits that return by the clock: there can be very many, and nobody can release one. The inspector and
// the commands show these sums (ByOwner). It has no mutex.
package taken

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// Group is the permits of one owner.
type Group struct {
	Owner, Keeper string // Keeper only if there is no Owner
	Requests      int
	Permits       int
	Ahead         int           // those of Permits that its process has taken in blocks
	First, Last   time.Duration // until the first and the last of them return
}

// ByOwner adds up the permits of each owner, or of each keeper whose owner is not known. Who has most is first.
func ByOwner(list []lockkeeper.Holder) []Group {
	type key struct{ owner, keeper string }
	index := map[key]int{}
	var groups []Group
	for _, h := range list {
		k := key{h.Owner, h.Keeper}
		if h.Owner != "" {
			k.keeper = ""
		}
		i, found := index[k]
		if !found {
			i = len(groups)
			index[k] = i
			groups = append(groups, Group{Owner: k.owner, Keeper: k.keeper, First: h.ExpiresIn})
		}
		g := &groups[i]
		g.Requests++
		g.Permits += h.Permits
		if h.Ahead {
			g.Ahead += h.Permits
		}
		g.First, g.Last = min(g.First, h.ExpiresIn), max(g.Last, h.ExpiresIn)
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Permits, a.Permits), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Keeper, b.Keeper))
	})
	return groups
}
