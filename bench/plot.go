package main

import (
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// chart is one metric of several cases, or several metrics of one: a dot for each library and series at the median, with
// a line from the smallest to the largest.
type chart struct {
	file, title, y string
	log            bool
	series         []series
}

type series struct {
	name, of, metric string
	value            func(float64) float64 // nil: as it is
}

var allCharts = []chart{
	{"uncontended", "Locks per second, each goroutine on names of its own", "locks/s, higher is better", true, []series{
		{"1 goroutine", "uncontended/goroutines=1", "ns/op", perSecond},
		{"64 goroutines", "uncontended/goroutines=64", "ns/op", perSecond},
		{"1024 goroutines", "uncontended/goroutines=1024", "ns/op", perSecond},
	}},
	{"handoff", "From the release to the next holder running", "ms, lower is better", true, []series{
		{"2 contenders", "handoff/contenders=2", "ns/handoff", millis},
		{"64 contenders", "handoff/contenders=64", "ns/handoff", millis},
	}},
	{"fairness", "Turns of each of 64 contenders", "turns, closer together is fairer", false, []series{
		{"the fewest", "fairness", "turns-min", nil},
		{"the most", "fairness", "turns-max", nil},
	}},
	{"scale", "Time of the server per hand-off", "µs, lower is better", true, []series{
		{"10 waiters", "scale/waiters=10", "server-us/op", nil},
		{"1,000 waiters", "scale/waiters=1000", "server-us/op", nil},
		{"100,000 waiters", "scale/waiters=100000", "server-us/op", nil},
	}},
}

func perSecond(ns float64) float64 { return 1e9 / ns }

func millis(ns float64) float64 { return ns / 1e6 }

// charts writes those charts for which there are figures, as SVG.
func charts(r *results, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, c := range allCharts {
		p, err := c.draw(r)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		if err := p.Save(22*vg.Centimeter, 10*vg.Centimeter, filepath.Join(dir, c.file+".svg")); err != nil {
			return err
		}
	}
	return nil
}

// points is what plotter wants to know of dots with ranges.
type points struct {
	plotter.XYs
	plotter.YErrors
}

// draw returns nil if there are no figures.
func (c chart) draw(r *results) (*plot.Plot, error) {
	var libraries []string
	for _, s := range c.series {
		for _, l := range r.libraries(s.of) {
			if !slices.Contains(libraries, l) {
				libraries = append(libraries, l)
			}
		}
	}
	if len(libraries) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.BackgroundColor = color.White
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		f.Variant = "Sans"
		f.Size = 10
	}
	p.Title.Text, p.Y.Label.Text = c.title, c.y
	if c.log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	p.Add(plotter.NewGrid())
	p.Legend.Top = true
	for i, s := range c.series {
		pts := points{}
		for x, l := range libraries {
			f := r.find(s.of, l, s.metric)
			if f == nil {
				continue
			}
			value := s.value
			if value == nil {
				value = func(v float64) float64 { return v }
			}
			v, a, z := value(f.Value), value(f.Min), value(f.Max)
			if c.log && min(v, a, z) <= 0 {
				continue // has no place on the axis
			}
			at := float64(x) + (float64(i)-float64(len(c.series)-1)/2)*0.18
			pts.XYs = append(pts.XYs, plotter.XY{X: at, Y: v})
			pts.YErrors = append(pts.YErrors, struct{ Low, High float64 }{v - min(a, z), max(a, z) - v})
		}
		if len(pts.XYs) == 0 {
			continue
		}
		ranges, err := plotter.NewYErrorBars(pts)
		if err != nil {
			return nil, err
		}
		dots, err := plotter.NewScatter(pts)
		if err != nil {
			return nil, err
		}
		ranges.Color, ranges.CapWidth = colours[i], 0
		dots.Color, dots.Shape, dots.Radius = colours[i], draw.CircleGlyph{}, vg.Points(3)
		p.Add(ranges, dots)
		p.Legend.Add(s.name, dots)
	}
	if c.log { // room for the legend
		p.Y.Max *= 5
	} else {
		p.Y.Max *= 1.3
	}
	p.X.Min, p.X.Max = -0.6, float64(len(libraries))-0.4
	p.X.Tick.Marker = plot.ConstantTicks(ticks(libraries))
	p.X.Tick.Length = 0
	return p, nil
}

// ticks names what stands at 0, 1, 2, …, in two lines where there are two words.
func ticks(names []string) []plot.Tick {
	var list []plot.Tick
	for i, n := range names {
		list = append(list, plot.Tick{Value: float64(i), Label: strings.Replace(n, " ", "\n", 1)})
	}
	return list
}

// colours are distinguishable for people with colour blindness (Okabe and Ito, https://jfly.uni-koeln.de/color/).
var colours = []color.Color{
	color.RGBA{R: 0x00, G: 0x72, B: 0xb2, A: 0xff},
	color.RGBA{R: 0xd5, G: 0x5e, B: 0x00, A: 0xff},
	color.RGBA{R: 0x00, G: 0x9e, B: 0x73, A: 0xff},
}
