package claim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// transitions are, by state and kind of event, the states in which a claim may be after an event to which it reacts. An event that is ignored
// leads nowhere; one that is impossible has no entry.
type transitions map[State]map[Kind]map[State]bool

// to returns where an event leads, which it makes possible.
func (x transitions) to(from State, kind Kind) map[State]bool {
	if x[from] == nil {
		x[from] = map[Kind]map[State]bool{}
	}
	if x[from][kind] == nil {
		x[from][kind] = map[State]bool{}
	}
	return x[from][kind]
}

// text says what an event does.
func (x transitions) text(from State, kind Kind) string {
	after, possible := x[from][kind]
	switch {
	case !possible:
		return "impossible"
	case len(after) == 0:
		return "ignored"
	}
	var list []string
	for _, s := range slices.Sorted(maps.Keys(after)) {
		list = append(list, s.String())
	}
	return strings.Join(list, ", ")
}

// TestStatesMatchTable walks every pair of a state and an event that a claim can come to, and compares what follows with the table in
// README.md: other states, nothing, or the report that the event is impossible.
func TestStatesMatchTable(t *testing.T) {
	documented, found := readTransitions(t), walk(t)
	for from := range states {
		for kind := range kinds {
			if want, got := documented.text(from, kind), found.text(from, kind); want != got {
				t.Errorf("%s: %s is %q, but in README.md %q", from, kind, got, want)
			}
		}
	}
}

// TestEachStateIsEnteredByOneFunction compares the functions that assign a state with this list. hold is told which of two states it is, and
// prolong confirms the lease.
func TestEachStateIsEnteredByOneFunction(t *testing.T) {
	want := map[string][]string{
		"Waiting": {"wait"}, "Barred": {"bar"}, "Permitted": {"permit"}, "state": {"hold"}, "Held": {"prolong"}, "Gone": {"refuse"}, "Lost": {"lose"},
		"Releasing": {"release"}, "Inquiring": {"inquire"}, "Over": {"done"},
	}
	got := map[string][]string{}
	for _, name := range must.Get(filepath.Glob("*.go"))(t) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, d := range must.Get(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t).Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.AssignStmt:
					for i, left := range n.Lhs {
						if x, ok := left.(*ast.SelectorExpr); ok && x.Sel.Name == "state" {
							to := n.Rhs[i].(*ast.Ident).Name
							got[to] = append(got[to], d.(*ast.FuncDecl).Name.Name)
						}
					}
				case *ast.KeyValueExpr:
					if x, ok := n.Key.(*ast.Ident); ok && x.Name == "state" {
						t.Errorf("%s: a claim is made in a state", name)
					}
				}
				return true
			})
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("states are entered by %v, want %v", got, want)
	}
}

// walk makes claims of all kinds go through random events, whether a driver would send them or not, and returns what has followed. A claim
// does not react if nothing is to be done, and nothing has changed but the account of the calls.
func walk(t *testing.T) transitions {
	found := transitions{}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...int64) int64 { return list[random.IntN(len(list))] }
	yes := func() bool { return random.IntN(2) == 0 }
	impossible := [states][kinds]bool{}
	for range 100_000 {
		r := Rules{
			TTL: 10_000, ClaimTTL: 6_000, HeartbeatTimeout: 6 * time.Second, MetadataTTL: time.Hour,
			MaxLifetime: Duration(pick(0, 0, 12_000)), NoRenewal: random.IntN(4) == 0, ByClock: random.IntN(8) == 0,
		}
		c := New(Mode(random.IntN(int(Part)+1)), yes(), yes())
		switch random.IntN(8) {
		case 0:
			var ignored Effects
			c = Adopt(&r, 7, at(0), at(1), &ignored)
		case 1:
			c = Clean(at(pick(1, 20_000)))
		case 2:
			c = afterBy(&r, c, called)
		case 3:
			c = afterBy(&r, c, called, queued)
		case 4:
			c = afterBy(&r, c, called, queued, woken)
		case 5:
			c = afterBy(&r, c, called, queued, woken, step{at: 250, e: Event{Kind: Released}}, step{at: 260, e: Event{Kind: ReleaseReplied, Code: Denied, QueueEmpty: true}})
		case 6:
			c = afterBy(&r, c, called, step{e: Event{Kind: Woken, Fence: 5}})
		default:
			c = afterBy(&r, New(Wait, true, yes()), called, queued, woken) // an upgrade that was granted
		}
		now := at(200)
		for range 6 {
			e := Event{
				Kind: Kind(random.IntN(int(kinds))), Code: Code(random.IntN(int(AboveLimit) + 1)), Outcome: Outcome(random.IntN(int(InDoubt) + 1)),
				Fast: yes(), More: random.IntN(4) == 0, Retryable: yes(), Exhausted: random.IntN(4) == 0, Withdrawn: false, Unused: yes(), Metadata: yes(),
				Lasting: random.IntN(4) == 0, QueueEmpty: yes(), Last: random.IntN(4) == 0,
				Sent: max(now-Instant(Duration(pick(0, 1, 9_900))), 1), At: now + Instant(Duration(pick(0, 100))), Pause: Duration(pick(1, 100, 30_000)),
				Fence: pick(0, 5, 1<<50), Clock: pick(0, 1_000), Place: pick(0, 1), TTL: pick(100, 10_000, 30_000),
			}
			from, counted := c.State(), c
			counted.count(&e)
			var out Effects
			c.Step(&r, now, &e, &out)
			out.Finished = false
			if out.Impossible {
				impossible[from][e.Kind] = true
			}
			switch {
			case out.Impossible && (c != counted || out != Effects{Impossible: true}):
				t.Fatalf("%s: %s is impossible, and yet the claim reacts", from, e.Kind)
			case out.Impossible:
			case c != counted || out != (Effects{}):
				found.to(from, e.Kind)[c.State()] = true
			default:
				found.to(from, e.Kind)
			}
			now += Instant(Duration(pick(0, 0, 1, 100, 3_400, 9_900)))
		}
	}
	for from := range states {
		for kind := range kinds {
			if impossible[from][kind] && found.text(from, kind) != "impossible" {
				t.Errorf("%s: %s is impossible, and yet it is %s", from, kind, found.text(from, kind))
			}
		}
	}
	return found
}

// readTransitions returns the table of states in README.md. The third cell of a row lists "events → states", separated by semicolons, and may
// begin with the name of another state, from which the row differs only in what it lists: a claim stays in its own state where one in that
// stays in that. The last cell lists the events that are ignored, if the state does not react to them, also by the names of groups, which the
// first table has.
func readTransitions(t *testing.T) transitions {
	t.Helper()
	text := must.Get(os.ReadFile("README.md"))(t)
	table, groups := transitions{}, map[string][]Kind{}
	next := State(0)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "| "), " |"), " | ")
		switch {
		case len(cells) == 3 && strings.HasPrefix(cells[0], "`"):
			groups[strings.Trim(cells[0], "`")] = kindsIn(t, cells[2], groups)
			continue
		case len(cells) != 4 || next == states || cells[0] != "`"+next.String()+"`":
			continue
		}
		for _, entry := range strings.Split(cells[2], "; ") {
			if base, found := strings.CutPrefix(entry, "as `"); found {
				copyTransitions(table, named[State](t, states, strings.TrimSuffix(base, "`")), next)
				continue
			}
			events, after, found := strings.Cut(entry, " → ")
			if !found && entry == "–" {
				continue
			}
			for _, kind := range kindsIn(t, events, nil) {
				delete(table[next], kind) // of the other state
				for _, state := range strings.Split(after, ", ") {
					table.to(next, kind)[named[State](t, states, state)] = true
				}
			}
		}
		for _, kind := range kindsIn(t, cells[3], groups) {
			table.to(next, kind)
		}
		next++
	}
	if next != states {
		t.Fatalf("README.md has no row of %s, or not in the order of the enum", next)
	}
	return table
}

// kindsIn returns the events that a cell lists, also by groups.
func kindsIn(t *testing.T, cell string, groups map[string][]Kind) (list []Kind) {
	t.Helper()
	for _, name := range strings.Split(cell, ", ") {
		if group, found := groups[strings.Trim(name, "`")]; found {
			list = append(list, group...)
		} else if name != "–" {
			list = append(list, named[Kind](t, kinds, name))
		}
	}
	return list
}

func copyTransitions(table transitions, from, to State) {
	for kind, after := range table[from] {
		for state := range after {
			if state == from {
				state = to
			}
			table.to(to, kind)[state] = true
		}
	}
}

// named returns the state or the kind of that name, of so many.
func named[T interface {
	~uint8
	String() string
}](t *testing.T, n T, name string) T {
	t.Helper()
	for x := range n {
		if x.String() == name {
			return x
		}
	}
	t.Fatalf("README.md names %q, which is neither a state nor an event", name)
	return 0
}
