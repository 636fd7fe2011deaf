package main

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
	"github.com/lockkeeper/lockkeeper/internal/testing/must"
)

// check checks that a browser shows an SVG as an image: it is well-formed and has only elements that draw, and its animations have a
// time for each value. It returns the text.
func check(t *testing.T, svg []byte) (text string) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return strings.Join(strings.Fields(text), " ")
		}
		must.OK(t, err)
		switch x := token.(type) {
		case xml.CharData:
			text += " " + string(x)
		case xml.StartElement:
			if !strings.Contains("svg style g rect path text animate", x.Name.Local) {
				t.Errorf("an element %s", x.Name.Local)
			}
			lists := map[string]int{}
			for _, a := range x.Attr {
				lists[a.Name.Local] = strings.Count(a.Value, ";")
			}
			if lists["keyTimes"] != lists["values"] {
				t.Errorf("an animation: %v", x.Attr)
			}
		}
	}
}

func TestRecording(t *testing.T) {
	a := &timeline.Act{Caption: "1. First: a & b", Lanes: []string{"a", "b"}, Legend: "  █ holds", End: time.Second, Outcome: timeline.Kept, Verdict: "1 holder"}
	a.Add(timeline.Event{State: timeline.Waiting})
	a.Add(timeline.Event{At: 100 * time.Millisecond, State: timeline.Holding, Label: "+1", Count: "<1 turn"})
	a.Add(timeline.Event{At: 200 * time.Millisecond, State: timeline.Killed})
	b := &timeline.Act{Caption: "2. Second: c", Lanes: []string{"c"}, End: time.Second, Outcome: timeline.Violated, Verdict: "2 holders"}
	svg := render([]*timeline.Act{a, b})
	text := check(t, svg)
	for _, s := range []string{"1. First: a & b", "+1 x <1 turn", "holds", "ok: 1 holder", "2. Second: c", "VIOLATED: 2 holders"} {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in %q", s, text)
		}
	}
	for _, bar := range []string{`<path class="b1" d="M48 63h48"/>`, `<path class="b2" d="M112 63h40"/>`} {
		if !bytes.Contains(svg, []byte(bar)) {
			t.Errorf("no %s in:\n%s", bar, svg)
		}
	}
}

func TestRecordingOfTheReadme(t *testing.T) {
	svg := must.Get(os.ReadFile("../../../../docs/img/demo.svg"))(t)
	if n := strings.Count(check(t, svg), "ok:"); n != 8 || len(svg) > 100_000 {
		t.Errorf("%d bytes with %d good verdicts, want those of four acts, twice", len(svg), n)
	}
}
