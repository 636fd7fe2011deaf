package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
)

// The recording shows the acts one after the other and then all verdicts, and starts again. It has a background of its own, so
// that it looks the same on light and dark pages. Without animation it shows the verdicts.
const (
	pageWidth  = 800
	pageHeight = 352
	margin     = 28
	laneTop    = 86 // of the first lane
	laneHeight = 30
	barHeight  = 16
	right      = pageWidth - 112 // of the lanes; the counts follow

	actTime     = 4500 * time.Millisecond // in which an act is played, however long it took
	verdictTime = 2500 * time.Millisecond // for which the verdict of an act stays
	summaryTime = 5 * time.Second         // for which all verdicts stay at the end
)

// look is how a state is drawn. Bars differ in height and pattern too, not in color alone.
type look struct {
	fill   string
	height int
	dashed bool
}

var looks = map[timeline.State]look{
	timeline.Waiting: {"#6e7681", 2, true},
	timeline.Holding: {"#3fb950", barHeight, false},
	timeline.Sharing: {"#58a6ff", 10, false},
	timeline.Frozen:  {"#56d4dd", 6, true},
	timeline.Killed:  {"#ff7b72", barHeight, false},
	timeline.Stored:  {"#3fb950", 4, false},
	timeline.Stale:   {"#ff7b72", 8, true},
	timeline.Refused: {"#d29922", 4, true},
}

// recording is an SVG that is being written.
type recording struct {
	bytes.Buffer
	total time.Duration
}

// render returns the recording of acts.
func render(acts []*timeline.Act) []byte {
	r := &recording{total: time.Duration(len(acts))*(actTime+verdictTime) + summaryTime}
	fmt.Fprintf(r, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-label="A recording of lockkeeper demo">`,
		pageWidth, pageHeight)
	r.WriteString(`
<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9}` +
		`.c{font-size:15px;font-weight:600;fill:#f0f6fc}.d{fill:#8b949e;font-size:12px}.f{font-size:11px;font-weight:700;fill:#f0f6fc}.b{fill:#0d1117}</style>
`)
	fmt.Fprintf(r, `<rect width="%d" height="%d" rx="8" fill="#0d1117" stroke="#30363d"/>`+"\n", pageWidth, pageHeight)
	for i, a := range acts {
		start := time.Duration(i) * (actTime + verdictTime)
		fmt.Fprintf(r, `<g opacity="0">%s`, r.visible(start, start+actTime+verdictTime))
		r.act(i+1, a, start)
		r.WriteString("</g>\n")
	}
	fmt.Fprintf(r, `<g>%s`, r.visible(r.total-summaryTime, r.total))
	r.summary(acts)
	r.WriteString("</g>\n</svg>\n")
	return r.Bytes()
}

// visible returns the animation that shows an element in a period of each round.
func (r *recording) visible(from, to time.Duration) string {
	times, values := []time.Duration{0}, []string{"0"}
	if from == 0 {
		values[0] = "1"
	} else {
		times, values = append(times, from), append(values, "1")
	}
	if to < r.total {
		times, values = append(times, to), append(values, "0")
	}
	return r.animate("opacity", "discrete", times, values)
}

// animate returns the animation of an attribute, which repeats for ever.
func (r *recording) animate(attribute, mode string, times []time.Duration, values []string) string {
	keys := make([]string, len(times))
	for i, t := range times {
		keys[i] = strconv.FormatFloat(float64(t)/float64(r.total), 'f', 4, 64)
	}
	return fmt.Sprintf(`<animate attributeName="%s" calcMode="%s" dur="%gs" repeatCount="indefinite" keyTimes="%s" values="%s"/>`,
		attribute, mode, r.total.Seconds(), strings.Join(keys, ";"), strings.Join(values, ";"))
}

// act draws an act that is played from start on.
func (r *recording) act(number int, a *timeline.Act, start time.Duration) {
	left := margin
	for _, name := range a.Lanes {
		left = max(left, margin+len(name)*8+14)
	}
	r.text(margin, 38, "c", fmt.Sprintf("%d. %s", number, a.Caption))
	length, step := a.Axis(a.End)
	x := func(at time.Duration) float64 { return float64(left) + float64(right-left)*float64(at)/float64(length) }
	bottom := laneTop + len(a.Lanes)*laneHeight
	for at := time.Duration(0); at <= length; at += step {
		fmt.Fprintf(r, `<path d="M%.1f %dV%d" stroke="#21262d"/>`, x(at), laneTop-12, bottom-8)
		r.text(int(x(at))-4, bottom+8, "d", strconv.FormatFloat(at.Seconds(), 'f', -1, 64)+map[bool]string{true: " s"}[at == 0])
	}
	r.legend(a, left, bottom+36)
	// What has happened so far is left of an edge that moves to the right.
	fmt.Fprintf(r, "\n"+`<clipPath id="a%d"><rect x="0" y="0" height="%d" width="%d">%s</rect></clipPath><g clip-path="url(#a%[1]d)">`,
		number, pageHeight, pageWidth, r.animate("width", "linear", []time.Duration{0, start, start + actTime, r.total},
			[]string{strconv.Itoa(left), strconv.Itoa(left), strconv.Itoa(right + 2), strconv.Itoa(right + 2)}))
	for lane := range a.Lanes {
		r.lane(a.Segments(lane, a.End), laneTop+lane*laneHeight, x)
	}
	r.WriteString("</g>\n")
	for lane, name := range a.Lanes {
		r.text(margin, laneTop+lane*laneHeight+5, "", name)
	}
	fmt.Fprintf(r, `<g opacity="0">%s`, r.visible(start+actTime, start+actTime+verdictTime))
	for lane, count := range a.Counts {
		r.text(right+14, laneTop+lane*laneHeight+5, "d", count)
	}
	r.verdict(a, bottom+72)
	r.WriteString("</g>")
}

// lane draws the segments of a lane around a height.
func (r *recording) lane(segments []timeline.Segment, y int, x func(time.Duration) float64) {
	for _, s := range segments {
		from, to := x(s.From), x(s.To)
		if s.State == timeline.Killed {
			fmt.Fprintf(r, `<path d="M%.1f %dl12 12m0 -12l-12 12" stroke="%s" stroke-width="3"/>`, from-4, y-6, looks[s.State].fill)
			continue
		}
		if s.State == timeline.Idle || to-from < 0.5 {
			continue
		}
		r.bar(s.State, from, to-from, y)
	}
	for _, s := range segments { // above the bars
		switch {
		case s.Label == "":
		case s.State == timeline.Holding && x(s.To)-x(s.From) > float64(len(s.Label)*7+2):
			r.text(int(x(s.From))+3, y+4, "f b", s.Label)
		default:
			r.text(int(x(s.From)), y-4-looks[s.State].height/2, "f", s.Label)
		}
	}
}

// bar draws a state for a length.
func (r *recording) bar(s timeline.State, x, width float64, y int) {
	l := looks[s]
	if l.dashed {
		fmt.Fprintf(r, `<path d="M%.1f %dh%.1f" stroke="%s" stroke-width="%d" stroke-dasharray="3 3"/>`, x, y, width, l.fill, l.height)
		return
	}
	fmt.Fprintf(r, `<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="2" fill="%s"/>`, x, y-l.height/2, width, l.height, l.fill)
}

// legend explains the bars.
func (r *recording) legend(a *timeline.Act, x, y int) {
	for _, w := range a.Legend {
		if w.State == timeline.Killed {
			r.lane([]timeline.Segment{{State: timeline.Killed}}, y, func(time.Duration) float64 { return float64(x) + 8 })
		} else {
			r.bar(w.State, float64(x), 24, y)
		}
		r.text(x+32, y+4, "d", w.Text)
		x += 32 + len(w.Text)*8 + 16
	}
}

// verdict draws the verdict of an act, in lines of at most 90 characters.
func (r *recording) verdict(a *timeline.Act, y int) {
	mark, color := "✓", "#3fb950"
	if a.Outcome != timeline.Kept {
		mark, color = "✗", "#ff7b72"
	}
	fmt.Fprintf(r, `<text x="%d" y="%d" style="fill:%s;font-weight:700">%s</text>`, margin, y, color, mark)
	for i, line := range timeline.Wrap(a.Verdict, 88) {
		r.text(margin+20, y+i*20, "", line)
	}
}

// summary draws all verdicts.
func (r *recording) summary(acts []*timeline.Act) {
	r.text(margin, 38, "c", "lockkeeper demo: what was measured")
	for i, a := range acts {
		y := 74 + i*70
		name, _, _ := strings.Cut(a.Caption, ":")
		r.text(margin, y, "c", fmt.Sprintf("%d. %s", i+1, name))
		r.verdict(a, y+22)
	}
}

// text draws a line of text.
func (r *recording) text(x, y int, class, s string) {
	escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
	fmt.Fprintf(r, `<text x="%d" y="%d" class="%s">%s</text>`, x, y, class, escaped)
}
