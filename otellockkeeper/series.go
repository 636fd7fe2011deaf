package otellockkeeper

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper"
)

// series are the attributes of the metrics of one kind, mode and name, made once.
type series struct {
	key seriesKey

	held, waiting atomic.Int64 // the values of the gauges

	lockObserve            []metric.ObserveOption // kind, mode and name
	lockRecord, kindRecord []metric.RecordOption  // the same; and without the mode
	kind, received         []metric.AddOption     // without the mode; and that of received messages
	endReleased, endLost   []metric.RecordOption
	granted                []metric.RecordOption // result = acquired

	others copyOnWrite[outcome, []metric.RecordOption] // the other results, of which there are few
}

type seriesKey struct {
	kind       lockkeeper.Kind
	mode, name string
}

var wakeupLost = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attribute.String("lockkeeper.result", "lost")))}

func newSeries(key seriesKey) *series {
	s := &series{key: key}
	set := func(list []attribute.KeyValue, more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributeSet(attribute.NewSet(slices.Concat(list, more)...))
	}
	kind, lock := s.kindAttributes(), s.lockAttributes()
	s.lockObserve = []metric.ObserveOption{set(lock)}
	s.lockRecord = []metric.RecordOption{set(lock)}
	s.kind = []metric.AddOption{set(kind)}
	s.kindRecord = []metric.RecordOption{set(kind)}
	s.received = []metric.AddOption{set(kind, attribute.String("lockkeeper.result", "received"))}
	s.endReleased = []metric.RecordOption{set(lock, attribute.String("lockkeeper.end", "released"))}
	s.endLost = []metric.RecordOption{set(lock, attribute.String("lockkeeper.end", "lost"))}
	s.granted = []metric.RecordOption{set(lock, attribute.String("lockkeeper.result", acquired.result))}
	return s
}

func (s *series) kindAttributes() []attribute.KeyValue {
	list := []attribute.KeyValue{attribute.String("lockkeeper.kind", string(s.key.kind))}
	if s.key.name != "" {
		list = append(list, attribute.String("lockkeeper.name", s.key.name))
	}
	return list
}

// lost returns the attributes of a lease that was lost.
func (s *series) lost(reason string) metric.AddOption {
	return metric.WithAttributeSet(attribute.NewSet(append(s.kindAttributes(), attribute.String("lockkeeper.reason", reason))...))
}

func (s *series) lockAttributes() []attribute.KeyValue {
	list := s.kindAttributes()
	if s.key.mode != "" {
		list = append(list, attribute.String("lockkeeper.mode", s.key.mode))
	}
	return list
}

// acquired returns the attributes of a call that ended in this way.
func (s *series) acquired(o outcome) []metric.RecordOption {
	if o == acquired {
		return s.granted
	}
	if list, ok := s.others.find(o); ok {
		return list
	}
	return s.others.add(o, func() []metric.RecordOption {
		list := append(s.lockAttributes(), attribute.String("lockkeeper.result", o.result))
		if o.errorType != "" {
			list = append(list, attribute.String("error.type", o.errorType))
		}
		return []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(list...))}
	})
}

// seriesTable has the series that were used so far.
type seriesTable struct {
	series copyOnWrite[seriesKey, *series]
	last   atomic.Pointer[series] // that was used
	init   func(*series)          // is called for each one once
}

// get returns the series of a key. If there are too many names, it is that without a name.
func (t *seriesTable) get(key seriesKey) *series {
	if s := t.last.Load(); s != nil && s.key == key {
		return s
	}
	s, ok := t.series.find(key)
	if !ok {
		if key.name != "" && t.series.size() >= maxCached {
			return t.get(seriesKey{kind: key.kind, mode: key.mode})
		}
		s = t.series.add(key, func() *series {
			s := newSeries(key)
			t.init(s)
			return s
		})
	}
	t.last.Store(s)
	return s
}

func (t *seriesTable) all() map[seriesKey]*series {
	if m := t.series.current.Load(); m != nil {
		return *m
	}
	return nil
}

// maxCached is how many series of a metric the SDK keeps by default.
const maxCached = 2000

// copyOnWrite is a map that is read without a lock or an allocation, and rarely grows.
type copyOnWrite[K comparable, V any] struct {
	mu      sync.Mutex // of writers
	current atomic.Pointer[map[K]V]
}

func (c *copyOnWrite[K, V]) find(key K) (v V, ok bool) {
	if m := c.current.Load(); m != nil {
		v, ok = (*m)[key]
	}
	return v, ok
}

func (c *copyOnWrite[K, V]) size() int {
	if m := c.current.Load(); m != nil {
		return len(*m)
	}
	return 0
}

// add returns the value of a key, which it makes if there is none.
func (c *copyOnWrite[K, V]) add(key K, make func() V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.find(key); ok {
		return v
	}
	next := map[K]V{}
	if m := c.current.Load(); m != nil {
		next = maps.Clone(*m)
	}
	next[key] = make()
	c.current.Store(&next)
	return next[key]
}
