package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/lockkeeper/lockkeeper/internal/testing/benchmarks"
)

// result is one metric of one library in one case. Value is the median over the rounds, Min and Max are the extremes.
type result struct {
	Case    string  `json:"case"`
	Library string  `json:"library"`
	Metric  string  `json:"metric"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`

	rounds []float64
}

// results is what was measured, in the order in which it was first seen.
type results struct {
	list  []*result
	notes []string
}

// add notes a figure of one round.
func (r *results) add(of, library, metric, unit string, value float64) {
	x := r.find(of, library, metric)
	if x == nil {
		x = &result{Case: of, Library: library, Metric: metric, Unit: unit}
		r.list = append(r.list, x)
	}
	x.rounds = append(x.rounds, value)
	x.Value, x.Min, x.Max = benchmarks.Median(x.rounds), slices.Min(x.rounds), slices.Max(x.rounds)
}

// find is a result, or nil.
func (r *results) find(of, library, metric string) *result {
	for _, x := range r.list {
		if x.Case == of && x.Library == library && x.Metric == metric {
			return x
		}
	}
	return nil
}

// note is something to be said once of what is missing.
func (r *results) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

// distinct is one field of the results of a case, or of all if of is "", each value once.
func (r *results) distinct(of string, field func(*result) string) []string {
	var list []string
	for _, x := range r.list {
		if v := field(x); (of == "" || x.Case == of) && !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

func (r *results) cases() []string {
	return r.distinct("", func(x *result) string { return x.Case })
}

func (r *results) libraries(of string) []string {
	return r.distinct(of, func(x *result) string { return x.Library })
}

// table writes a table for each case: a line per library, a column per metric with the median and, in brackets, the
// smallest and the largest of the rounds. The first metric is followed by its ratio to that of the first library.
func (r *results) table(w io.Writer) error {
	for _, of := range r.cases() {
		metrics := r.distinct(of, func(x *result) string { return x.Metric })
		libraries := r.libraries(of)
		t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintf(t, "%s", of)
		for i, m := range metrics {
			fmt.Fprintf(t, "\t%s", m)
			if i == 0 {
				fmt.Fprintf(t, "\tratio")
			}
		}
		fmt.Fprintln(t)
		first := r.find(of, libraries[0], metrics[0])
		for _, l := range libraries {
			fmt.Fprintf(t, "  %s", l)
			for i, m := range metrics {
				x := r.find(of, l, m)
				fmt.Fprintf(t, "\t%s", x)
				if i == 0 {
					fmt.Fprintf(t, "\t%s", ratio(x, first))
				}
			}
			fmt.Fprintln(t)
		}
		fmt.Fprintln(t)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, n := range r.notes {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	return nil
}

// String is the median with its range, or a dash for what was not measured.
func (x *result) String() string {
	if x == nil {
		return "-"
	}
	text := number(x.Value)
	if x.Min != x.Max {
		text += " [" + number(x.Min) + " .. " + number(x.Max) + "]"
	}
	return text
}

// ratio is one median over another.
func ratio(x, to *result) string {
	if x == nil || to == nil || to.Value == 0 {
		return "-"
	}
	return number(x.Value/to.Value) + " x"
}

// number is a figure with three significant digits, or a whole number.
func number(v float64) string {
	switch size := math.Abs(v); {
	case size >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case size >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// json writes all results and the machine.
func (r *results) json(w io.Writer, m machine) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	cases := r.list
	if cases == nil {
		cases = []*result{}
	}
	return e.Encode(struct {
		Cases   []*result `json:"cases"`
		Machine machine   `json:"machine"`
		Notes   []string  `json:"notes,omitempty"`
	}{cases, m, r.notes})
}
