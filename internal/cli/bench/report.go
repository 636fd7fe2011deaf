package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// report is the output of --json. The help of the command documents the field names.
type report struct {
	URL     string   `json:"url"`
	Kind    string   `json:"kind"`
	Prefix  string   `json:"prefix"`
	Results []result `json:"results"`
}

// result is what was measured of one case.
type result struct {
	Case       string  `json:"case"`
	Goroutines int     `json:"goroutines"`
	Operations int     `json:"operations"`
	MedianMS   float64 `json:"median_ms"`
	P99MS      float64 `json:"p99_ms"`
	PerSecond  float64 `json:"per_second"`
	Baseline   string  `json:"baseline,omitempty"` // the case that Ratio compares with
	Ratio      float64 `json:"ratio,omitempty"`    // how many times as long as the baseline an operation takes
}

// titles are the names of the cases for people.
var titles = map[string]string{
	"ping":       "PING",
	"set_del":    "SET NX and DEL",
	"lock":       "mutex: lock and release",
	"set_del_64": "SET NX and DEL, 64 at a time",
	"lock_64":    "mutex, 64 at a time",
	"handoff":    "fair lock: hand-off",
	"allow":      "rate limit: one decision",
}

// baselines are the cases with which others are compared: with several goroutines by the throughput, otherwise by the mean. By the median a
// round trip on one machine is 8 or 55 µs, as the processors happen to sleep.
var baselines = map[string]string{"set_del": "ping", "lock": "set_del", "lock_64": "set_del_64", "handoff": "ping", "allow": "ping"}

// meanings say what a ratio is about.
var meanings = map[string]string{
	"set_del": "two round trips",
	"lock":    "what a queue, a fence and renewal add to the plainest lock",
	"lock_64": "the same by throughput: locks share pipelines, plain commands use a connection each",
	"handoff": "a release, and a message to the waiter",
	"allow":   "one script",
}

// summarize computes the results of the cases.
func summarize(cases []*benchCase) []result {
	var all []result
	means := map[string]float64{}
	for _, c := range cases {
		slices.Sort(c.durations)
		for _, d := range c.durations {
			means[c.id] += float64(d) / float64(len(c.durations))
		}
		n := len(c.durations)
		all = append(all, result{
			Case: c.id, Goroutines: c.goroutines, Operations: n,
			MedianMS: ms(c.durations[n/2]), P99MS: ms(c.durations[(n*99-1)/100]), PerSecond: round(float64(n) / c.elapsed.Seconds()),
		})
	}
	for i := range all {
		r := &all[i]
		base, ok := baselines[r.Case]
		if !ok {
			continue
		}
		b := all[slices.IndexFunc(all, func(o result) bool { return o.Case == base })]
		r.Baseline, r.Ratio = base, round(means[r.Case]/means[base])
		if r.Goroutines > 1 {
			r.Ratio = round(b.PerSecond / r.PerSecond)
		}
	}
	return all
}

// ms returns milliseconds with a precision of a microsecond.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// round rounds to two decimals.
func round(x float64) float64 { return float64(int64(x*100+0.5)) / 100 }

// text formats the results for people.
func text(results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-30s%12s%12s%12s\n", "", "median ms", "p99 ms", "per second")
	for _, r := range results {
		fmt.Fprintf(&b, "%-30s%12.3f%12.3f%12.0f\n", titles[r.Case], r.MedianMS, r.P99MS, r.PerSecond)
	}
	fmt.Fprintln(&b)
	for _, r := range results {
		if r.Baseline != "" {
			fmt.Fprintf(&b, "%-30s%6.2f times %s: %s\n", titles[r.Case], r.Ratio, titles[r.Baseline], meanings[r.Case])
		}
	}
	return b.String()
}
