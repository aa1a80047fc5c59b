// Package mend holds errors that a person can put right, together with what
// puts them right. The command line prints both and exits with 2.
package mend

import "errors"

// Error is an error with its mend: the setting, grant or statement that helps.
type Error struct {
	Err error
	Try string
}

// With adds to err what would put it right.
func With(err error, try string) error { return &Error{Err: err, Try: try} }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the error without its mend.
func (e *Error) Unwrap() error { return e.Err }

// Of returns what would put err right, "" when nobody has said.
func Of(err error) string {
	var m *Error
	if errors.As(err, &m) {
		return m.Try
	}
	return ""
}
