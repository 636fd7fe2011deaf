package retain

import "container/list"

// Names is a set of names, of which the least recently used leaves when there are too many. It is not safe for concurrent use.
type Names[V any] struct {
	most   int
	byName map[string]*list.Element
	order  list.List // of entry[V]; the most recently used first
}

type entry[V any] struct {
	name  string
	value V
}

// NewNames returns a set of that many names at most.
func NewNames[V any](most int) *Names[V] {
	return &Names[V]{most: most, byName: map[string]*list.Element{}}
}

// Get returns what is stored for the name, and whether there is anything. It counts as a use.
func (n *Names[V]) Get(name string) (v V, ok bool) {
	x := n.byName[name]
	if x == nil {
		return v, false
	}
	n.order.MoveToFront(x)
	return x.Value.(entry[V]).value, true
}

// Add stores a name that is not in the set. If there are too many now, it removes one, and returns what was stored for that.
func (n *Names[V]) Add(name string, v V) (removed V, some bool) {
	n.byName[name] = n.order.PushFront(entry[V]{name, v})
	if len(n.byName) <= n.most {
		return removed, false
	}
	last := n.order.Remove(n.order.Back()).(entry[V])
	delete(n.byName, last.name)
	return last.value, true
}
