package protocol

import "testing"

func TestParseLimits(t *testing.T) {
	for field, want := range map[string]Limits{
		"0:3:1000 0:5:1000":                    {0, 5, 1000, 0},
		"2:0:0 4:0:0":                          {4, 0, 0, 0},
		"0:3:1000 0:5:1000 1800000005000 5000": {0, 5, 1000, 1_800_000_005_000},
		"0:3:1000 0:5:1000 x 5000":             {},
		"0:3:1000 0:5:1000 -5 5000":            {},
		"":                                     {},
		"0:3:1000":                             {},
		"0:3:1000 x:5:1000":                    {},
		"0:3:1000 0:-5:1000":                   {},
	} {
		if got, ok := ParseLimits(field); got != want || ok != (want != Limits{}) {
			t.Errorf("%q: %+v, %t; want %+v", field, got, ok, want)
		}
	}
}
