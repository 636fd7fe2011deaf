package inspector

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/admin"
)

// limitsView is what a page shows of a semaphore's or rate limit's limits.
type limitsView struct {
	Text    string // what is used
	Held    string // of a rate limit with a bound on concurrent calls: what is used of that; else ""
	Percent int    // of the limit
	Plot    *plot  // nil if there are not two samples yet
}

// plot is a chart of what was used, in the units of its SVG.
type plot struct {
	Area, Line string // paths
	LimitY     int
	Top        string // the value at the upper end of the scale
	Label      string // for those who cannot see it
}

const (
	plotWidth  = 600 // 2 per second
	plotHeight = 80
)

func newLimitsView(l *admin.Limits, history []sample) *limitsView {
	if l == nil {
		return nil
	}
	v := &limitsView{Text: fmt.Sprintf("%s of %s permits in use", number(l.Used), number(l.Limit))}
	if l.Window > 0 {
		v.Text = fmt.Sprintf("%s of %s permits used in the last %s", number(l.Used), number(l.Limit), exactly(l.Window))
	}
	if l.MaxConcurrent > 0 {
		v.Held = fmt.Sprintf("%s of %s concurrent calls", number(l.Held), number(l.MaxConcurrent))
	}
	if l.PausedFor > 0 {
		v.Text += ", paused for another " + duration(l.PausedFor)
	}
	if l.Limit > 0 {
		v.Percent = min(100, 100*l.Used/l.Limit)
	}
	if len(history) > 1 {
		v.Plot = newPlot(history)
	}
	return v
}

// newPlot draws samples, which are oldest first. The last one is at the right edge.
func newPlot(history []sample) *plot {
	end := history[len(history)-1].at
	top, least, most := 1, history[0].used, history[0].used
	for _, s := range history {
		top = max(top, s.used, s.limit)
		least, most = min(least, s.used), max(most, s.used)
	}
	x := func(at time.Time) int { return max(0, plotWidth-int(end.Sub(at)*plotWidth/historyLength)) }
	y := func(n int) int { return plotHeight - n*(plotHeight-4)/top }
	var line, area strings.Builder
	for i, s := range history {
		apart := i == 0 || s.at.Sub(history[i-1].at) > 10*time.Second // nobody looked meanwhile
		if apart && i > 0 {
			fmt.Fprintf(&area, "V%dZ", plotHeight)
		}
		if apart {
			fmt.Fprintf(&line, "M%d %d", x(s.at), y(s.used))
			fmt.Fprintf(&area, "M%d %dV%d", x(s.at), plotHeight, y(s.used))
			continue
		}
		step := fmt.Sprintf("H%dV%d", x(s.at), y(s.used))
		line.WriteString(step)
		area.WriteString(step)
	}
	fmt.Fprintf(&area, "V%dZ", plotHeight)
	limit := history[len(history)-1].limit
	return &plot{
		Area: area.String(), Line: line.String(), LimitY: y(limit), Top: number(top),
		Label: fmt.Sprintf("Permits in use in the last %s: between %s and %s, the limit is %s",
			duration(end.Sub(history[0].at)), number(least), number(most), number(limit)),
	}
}
