//go:build unix

package main

import (
	"context"
	"io"

	"github.com/lockkeeper/lockkeeper/examples/internal/processes"
)

// demo starts three hosts, kills the one that makes the report, and waits until another one has made it. A fourth host starts
// late.
func demo(ctx context.Context, out io.Writer) error {
	g, err := processes.New(out)
	if err != nil {
		return err
	}
	defer g.Close()
	job, end, err := open(g.URL)
	if err != nil {
		return err
	}
	defer end()
	if err := job.Reset(ctx); err != nil { // the server may know that the report was made by an earlier run of the example
		return err
	}
	for _, name := range []string{"host-a", "host-b", "host-c"} {
		if err := g.Start(name, "host"); err != nil {
			return err
		}
	}
	first, err := g.Until("writes page 3")
	if err != nil {
		return err
	}
	if err := g.Kill(first.Process); err != nil {
		return err
	}
	second, err := g.Until("made the report", processes.NotBy(first.Process))
	if err != nil {
		return err
	}
	if _, err := g.Until("the report was made elsewhere", processes.NotBy(second.Process)); err != nil {
		return err
	}
	if err := g.Start("host-d", "host"); err != nil {
		return err
	}
	_, err = g.Until("the report was made elsewhere; next one in 20h", processes.By("host-d"))
	return err
}
