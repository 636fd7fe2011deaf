//go:build unix

package main

import (
	"fmt"
	"io"
	"net/http/httptest"
	"time"

	"github.com/lockkeeper/lockkeeper/examples/internal/processes"
)

const calls = 20 // more than the longer window allows

// demo starts an API and three processes that call it, and checks that no window of either limit has too many calls.
func demo(out io.Writer) error {
	a := &api{}
	server := httptest.NewServer(a)
	defer server.Close()
	g, err := processes.New(out)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, name := range []string{"caller-1", "caller-2", "caller-3"} {
		if err := g.Start(name, "caller", server.URL); err != nil {
			return err
		}
	}
	for range calls {
		if _, err := g.Until("called"); err != nil {
			return err
		}
	}
	g.Close()
	server.Close() // no call is in progress any more
	for _, of := range []struct {
		limit
		granted []time.Time
	}{{long, a.minute}, {short, a.second}} {
		most, spread, err := a.check(of.limit, of.granted)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: at most %d calls in %v, %d are allowed; calls were under way up to %v longer than others, the margin is %v\n",
			of.name, most, of.window, of.calls, spread.Round(time.Millisecond), of.margin)
	}
	return nil
}
