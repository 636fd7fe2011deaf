package lockkeepertest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper"
)

// Recorder records the events of keepers. The zero value is ready for use. It is safe for concurrent use.
//
//	var r lockkeepertest.Recorder
//	k := s.Keeper(t, &lockkeeper.Options{Hooks: r.Hooks()})
//	...
//	lost := r.Require(t, "Lost", "orders:42")
type Recorder struct {
	mu     sync.Mutex // guards what follows
	events []Recorded
	next   map[string]int // by hook and name: the index after the event that Require has returned last
}

// Recorded is a call of a hook.
type Recorded struct {
	Hook string // the name of the field of lockkeeper.Hooks, such as "Lost"
	lockkeeper.Event
}

// String describes the event, without durations and identities.
func (r Recorded) String() string {
	text := r.Hook
	if r.Name != "" {
		text += fmt.Sprintf(" %s %q", r.Kind, r.Name)
	}
	if r.Err != nil {
		text += ": " + r.Err.Error()
	}
	return text
}

// Hooks returns hooks that record every event, for one keeper or several.
func (r *Recorder) Hooks() lockkeeper.Hooks {
	var hooks lockkeeper.Hooks
	v := reflect.ValueOf(&hooks).Elem()
	for i := range v.NumField() {
		hook := v.Type().Field(i).Name
		if record := reflect.ValueOf(func(e lockkeeper.Event) { r.record(Recorded{hook, e}) }); record.Type() == v.Field(i).Type() {
			v.Field(i).Set(record)
		}
	}
	return hooks
}

func (r *Recorder) record(e Recorded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// Events returns all events so far, in the order in which the hooks were called.
func (r *Recorder) Events() []Recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Require waits until a hook is called for the lock of a name, and returns the event. An empty name stands for any lock. Each
// event is returned once: the next call with the same hook and name waits for the next event. Require fails the test after a
// minute; the failure lists what was recorded.
func (r *Recorder) Require(t testing.TB, hook, name string) Recorded {
	t.Helper()
	if f, ok := reflect.TypeFor[lockkeeper.Hooks]().FieldByName(hook); !ok || f.Type != reflect.TypeFor[func(lockkeeper.Event)]() {
		t.Fatalf("lockkeepertest: lockkeeper.Hooks has no hook %q", hook)
	}
	end := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, longestPause) {
		if e, ok := r.take(hook, name); ok {
			return e
		}
		if time.Now().After(end) {
			texts := []string{}
			for _, e := range r.Events() {
				texts = append(texts, e.String())
			}
			t.Fatalf("lockkeepertest: no %s of %q within %v. Recorded were: %s", hook, name, patience, strings.Join(texts, ", "))
		}
		time.Sleep(pause)
	}
}

// take returns the next event of a hook and name, if there is one.
func (r *Recorder) take(hook, name string) (Recorded, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := hook + " " + name
	for i := r.next[key]; i < len(r.events); i++ {
		if e := r.events[i]; e.Hook == hook && (name == "" || e.Name == name) {
			if r.next == nil {
				r.next = map[string]int{}
			}
			r.next[key] = i + 1
			return e, true
		}
	}
	return Recorded{}, false
}
