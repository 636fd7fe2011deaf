// Command record runs the demo and writes a recording of it, an animated SVG, to the file of its argument.
package main

import (
	"bytes"
	"context"
	"fmt"
	"html"
	"log"
	"os"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo"
	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/redis/go-redis/v9/logging"
)

// The recording shows the acts one after the other and then all verdicts, and starts again. It has a background of its own, so that
// it looks the same on light and dark pages. Without animation it shows the verdicts.
const (
	cellWidth, lineHeight, margin = 8, 19, 16 // in pixels

	background = "#0d1117"
	style      = `text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}`

	actTime     = 4500 * time.Millisecond // in which an act is played, however long it took
	verdictTime = 2500 * time.Millisecond // for which what was measured in an act stays
	summaryTime = 5 * time.Second         // for which all verdicts stay at the end
)

// looks are how states are drawn. Bars differ in height and pattern too, not in color alone.
var looks = [...]struct {
	color  string
	height int
	dashes string
}{
	timeline.Idle:    {"#c9d1d9", 0, "none"},
	timeline.Waiting: {"#6e7681", 2, "4"},
	timeline.Holding: {"#3fb950", 14, "none"},
	timeline.Sharing: {"#58a6ff", 9, "none"},
	timeline.Frozen:  {"#56d4dd", 5, "4"},
	timeline.Killed:  {"#ff7b72", 0, "none"},
	timeline.Stored:  {"#3fb950", 4, "none"},
	timeline.Stale:   {"#ff7b72", 9, "4"},
	timeline.Refused: {"#d29922", 4, "4"},
}

func main() {
	logging.Disable()
	worker := demo.WorkerCommand() // the demo runs its own program in its workers
	if len(os.Args) > 1 && os.Args[1] == worker.Name() {
		worker.SetArgs(os.Args[2:])
		if worker.Execute() != nil {
			os.Exit(1)
		}
		return
	}
	if len(os.Args) != 2 {
		log.Fatalf("want the name of a file, got %q", os.Args[1:])
	}
	acts, err := demo.Play(context.Background(), os.Stdout)
	if err == nil {
		err = os.WriteFile(os.Args[1], render(acts), 0o600)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// render returns the recording of acts.
func render(acts []*timeline.Act) []byte {
	var summary []timeline.Line
	rows := 0
	for _, a := range acts {
		lines := a.Frame(a.End)
		summary = append(append(append(summary, lines[0]), a.Conclusion()...), nil)
		rows = max(rows, len(lines), len(summary))
	}
	width, height := 2*margin+timeline.Width*cellWidth, 2*margin+rows*lineHeight
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" `+
		`aria-label="A recording of lockkeeper demo">`+"\n<style>%[3]s", width, height, style)
	for s, l := range looks {
		fmt.Fprintf(&b, ".t%d{fill:%s}.b%[1]d{stroke:%[2]s;stroke-width:%[3]d;stroke-dasharray:%[4]s}", s, l.color, l.height, l.dashes)
	}
	fmt.Fprintf(&b, "</style>\n"+`<rect width="%d" height="%d" rx="8" fill="%s" stroke="#30363d"/>`+"\n", width, height, background)
	total := time.Duration(len(acts))*(actTime+verdictTime) + summaryTime
	animate := func(attribute, mode, values string, times ...time.Duration) string {
		keys := "0"
		for _, t := range times {
			keys += fmt.Sprintf(";%.4f", float64(t)/float64(total))
		}
		return fmt.Sprintf(`<animate attributeName="%s" calcMode="%s" dur="%gs" repeatCount="indefinite" keyTimes="%s" values="%s"/>`,
			attribute, mode, total.Seconds(), keys, values)
	}
	for i, a := range acts {
		lines, lanes := a.Frame(a.End), 2+len(a.Lanes)
		start := time.Duration(i) * (actTime + verdictTime)
		fmt.Fprintf(&b, `<g opacity="0">%s`, animate("opacity", "discrete", "0;1;0", start, start+actTime+verdictTime))
		draw(&b, lines[:lanes+2], 0)
		// A curtain before the lanes moves to the right.
		fmt.Fprintf(&b, `<rect x="1" y="%d" width="%d" height="%d" fill="%s">%s</rect>`, margin+2*lineHeight, width-2, len(a.Lanes)*lineHeight, background,
			animate("x", "linear", fmt.Sprintf("1;1;%d;%[1]d", width-1), start, start+actTime, total))
		fmt.Fprintf(&b, `<g opacity="0">%s`, animate("opacity", "discrete", "0;1", start+actTime))
		draw(&b, lines[lanes+2:], lanes+2)
		b.WriteString("</g></g>\n")
	}
	fmt.Fprintf(&b, `<g>%s`, animate("opacity", "discrete", "0;1", total-summaryTime))
	draw(&b, summary, 0)
	b.WriteString("</g>\n</svg>\n")
	return b.Bytes()
}

// draw draws lines from a row on, as bars and words.
func draw(b *bytes.Buffer, lines []timeline.Line, row int) {
	for i, line := range lines {
		for from, to := 0, 0; from < len(line); from = to {
			first := line[from]
			for to = from; to < len(line) && line[to].State == first.State && line[to].Bar() == first.Bar() && (line[to].Glyph == ' ') == (first.Glyph == ' '); {
				to++
			}
			x, y := margin+from*cellWidth, margin+(row+i)*lineHeight
			switch {
			case first.Glyph == ' ':
			case first.Bar() && looks[first.State].height > 0:
				fmt.Fprintf(b, `<path class="b%d" d="M%d %dh%d"/>`, first.State, x, y+9, (to-from)*cellWidth)
			default:
				fmt.Fprintf(b, `<text class="t%d" x="%d" y="%d">%s</text>`, first.State, x, y+14, html.EscapeString(line[from:to].Text(false)))
			}
		}
	}
}
