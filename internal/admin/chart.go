package admin

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

// chart is a line chart as SVG: it is drawn by the server, needs no script, and takes
// its colours from the style sheet.
type chart struct {
	Title string
	Unit  func(float64) string
	From  time.Time
	To    time.Time
	Lines []line
}

// line is one series. A point without a value leaves a gap.
type line struct {
	Name   string
	Points []point
}

type point struct {
	At    time.Time
	Value float64
}

const (
	chartWidth, chartHeight = 420, 150
	plotLeft, plotRight     = 4, 62 // room for the scale
	plotTop, plotBottom     = 10, 22
)

// SVG draws the chart. Whoever can't see it gets the last and the highest values.
func (c chart) SVG() template.HTML {
	highest := 0.0
	for _, l := range c.Lines {
		for _, p := range l.Points {
			highest = max(highest, p.Value)
		}
	}
	top := niceTop(highest)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart" viewBox="0 0 %d %d" role="img" aria-label="%s">`, chartWidth, chartHeight, template.HTMLEscapeString(c.summary(highest)))
	for _, share := range []float64{0, 0.5, 1} {
		y := yOf(share)
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, plotLeft, chartWidth-plotRight, y, y)
		fmt.Fprintf(&b, `<text class="scale" x="%d" y="%.1f">%s</text>`, chartWidth-plotRight+6, y+4, template.HTMLEscapeString(c.Unit(top*share)))
	}
	for _, share := range []float64{0, 0.5, 1} {
		at := c.From.Add(time.Duration(share * float64(c.To.Sub(c.From))))
		anchor := map[float64]string{0: "start", 0.5: "middle", 1: "end"}[share]
		fmt.Fprintf(&b, `<text class="scale" text-anchor="%s" x="%.1f" y="%d">%s</text>`, anchor, c.xOf(at), chartHeight-4, at.UTC().Format("15:04"))
	}
	for i, l := range c.Lines {
		fmt.Fprintf(&b, `<path class="line line-%d" d="%s"/>`, i%maxLines, c.path(l, top))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// maxLines is how many colours there are.
const maxLines = 6

// gap is from which distance on two points aren't joined.
const gap = 45 * time.Second

func (c chart) path(l line, top float64) string {
	var b strings.Builder
	var last time.Time
	for _, p := range l.Points {
		command := 'L'
		if last.IsZero() || p.At.Sub(last) > gap {
			command = 'M'
		}
		last = p.At
		share := 0.0
		if top > 0 {
			share = p.Value / top
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", command, c.xOf(p.At), yOf(share))
	}
	return b.String()
}

func (c chart) xOf(at time.Time) float64 {
	share := float64(at.Sub(c.From)) / float64(c.To.Sub(c.From))
	return plotLeft + min(max(share, 0), 1)*(chartWidth-plotLeft-plotRight)
}

func yOf(share float64) float64 {
	return plotTop + (1-min(max(share, 0), 1))*(chartHeight-plotTop-plotBottom)
}

// niceTop is the least of 1, 2, 5, 10, 20, … above a value.
func niceTop(value float64) float64 {
	if value <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(value)))
	for _, step := range []float64{1, 2, 5, 10} {
		if step*power >= value {
			return step * power
		}
	}
	return 10 * power
}

func (c chart) summary(highest float64) string {
	var b strings.Builder
	b.WriteString(c.Title + ", last hour.")
	for _, l := range c.Lines {
		if n := len(l.Points); n > 0 {
			fmt.Fprintf(&b, " %s: now %s.", l.Name, c.Unit(l.Points[n-1].Value))
		}
	}
	fmt.Fprintf(&b, " Highest %s.", c.Unit(highest))
	return b.String()
}
