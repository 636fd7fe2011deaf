//go:build unix

package main

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/example"
)

// The processes that call the API are this very binary.
func TestMain(m *testing.M) { example.Main(m, main, "caller") }

func TestNeitherLimitIsExceeded(t *testing.T) {
	example.Output(t, func(out io.Writer) error {
		if err := demo(out); !errors.Is(err, errMargin) { // otherwise a busy machine is the cause
			return err
		}
		return nil
	})
}

func TestExceededLimitIsNoticed(t *testing.T) {
	l := limit{"l", 2, time.Second, 100 * time.Millisecond}
	at := func(ms ...int64) (times []time.Time) {
		for _, ms := range ms {
			times = append(times, time.UnixMilli(ms))
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
		{"too many permits in between", at(0, 900, 1000, 1999, 5000), at(0, 900, 1000, 1999, 5000), "3 permits in 1.1s"},
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
