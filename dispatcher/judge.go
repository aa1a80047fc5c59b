package dispatcher

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Verdict is what one answer means for its delivery.
type Verdict struct {
	Delivered bool
	Permanent bool // no further attempt can help

	// RetryAfter is how long the receiver asked to be left alone, 0 when it
	// didn't. It concerns the whole destination.
	RetryAfter time.Duration
}

// Judge reads an answer's status and headers. now turns a Retry-After date into
// a duration, which limit caps. An attempt without an answer is a failed one:
// the zero Verdict.
func Judge(status int, header http.Header, now time.Time, limit time.Duration) Verdict {
	switch {
	case status >= 200 && status <= 299:
		return Verdict{Delivered: true}
	case status == http.StatusGone:
		return Verdict{Permanent: true}
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return Verdict{RetryAfter: min(retryAfter(header.Get("Retry-After"), now), limit)}
	default:
		return Verdict{}
	}
}

// retryAfter reads the delay-seconds or HTTP-date of a Retry-After header: 0 for
// one that is absent, past or neither.
// https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if isDigits(value) {
		const most = 1 << 31 // seconds; more than anybody waits, and far from overflow
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			seconds = most
		}
		return time.Duration(min(seconds, most)) * time.Second
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, date.Sub(now))
}

func isDigits(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}
