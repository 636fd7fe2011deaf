//go:build unix

package main

import (
	"io"

	"github.com/lockkeeper/lockkeeper/examples/internal/processes"
)

// demo starts three candidates and somebody who watches them. It kills the leader, freezes the next one for longer than the TTL,
// and tells the third one to end.
func demo(out io.Writer) error {
	g, err := processes.New(out)
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.Start("watch", "watch"); err != nil {
		return err
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := g.Start(name, "candidate", name); err != nil {
			return err
		}
	}
	candidate := processes.NotBy("watch")
	killed, err := g.Until("leads", candidate)
	if err != nil {
		return err
	}
	if err := g.Kill(killed.Process); err != nil {
		return err
	}
	frozen, err := g.Until("leads", candidate, processes.NotBy(killed.Process))
	if err != nil {
		return err
	}
	if err := g.Freeze(frozen.Process); err != nil {
		return err
	}
	third, err := g.Until("leads", candidate, processes.NotBy(frozen.Process))
	if err != nil {
		return err
	}
	if _, err := g.Until(third.Process+" leads", processes.By("watch")); err != nil {
		return err
	}
	if err := g.Thaw(frozen.Process); err != nil {
		return err
	}
	if _, err := g.Until("steps down", processes.By(frozen.Process)); err != nil {
		return err
	}
	if err := g.Terminate(third.Process); err != nil { // it releases the lock, so nobody waits for the TTL
		return err
	}
	if _, err := g.Until("leads", processes.By(frozen.Process)); err != nil {
		return err
	}
	_, err = g.Until(frozen.Process+" leads", processes.By("watch"))
	return err
}
