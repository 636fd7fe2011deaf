package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/check"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// sample is two libraries in one case, over three rounds, and a metric that one of them does not have.
func sample() *results {
	r := &results{}
	for _, v := range []float64{30, 10, 20} {
		r.add("lap/runners=2", "hare", "ms/lap", "ms", v)
		r.add("lap/runners=2", "tortoise", "ms/lap", "ms", 100*v)
	}
	r.add("lap/runners=2", "tortoise", "naps", "1", 0)
	r.note("snail: not measured")
	r.note("snail: not measured")
	return r
}

func TestTableHasMediansWithExtremesAndARatio(t *testing.T) {
	var out strings.Builder
	must.OK(t, sample().table(&out))
	const want = `
lap/runners=2   ms/lap                ratio   naps
  hare          20 [10 .. 30]         1 x     -
  tortoise      2000 [1000 .. 3000]   100 x   0

snail: not measured
`
	got := "\n" + out.String()
	check.That(t, got == want, "the table is%s\nwant%s", got, want)
}

func TestNumbersKeepThreeDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 3: "3", 0.04567: "0.046", 0.4567: "0.46", 4.567: "4.57", 45.67: "45.7", 456.7: "457", 456789: "456789", -4.567: "-4.57",
	} {
		got := number(v)
		check.That(t, got == want, "number(%v) = %q, want %q", v, got, want)
	}
}

func TestRoundsTakeTurnsToBegin(t *testing.T) {
	var got []int
	rounds(3, 3, func(side int) { got = append(got, side) })
	want := []int{0, 1, 2, 1, 2, 0, 2, 0, 1}
	check.That(t, reflect.DeepEqual(got, want), "the order is %v, want %v", got, want)
}

func TestMostWithinCountsWholeIntervals(t *testing.T) {
	for _, c := range []struct {
		name string
		list []interval
		want int
	}{
		{"one that is longer than the window", []interval{{5, 16}}, 0},
		{"two that fill it", []interval{{0, 1}, {9, 10}}, 2},
		{"two that do not fit", []interval{{0, 1}, {9, 11}}, 1},
		{"a window in the middle", []interval{{0, 1}, {20, 21}, {22, 24}, {21, 30}, {29, 31}}, 3},
		{"a long one across short ones", []interval{{0, 30}, {12, 13}, {14, 15}}, 2},
	} {
		got := mostWithin(c.list, 10)
		check.That(t, got == c.want, "%s: %d, want %d", c.name, got, c.want)
	}
}
