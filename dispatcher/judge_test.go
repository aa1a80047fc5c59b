package dispatcher

import (
	"net/http"
	"testing"
	"time"
)

// TestJudge goes through the table of answers row by row.
func TestJudge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	cases := []struct {
		status     int
		retryAfter string
		want       Verdict
	}{
		{200, "", Verdict{Delivered: true}},
		{204, "", Verdict{Delivered: true}},
		{299, "", Verdict{Delivered: true}},
		{199, "", Verdict{}},
		{300, "", Verdict{}},
		{302, "", Verdict{}},
		{400, "", Verdict{}},
		{404, "", Verdict{}},
		{410, "", Verdict{Permanent: true}},
		{500, "", Verdict{}},
		{500, "7", Verdict{}}, // only 429 and 503 ask for it
		{0, "", Verdict{}},    // no answer

		{429, "", Verdict{}},
		{429, "7", Verdict{RetryAfter: 7 * time.Second}},
		{503, " 7 ", Verdict{RetryAfter: 7 * time.Second}},
		{429, "0", Verdict{}},
		{429, "-7", Verdict{}},
		{429, "soon", Verdict{}},
		{429, "7.5", Verdict{}},
		{429, "99999", Verdict{RetryAfter: time.Hour}},
		{429, "99999999999999999999999", Verdict{RetryAfter: time.Hour}},
		{503, date(90 * time.Second), Verdict{RetryAfter: 90 * time.Second}},
		{503, date(-time.Minute), Verdict{}},
		{503, date(48 * time.Hour), Verdict{RetryAfter: time.Hour}},
	}
	for _, c := range cases {
		header := http.Header{}
		if c.retryAfter != "" {
			header.Set("Retry-After", c.retryAfter)
		}
		if got := Judge(c.status, header, now, time.Hour); got != c.want {
			t.Errorf("%d with Retry-After %q: %+v, want %+v", c.status, c.retryAfter, got, c.want)
		}
	}
}
