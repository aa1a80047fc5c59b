package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// timeRange holds the flags --since and --until of a filter.
type timeRange struct{ since, until string }

// register adds the flags; what says which time of a row they are about.
func (r *timeRange) register(command *cobra.Command, what string) {
	flags := command.Flags()
	flags.StringVar(&r.since, "since", "", what+" at this time or later: RFC 3339, or an age such as 2h")
	flags.StringVar(&r.until, "until", "", what+" before this time")
}

// parse gives the times; zero ones for flags that were not given.
func (r *timeRange) parse() (since, until time.Time, err error) {
	if since, err = parseTime("--since", r.since); err != nil {
		return since, until, err
	}
	until, err = parseTime("--until", r.until)
	return since, until, err
}

// parseTime reads RFC 3339, a time of today or of a day, or an age.
func parseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil {
		return time.Now().Add(-age), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	now := time.Now()
	for _, layout := range []string{"15:04", "15:04:05", "2006-01-02 15:04", "2006-01-02 15:04:05"} {
		t, err := time.ParseInLocation(layout, text, now.Location())
		if err != nil {
			continue
		}
		if t.Year() == 0 {
			t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
		}
		return t, nil
	}
	return time.Time{}, usageError{fmt.Errorf("%s %q is neither a time such as 2026-01-02T15:04:05Z or 14:05 nor an age such as 2h", flag, text)}
}
