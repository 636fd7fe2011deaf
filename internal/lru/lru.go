// Package lru has a map of bounded size, for packages keeper and ahead. It has no mutex: they call it under theirs.
package lru

import "container/list"

// Map maps names to values. When there are too many, it drops the least recently used. It is not safe for concurrent use.
type Map[V any] struct {
	most   int
	byName map[string]*list.Element
	order  list.List // of entry[V]; the most recently used first
}

type entry[V any] struct {
	name  string
	value V
}

// New returns a map of at most so many names.
func New[V any](most int) *Map[V] {
	return &Map[V]{most: most, byName: map[string]*list.Element{}}
}

// Get returns what is stored for the name, and whether there is anything. It counts as a use.
func (m *Map[V]) Get(name string) (v V, ok bool) {
	x := m.byName[name]
	if x == nil {
		return v, false
	}
	m.order.MoveToFront(x)
	return x.Value.(entry[V]).value, true
}

// Add stores a value for a name that has none. If there are too many now, it drops the least recently used name, and returns its value.
func (m *Map[V]) Add(name string, v V) (removed V, some bool) {
	m.byName[name] = m.order.PushFront(entry[V]{name, v})
	if len(m.byName) <= m.most {
		return removed, false
	}
	last := m.order.Remove(m.order.Back()).(entry[V])
	delete(m.byName, last.name)
	return last.value, true
}
