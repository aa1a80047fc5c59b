package admin

import (
	"fmt"
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// functions are what the templates write values with.
var functions = template.FuncMap{
	"bytes":    writeBytes,
	"count":    writeCount,
	"seconds":  writeSeconds,
	"millis":   writeMillis,
	"utc":      func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") },
	"rfc3339":  func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"duration": func(d time.Duration) string { return d.Round(time.Millisecond).String() },
	"ago":      func(now, then time.Time) string { return writeSeconds(now.Sub(then).Seconds()) },
	"lower":    strings.ToLower,
	"short":    short,
	"query":    func(v url.Values) template.URL { return template.URL(v.Encode()) },
	"percent":  func(part, whole int64) int64 { return 100 * part / max(whole, 1) },
	"has":      hasValue,
	"bytes64":  func(n int) string { return writeBytes(int64(n)) },
	"listOf":   func(values ...string) []string { return values },
	"class":    stateClass,
}

func writeBytes(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	value, unit := float64(n), 0
	for ; value >= 1024 && unit < len(units)-1; unit++ {
		value /= 1024
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// writeCount puts spaces between thousands.
func writeCount(v any) string {
	text := fmt.Sprint(v)
	var b strings.Builder
	for i, digit := range text {
		if i > 0 && (len(text)-i)%3 == 0 && text[i-1] != '-' {
			b.WriteRune('\u202f')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

func writeSeconds(s float64) string {
	switch {
	case s < 0:
		return "0 s"
	case s < 10:
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	case s < 120:
		return fmt.Sprintf("%.0f s", s)
	case s < 7200:
		return fmt.Sprintf("%.0f min", s/60)
	case s < 172800:
		return fmt.Sprintf("%.0f h", s/3600)
	default:
		return fmt.Sprintf("%.0f days", s/86400)
	}
}

func writeMillis(ms float64) string {
	switch {
	case ms >= 10000:
		return writeSeconds(ms / 1000)
	case ms >= 100:
		return fmt.Sprintf("%.0f ms", ms)
	default:
		return fmt.Sprintf("%.1f ms", ms)
	}
}

// short cuts a text for a table's cell.
func short(length int, text string) string {
	runes := []rune(text)
	if len(runes) <= length {
		return text
	}
	return string(runes[:length]) + "…"
}

func hasValue(values []string, value string) bool {
	for _, v := range values {
		if v == value {
			return true
		}
	}
	return false
}

// stateClass names the colour of a state.
func stateClass(state any) string {
	switch fmt.Sprint(state) {
	case "DEAD", "QUARANTINED", "FAILED", "open", "lost":
		return "bad"
	case "SCHEDULED", "DEFERRED", "QUEUED", "RUNNING", "half-open", "standby", "connecting", "recovering", "PENDING":
		return "warn"
	case "DELIVERED", "PROCESSED", "DONE", "closed", "streaming", "receiving", "reserved", "extended":
		return "good"
	}
	return "plain"
}
