//go:build unix

package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// The processes that call the API are this very binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "caller" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestNeitherLimitIsExceeded(t *testing.T) {
	var out strings.Builder
	if err := demo(&out); errors.Is(err, errMargin) { // on a busy machine
		t.Log(err)
	} else if err != nil {
		t.Errorf("%v, after\n%s", err, out.String())
	}
	t.Log("\n" + out.String())
}

func TestExceededLimitIsNoticed(t *testing.T) {
	l := limit{"l", 2, time.Second, 100 * time.Millisecond}
	at := func(ms ...int) (times []time.Time) {
		for _, ms := range ms {
			times = append(times, time.UnixMilli(int64(ms)))
		}
		return times
	}
	for _, c := range []struct {
		name             string
		granted, arrived []time.Time
		want             string
	}{
		{"within the limit", at(0, 0, 1100), at(10, 20, 1110), ""},
		{"too many permits", at(0, 0, 1099), at(0, 0, 1099), "3 permits in 1.1s"},
		{"late, but not by more than the margin", at(0, 0, 1100), at(100, 100, 1100), ""},
		{"late, and too many calls in a window", at(0, 0, 1100), at(101, 101, 1100), errMargin.Error()},
		{"late, and no more calls than allowed", at(0, 0, 1300), at(0, 101, 1300), ""},
	} {
		a := &api{arrived: c.arrived}
		if _, _, err := a.check(l, c.granted); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
