package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// axis is one thing that grows while the others stay.
type axis struct {
	name   string
	values []int
	show   func(int) string
	load   func(value int) load
}

// load is one backlog.
type load struct{ events, destinations, aggregates, payload int }

func usualLoad() load { return load{events: 20_000, destinations: 1, aggregates: 1000, payload: 300} }

// figures of one load: deliveries a second, and the processors' time for each.
type cost struct{ rate, micros float64 }

func axes() []axis {
	vary := func(set func(*load, int)) func(int) load {
		return func(value int) load {
			l := usualLoad()
			set(&l, value)
			return l
		}
	}
	return []axis{
		{"backlog, events", []int{10_000, 100_000, 1_000_000}, strconv.Itoa, vary(func(l *load, v int) { l.events = v })},
		{"destinations", []int{1, 10, 100}, strconv.Itoa, vary(func(l *load, v int) { l.destinations, l.events = v, max(l.events/v, 1000) })},
		{"aggregates", []int{1, 100, 10_000, 1_000_000}, strconv.Itoa, vary(func(l *load, v int) { l.aggregates = v })},
		{"payload", []int{100, 1 << 10, 16 << 10, 128 << 10, 1 << 20}, bytesText, vary(func(l *load, v int) { l.payload, l.events = v, min(l.events, max(200, (256<<20)/v)) })},
	}
}

func bytesText(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// scale measures how the cost of a delivery grows along each axis, and writes the plot.
func (b *bench) scale(ctx context.Context) error {
	var plot []curve
	fmt.Printf("\n| what grows | to | deliveries/s | relay's CPU, µs a delivery |\n|---|---|---|---|\n")
	for i, a := range axes() {
		c := curve{axis: a}
		for j, value := range a.values {
			got, err := b.drainLoad(ctx, fmt.Sprintf("scale_%d_%d", i, j), a.load(value))
			if err != nil {
				return fmt.Errorf("%s %d: %w", a.name, value, err)
			}
			fmt.Printf("| %s | %s | %.0f | %.0f |\n", a.name, a.show(value), got.rate, got.micros)
			c.costs = append(c.costs, got)
		}
		plot = append(plot, c)
	}
	if b.plot == "" {
		return nil
	}
	return os.WriteFile(b.plot, []byte(draw(plot)), 0o644)
}

func (b *bench) drainLoad(ctx context.Context, name string, l load) (c cost, err error) {
	r := newReceiver()
	defer r.Close()
	var config strings.Builder
	config.WriteString("destinations:\n")
	for i := range l.destinations {
		fmt.Fprintf(&config, "  - { name: d%d, url: \"%s/%d\", secrets: [ %s ], allow_private_networks: true }\n", i, r.URL, i, secret)
	}
	s, err := b.start(ctx, name, config.String())
	if err != nil {
		return c, err
	}
	defer func() { err = firstError(err, s.stop(ctx)) }()
	if err := s.end(); err != nil {
		return c, err
	}
	text := `{"text": "` + strings.Repeat("x", max(l.payload-12, 0)) + `"}`
	for left := l.events; left > 0; left -= 100 {
		if _, err := s.conn.Exec(ctx, manyRows, text, min(left, 100), l.aggregates); err != nil {
			return c, err
		}
	}
	end, err := s.flushed(ctx)
	if err != nil {
		return c, err
	}
	if err := s.launch(config.String()); err != nil {
		return c, err
	}
	if err := reach(r, 1); err != nil {
		return c, err
	}
	first, _ := r.span()
	if err := s.confirmed(ctx, end); err != nil {
		return c, err
	}
	took := time.Since(first)
	if err := s.end(); err != nil {
		return c, err
	}
	deliveries := float64(l.events * l.destinations)
	return cost{deliveries / took.Seconds(), float64(s.used.Microseconds()) / deliveries}, nil
}

// curve is what was measured along one axis.
type curve struct {
	axis
	costs []cost
}

// draw makes an SVG of the curves, one beside the other: deliveries a second over what
// grows, both by powers of ten.
func draw(curves []curve) string {
	const width, height, left, top, bottom = 250, 200, 44, 28, 40
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="10" role="img" aria-label="Deliveries a second as backlog, destinations, aggregates and payload grow">`+"\n", width*len(curves), height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width*len(curves), height)
	y := func(rate float64) float64 { // from 10 to 100,000
		return float64(height-bottom) - (math.Log10(max(rate, 10))-1)/4*float64(height-bottom-top)
	}
	for i, c := range curves {
		at := i * width
		fmt.Fprintf(&b, `<text x="%d" y="16" font-weight="bold">%s</text>`+"\n", at+left, c.name)
		for power := 1; power <= 5; power++ {
			line := y(math.Pow10(power))
			fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end" fill="#555">%d</text>`+"\n", at+left, line, at+width-14, at+left-4, line+3, int(math.Pow10(power)))
		}
		var points []string
		for j, got := range c.costs {
			x := float64(at+left) + 10 + float64(j)/float64(len(c.costs)-1)*float64(width-left-44)
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y(got.rate)))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="#0b57a4"/><text x="%.1f" y="%.1f" text-anchor="middle">%.0f</text><text x="%.1f" y="%d" text-anchor="middle" fill="#555">%s</text>`+"\n",
				x, y(got.rate), x, y(got.rate)-7, got.rate, x, height-bottom+14, c.show(c.values[j]))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#0b57a4" stroke-width="2"/>`+"\n", strings.Join(points, " "))
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#555">deliveries/s over %s</text>`+"\n", at+left, height-8, c.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
