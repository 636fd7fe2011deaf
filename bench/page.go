package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
)

// figure is a metric of a case as a page shows it.
type figure struct {
	title, of, metric string
	scale             float64 // what the value is multiplied by; 0 is 1
	to                string  // a second metric, for a range from the first to it
}

// table is a table of a page. Its rows are libraries with the median of each figure and the range of the rounds, or, if columns
// are given, its rows are figures with the median of each library that a column selects.
type table struct {
	name    string // in the comments of the page between which the table stands
	figures []figure
	columns []column
}

type column struct {
	title   string
	selects func(library string) bool
}

func named(title, library string) column {
	return column{title, func(l string) bool { return l == library }}
}

var pageTables = []table{
	{name: "comparison", columns: []column{
		named("`mutex`", "lockkeeper mutex"), named("`fair`", "lockkeeper fair"), named("redsync", "redsync"),
		named("redislock", "redislock"), named("rueidislock", "rueidislock"), named("etcd", "etcd"),
	}, figures: []figure{
		{title: "lock and release, one goroutine, µs", of: "uncontended/goroutines=1", metric: "ns/op", scale: 1e-3},
		{title: "the same, 64 goroutines, µs each", of: "uncontended/goroutines=64", metric: "ns/op", scale: 1e-3},
		{title: "hand-off among 64 contenders, ms", of: "handoff/contenders=64", metric: "ns/handoff", scale: 1e-6},
		{title: "turns of 64 contenders in 4 s, fewest to most", of: "fairness", metric: "turns-min", to: "turns-max"},
		{title: "commands per turn", of: "fairness", metric: "cmds/turn"},
		{title: "crashed holder: next one after the lease ends, ms", of: "crash/holder", metric: "ms/after-lease"},
	}},
	{name: "uncontended", figures: []figure{
		{title: "1", of: "uncontended/goroutines=1", metric: "ns/op", scale: 1e-3},
		{title: "64", of: "uncontended/goroutines=64", metric: "ns/op", scale: 1e-3},
		{title: "1,024", of: "uncontended/goroutines=1024", metric: "ns/op", scale: 1e-3},
		{title: "allocations, 64", of: "uncontended/goroutines=64", metric: "allocs/op"},
	}},
	{name: "handoff", figures: []figure{
		{title: "2: PINGs", of: "handoff/contenders=2", metric: "x-ping"},
		{title: "ms", of: "handoff/contenders=2", metric: "ns/handoff", scale: 1e-6},
		{title: "64: PINGs", of: "handoff/contenders=64", metric: "x-ping"},
		{title: "p99", of: "handoff/contenders=64", metric: "p99-x-ping"},
		{title: "ms", of: "handoff/contenders=64", metric: "ns/handoff", scale: 1e-6},
	}},
	{name: "fairness", figures: []figure{
		{title: "longest wait", of: "fairness", metric: "longest-wait-x"},
		{title: "fewest turns", of: "fairness", metric: "turns-min"},
		{title: "most turns", of: "fairness", metric: "turns-max"},
		{title: "commands per turn", of: "fairness", metric: "cmds/turn"},
	}},
	{name: "readers", figures: []figure{
		{title: "reads/s", of: "readers", metric: "reads/s"},
		{title: "writer's wait, ms", of: "readers", metric: "ms/wait"},
		{title: "longest", of: "readers", metric: "ms/wait-max"},
	}},
	{name: "crashes", figures: []figure{
		{title: "holder killed", of: "crash/holder", metric: "ms/after-lease"},
		{title: "waiter killed", of: "crash/waiter", metric: "ms/behind-killed"},
	}},
	{name: "limits", figures: []figure{
		{title: "open: calls/s", of: "limit/open", metric: "calls/s"},
		{title: "closed: calls/s", of: "limit/closed", metric: "calls/s"},
		{title: "passed/s", of: "limit/closed", metric: "passed/s"},
		{title: "most in a second", of: "limit/closed", metric: "most-in-second"},
	}},
	{name: "waiters", figures: []figure{
		{title: "10", of: "scale/waiters=10", metric: "server-us/op"},
		{title: "1,000", of: "scale/waiters=1000", metric: "server-us/op"},
		{title: "100,000", of: "scale/waiters=100000", metric: "server-us/op"},
		{title: "idle, µs/s", of: "scale/waiters=1000", metric: "idle-us/s"},
		{title: "process, B", of: "scale/waiters=1000", metric: "B/waiter"},
		{title: "Redis, B", of: "scale/waiters=1000", metric: "redis-B/waiter"},
	}},
	{name: "leases", figures: []figure{
		{title: "goroutines", of: "scale/leases=100000", metric: "goroutines"},
		{title: "process, B/lease", of: "scale/leases=100000", metric: "B/lease"},
		{title: "Redis, B/lease", of: "scale/leases=100000", metric: "redis-B/lease"},
		{title: "commands/s", of: "scale/leases=100000", metric: "cmds/s"},
		{title: "µs of CPU per renewal", of: "scale/leases=100000", metric: "cpu-us/renewal"},
	}},
	{name: "cluster", figures: []figure{
		{title: "locks/s", of: "cluster", metric: "locks/s"},
		{title: "of one server's", of: "cluster", metric: "x-single"},
		{title: "messages between servers per hand-off", of: "cluster", metric: "msgs/handoff"},
	}},
	{name: "inside", figures: []figure{
		{title: "one goroutine, ns", of: "linger/inside", metric: "ns/op"},
		{title: "allocations", of: "linger/inside", metric: "allocs/op"},
		{title: "one per core, millions/s", of: "linger/inside", metric: "parallel/s", scale: 1e-6},
	}},
	{name: "sharing", figures: []figure{
		{title: "reads/s", of: "linger/readers", metric: "reads/s"},
		{title: "commands per 1,000 reads", of: "linger/readers", metric: "cmds/1000-reads"},
		{title: "writer's wait, ms", of: "linger/readers", metric: "ms/wait"},
		{title: "longest", of: "linger/readers", metric: "ms/wait-max"},
	}},
	{name: "linger", columns: []column{
		{"without", func(l string) bool { return !lingers(l) }},
		{"with `Linger`", lingers},
	}, figures: []figure{
		{title: "a mutex that two processes always want: turns/s", of: "linger/mutex/contended", metric: "ops/s"},
		{title: "the same: the process with fewer has, %", of: "linger/mutex/contended", metric: "fewest-%"},
		{title: "a mutex that two processes take in turns: turns/s", of: "linger/mutex/in-turns", metric: "ops/s"},
		{title: "reads and writes half and half, 2 processes: operations/s", of: "linger/half-writes/processes=2", metric: "ops/s"},
		{title: "the same, 8 processes", of: "linger/half-writes/processes=8", metric: "ops/s"},
		{title: "an idle process that has read is frozen: a writer's wait, ms", of: "linger/frozen", metric: "ms/wait"},
	}},
}

// marks are the comments of a page between which a table stands, or what the run was made with.
var marks = regexp.MustCompile(`(?s)(<!-- bench: ([a-z]+) -->\n).*?(<!-- end -->)`)

// fill writes the figures of a run of all cases into the pages.
func fill(pages []string, r *results, m machine) error {
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		out, err := filled(string(text), r, m.sentence())
		if err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
		if err := os.WriteFile(page, []byte(out), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func filled(page string, r *results, run string) (string, error) {
	var err error
	out := marks.ReplaceAllStringFunc(page, func(block string) string {
		parts := marks.FindStringSubmatch(block)
		text := run
		if parts[2] != "run" {
			i := slices.IndexFunc(pageTables, func(t table) bool { return t.name == parts[2] })
			if i < 0 {
				err = fmt.Errorf("there is no table %q", parts[2])
				return block
			}
			text = pageTables[i].markdown(r)
		}
		return parts[1] + "\n" + text + "\n" + parts[3] // a blank line, for Markdown
	})
	return out, err
}

// sentence says when, of which commit and on what the run was made.
func (m machine) sentence() string {
	text := fmt.Sprintf("Measured on %s at commit %s, with %d cores of %s, %s, %s, go-redis %s and Redis %s on loopback",
		m.Date, m.Commit, m.Cores, m.CPU, m.Kernel, m.Go, m.GoRedis, m.Redis)
	if m.Etcd != "" {
		text += ", etcd " + m.Etcd
	}
	return wrapped(text+"; load average before the run "+m.Load+".") + "\n"
}

// wrapped breaks a line as the pages do.
func wrapped(text string) string {
	var b strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case width+1+len(word) > 120:
			b.WriteByte('\n')
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	return b.String()
}

func (t table) markdown(r *results) string {
	var b strings.Builder
	head := []string{""}
	if t.columns == nil {
		for _, f := range t.figures {
			head = append(head, f.title)
		}
	}
	for _, c := range t.columns {
		head = append(head, c.title)
	}
	row := func(cells []string) {
		b.WriteString("|")
		for _, c := range cells {
			b.WriteString(strings.TrimSuffix(" "+c, " ") + " |")
		}
		b.WriteString("\n")
	}
	row(head)
	b.WriteString("|" + strings.Repeat("---|", len(head)) + "\n")
	if t.columns != nil {
		for _, f := range t.figures {
			cells := []string{f.title}
			for _, c := range t.columns {
				cell := ""
				for _, l := range r.libraries(f.of) {
					if c.selects(l) {
						cell = f.median(r, l)
					}
				}
				cells = append(cells, cell)
			}
			row(cells)
		}
		return b.String()
	}
	var libraries []string
	for _, f := range t.figures {
		for _, l := range r.libraries(f.of) {
			if !slices.Contains(libraries, l) {
				libraries = append(libraries, l)
			}
		}
	}
	for _, l := range libraries {
		name := l
		if own, is := strings.CutPrefix(l, "lockkeeper "); is {
			own, rest, _ := strings.Cut(own, ",")
			name = "`" + own + "`"
			if rest != "" {
				name += "," + rest
			}
		}
		cells := []string{name}
		for _, f := range t.figures {
			cells = append(cells, f.spread(r, l))
		}
		row(cells)
	}
	return b.String()
}

// scaled returns a figure in the unit of its column. Less than a thousandth of that is noise of the measurement, and shown as 0.
func (f figure) scaled(v float64) string {
	if f.scale != 0 {
		v *= f.scale
	}
	if math.Abs(v) < 0.001 {
		return "0"
	}
	return grouped(number(v))
}

// median returns the median over the rounds, or nothing if it was not measured.
func (f figure) median(r *results, library string) string {
	x := r.find(f.of, library, f.metric)
	if x == nil {
		return ""
	}
	if to := r.find(f.of, library, f.to); to != nil {
		return f.scaled(x.Value) + " to " + f.scaled(to.Value)
	}
	return f.scaled(x.Value)
}

// spread returns the median with the smallest and the largest of the rounds, if these differ in what is shown.
func (f figure) spread(r *results, library string) string {
	x := r.find(f.of, library, f.metric)
	if x == nil {
		return ""
	}
	least, most := f.scaled(x.Min), f.scaled(x.Max)
	if least == most {
		return f.scaled(x.Value)
	}
	return fmt.Sprintf("%s [%s–%s]", f.scaled(x.Value), least, most)
}

// grouped puts commas between the thousands of a number with five digits or more before its point.
func grouped(n string) string {
	whole, rest, fraction := strings.Cut(n, ".")
	digits := strings.TrimPrefix(whole, "-")
	if len(digits) < 5 {
		return n
	}
	sign := whole[:len(whole)-len(digits)]
	var groups []string
	for len(digits) > 3 {
		groups = append([]string{digits[len(digits)-3:]}, groups...)
		digits = digits[:len(digits)-3]
	}
	whole = sign + strings.Join(append([]string{digits}, groups...), ",")
	if fraction {
		return whole + "." + rest
	}
	return whole
}
