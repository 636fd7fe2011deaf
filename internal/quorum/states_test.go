package quorum

import (
	"cmp"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/keeper"
	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// memberEvents and leaseEvents are the events of a member and of a lease, each with all that it may say.
var memberEvents = map[string][]func(*member) bool{
	"ask":    {func(s *member) bool { s.ask(nil); return true }},
	"answer": {func(s *member) bool { return s.answer(keeper.Part{Lease: &keeper.Lease{}}) }, func(s *member) bool { return s.answer(keeper.Part{}) }},
	"raise":  {(*member).raise},
	"raised": {func(s *member) bool { return s.raised(nil) }, func(s *member) bool { return s.raised(errors.New("")) }},
}

var leaseEvents = map[string][]func(*leaseState) bool{"hold": {(*leaseState).hold}, "end": {(*leaseState).end}}

// table says what each event does in each state: the states that follow, "ignored", or nothing if it cannot come.
type table map[string]map[string][]string

func (x table) add(state, event, after string) {
	if x[state] == nil {
		x[state] = map[string][]string{}
	}
	if !slices.Contains(x[state][event], after) {
		x[state][event] = append(x[state][event], after)
		slices.Sort(x[state][event])
	}
}

// TestStatesMatchTable sends each event to each state, and compares what follows with README.md.
func TestStatesMatchTable(t *testing.T) {
	documented, rows := readTable(t)
	found := table{}
	var states []string
	for state := range memberFailed + 1 {
		states = append(states, state.String())
		for name, events := range memberEvents {
			for _, event := range events {
				s := member{state: state}
				found.note(t, state.String(), name, event(&s), s.state.String(), name == "ask")
			}
		}
	}
	for state := range leaseOver + 1 {
		states = append(states, state.String())
		for name, events := range leaseEvents {
			for _, event := range events {
				s := state
				found.note(t, state.String(), name, event(&s), s.String(), false)
			}
		}
	}
	check.That(t, slices.Equal(rows, states), "README.md has rows of %v, the code has %v", rows, states)
	for _, state := range states {
		for event := range memberEvents {
			check.That(t, slices.Equal(documented[state][event], found[state][event]), "%s: %s leads to %q, but in README.md to %q",
				state, event, found[state][event], documented[state][event])
		}
		for event := range leaseEvents {
			check.That(t, slices.Equal(documented[state][event], found[state][event]), "%s: %s leads to %q, but in README.md to %q",
				state, event, found[state][event], documented[state][event])
		}
	}
}

// note notes what an event has done. One that leaves the state as it is is ignored, unless it begins it anew.
func (x table) note(t *testing.T, before, event string, possible bool, after string, anew bool) {
	switch {
	case !possible:
		check.That(t, before == after, "%s: %s is impossible, and yet leads to %s", before, event, after)
	case before == after && !anew:
		x.add(before, event, "ignored")
	default:
		x.add(before, event, after)
	}
}

// readTable returns the table of README.md, and the states of its rows. The third cell of a row lists "event → states", separated by semicolons,
// and the last one the events that are ignored.
func readTable(t *testing.T) (documented table, rows []string) {
	t.Helper()
	documented = table{}
	row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|.*\\| (.*) \\| (.*) \\|$")
	for _, m := range row.FindAllStringSubmatch(string(must.Get(os.ReadFile("README.md"))(t)), -1) {
		rows = append(rows, m[1])
		entries := strings.Split(m[2], "; ")
		for _, event := range strings.Split(m[3], ", ") {
			entries = append(entries, event+" → ignored")
		}
		for _, entry := range entries {
			events, after, _ := strings.Cut(entry, " → ")
			if events == "–" {
				continue
			}
			must.That(t, memberEvents[events] != nil || leaseEvents[events] != nil, "%q is not event → states", entry)
			for _, state := range strings.Split(cmp.Or(after, "?"), ", ") {
				documented.add(m[1], events, state)
			}
		}
	}
	return documented, rows
}
