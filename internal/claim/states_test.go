package claim

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// transitions are, by state and kind of event, the states in which a claim may be after an event to which it reacts.
type transitions map[State]map[Kind]map[State]bool

func (x transitions) add(from State, kind Kind, to State) {
	if x[from] == nil {
		x[from] = map[Kind]map[State]bool{}
	}
	if x[from][kind] == nil {
		x[from][kind] = map[State]bool{}
	}
	x[from][kind][to] = true
}

// TestStatesMatchTable walks every pair of a state and an event that a claim can come to, and compares the states that
// follow with the table in README.md.
func TestStatesMatchTable(t *testing.T) {
	documented, found := readTransitions(t), walk()
	for from := range states {
		for kind := range kinds {
			want, got := listOf(documented[from][kind]), listOf(found[from][kind])
			if want != got {
				t.Errorf("%s: after %s a claim may be in %q, but in README.md that is %q", stateNames[from], kindNames[kind], got, want)
			}
		}
	}
}

// walk makes claims of all kinds go through random events, whether a driver would send them or not, and returns what has followed. It
// leaves out events to which a claim does not react: nothing is to be done, and nothing has changed but the account of the calls.
func walk() transitions {
	found := transitions{}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...int64) int64 { return list[random.IntN(len(list))] }
	yes := func() bool { return random.IntN(2) == 0 }
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
			if c != counted || out != (Effects{}) {
				found.add(from, e.Kind, c.State())
			}
			now += Instant(Duration(pick(0, 0, 1, 100, 3_400, 9_900)))
		}
	}
	return found
}

func listOf(set map[State]bool) string {
	var list []string
	for _, s := range slices.Sorted(maps.Keys(set)) {
		list = append(list, stateNames[s])
	}
	return strings.Join(list, ", ")
}

// readTransitions returns the table of states in README.md. The last cell of a row lists "events → states", separated by semicolons,
// and may begin with the name of another state, from which the row differs only in what it lists: a claim stays in its own state
// where one in that stays in that.
func readTransitions(t *testing.T) transitions {
	t.Helper()
	text := must.Get(os.ReadFile("README.md"))(t)
	table := transitions{}
	next := State(0)
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 || next == states || !strings.HasPrefix(line, "| `"+stateNames[next]+"`") {
			continue
		}
		table[next] = map[Kind]map[State]bool{}
		for _, entry := range strings.Split(strings.TrimSuffix(cells[2], " |"), "; ") {
			if base, found := strings.CutPrefix(entry, "as `"); found {
				copyTransitions(table, index(t, stateNames[:], strings.TrimSuffix(base, "`")), next)
				continue
			}
			events, after, found := strings.Cut(entry, " → ")
			if !found && entry == "–" {
				continue
			}
			for _, event := range strings.Split(events, ", ") {
				kind := index(t, kindNames[:], event)
				table[next][Kind(kind)] = nil
				for _, state := range strings.Split(after, ", ") {
					table.add(next, Kind(kind), State(index(t, stateNames[:], state)))
				}
			}
		}
		next++
	}
	if next != states {
		t.Fatalf("README.md has no row of %s, or not in the order of the enum", stateNames[next])
	}
	return table
}

func copyTransitions(table transitions, from int, to State) {
	for kind, after := range table[State(from)] {
		for state := range after {
			if state == State(from) {
				state = to
			}
			table.add(to, kind, state)
		}
	}
}

func index(t *testing.T, names []string, name string) int {
	t.Helper()
	i := slices.Index(names, name)
	if i < 0 {
		t.Fatalf("README.md names %q, which is neither a state nor an event", name)
	}
	return i
}
