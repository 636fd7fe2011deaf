package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/cli/demo/timeline"
)

// elements parses an SVG and returns its elements and its text.
func elements(t *testing.T, svg []byte) (all []xml.StartElement, text string) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, text
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			all = append(all, x)
		case xml.CharData:
			text += string(x)
		}
	}
}

func attributes(e xml.StartElement) map[string]string {
	m := map[string]string{}
	for _, a := range e.Attr {
		m[a.Name.Local] = a.Value
	}
	return m
}

// checkSafe checks that a browser shows an SVG as an image: no script and nothing from elsewhere. Its animations have a time for
// each value, in order.
func checkSafe(t *testing.T, svg []byte) {
	t.Helper()
	all, _ := elements(t, svg)
	for _, e := range all {
		m := attributes(e)
		switch e.Name.Local {
		case "script", "foreignObject", "image", "use", "a":
			t.Errorf("an element %s", e.Name.Local)
		case "animate":
			times, last := strings.Split(m["keyTimes"], ";"), 0.0
			if len(times) != len(strings.Split(m["values"], ";")) || times[0] != "0.0000" {
				t.Errorf("times %s for values %s", m["keyTimes"], m["values"])
			}
			for _, s := range times {
				f, err := strconv.ParseFloat(s, 64)
				if err != nil || f < last || f > 1 {
					t.Errorf("times %s", m["keyTimes"])
				}
				last = f
			}
			if m["calcMode"] == "linear" && last != 1 {
				t.Errorf("the times %s do not end with 1", m["keyTimes"])
			}
		}
	}
}

func TestRecording(t *testing.T) {
	a := &timeline.Act{Caption: "First: a & b", Lanes: []string{"a", "b"}, Legend: []timeline.Word{{State: timeline.Holding, Text: "holds"}}, Counts: []string{"<1 turn"}}
	a.Add(0, 0, timeline.Waiting, "")
	a.Add(100*time.Millisecond, 0, timeline.Holding, "+1")
	a.Add(200*time.Millisecond, 0, timeline.Killed, "")
	a.Finish(time.Second, timeline.Kept, "1 holder at a time")
	b := &timeline.Act{Caption: "Second: c", Lanes: []string{"c"}}
	b.Finish(time.Second, timeline.Violated, "2 holders")
	svg := render([]*timeline.Act{a, b})
	checkSafe(t, svg)
	all, text := elements(t, svg)
	for _, s := range []string{"1. First: a & b", "+1", "holds", "<1 turn", "✓1 holder at a time", "2. Second: c", "✗2 holders"} {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in %q", s, text)
		}
	}
	hidden := 0
	for _, e := range all {
		if m := attributes(e); e.Name.Local == "g" && m["opacity"] == "0" {
			hidden++
		}
	}
	if hidden != 4 { // each act, and its verdict in it: without animation only the summary is shown
		t.Errorf("%d groups are hidden at first", hidden)
	}
}

func TestRecordingOfTheReadme(t *testing.T) {
	svg, err := os.ReadFile("../../../../docs/img/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	if len(svg) > 200_000 {
		t.Errorf("%d bytes", len(svg))
	}
	checkSafe(t, svg)
	if n := bytes.Count(svg, []byte("✓")); n != 8 {
		t.Errorf("%d verdicts are good, want those of four acts, twice", n)
	}
}
