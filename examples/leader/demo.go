//go:build unix

package main

import (
	"io"
	"slices"
	"strings"

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
	third, err := untilLeads(g, processes.All(candidate, processes.NotBy(frozen.Process)), killed.Process, frozen.Process)
	if err != nil {
		return err
	}
	if err := g.Thaw(frozen.Process); err != nil {
		return err
	}
	if _, err := g.Until("steps down", processes.By(frozen.Process)); err != nil {
		return err
	}
	if err := g.Terminate(third); err != nil { // it releases the lock, so nobody waits for the TTL
		return err
	}
	_, err = untilLeads(g, processes.By(frozen.Process), third)
	return err
}

// untilLeads waits until such a candidate leads, and until the watcher says that one leads who is none of the former ones. Either
// may come first. It returns the leader's name.
func untilLeads(g *processes.Group, candidate func(processes.Line) bool, former ...string) (string, error) {
	lines, err := g.UntilAll(
		processes.All(candidate, processes.Says("leads")),
		processes.All(processes.By("watch"), func(l processes.Line) bool {
			name, isLeader := strings.CutSuffix(strings.SplitN(l.Text, ",", 2)[0], " leads")
			return isLeader && name != "nobody" && !slices.Contains(former, name)
		}),
	)
	if err != nil {
		return "", err
	}
	return lines[0].Process, nil
}
