package main

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestBenchMeasuresAndCleansUp(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	url := "redis://" + s.Addr
	c := command(t, "bench", "--redis", url, "--duration", "1s", "--json").ends(0, "this loads "+url)
	var r struct {
		URL, Kind, Prefix string
		Results           []struct {
			Case       string
			Goroutines int
			Operations int
			MedianMS   float64 `json:"median_ms"`
			P99MS      float64 `json:"p99_ms"`
			PerSecond  float64 `json:"per_second"`
			Baseline   string
			Ratio      float64
		}
	}
	c.decode(&r)
	var cases []string
	for _, x := range r.Results {
		cases = append(cases, x.Case)
		if x.Operations < x.Goroutines || x.MedianMS <= 0 || x.P99MS < x.MedianMS || x.PerSecond <= 0 || (x.Ratio > 0) != (x.Baseline != "") {
			t.Errorf("%+v", x)
		}
	}
	if got, want := strings.Join(cases, " "), "ping set_del lock set_del_64 lock_64 handoff allow"; got != want || r.URL != url || r.Kind != "server" || r.Prefix != "lock:" {
		t.Errorf("%s\n%s", got, c.out.String())
	}
	wantNoKeys(t, s.Client())
	command(t, "bench", "--redis", url, "--duration", "1s", "--prefix", "").ends(0).
		prints("median ms", "mutex: lock and release ", "times SET NX and DEL: ")
	wantNoKeys(t, s.Client())
}
