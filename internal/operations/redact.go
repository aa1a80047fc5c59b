package operations

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Redactor writes JSON for people to read, without the values that they shall not see.
// It is immutable.
type Redactor struct{ paths [][]string }

// NewRedactor compiles paths such as $.customer.email, $.items[*].card, $..password: a
// name or * for each step, [n] or [*] for a list, and .. for any number of steps.
func NewRedactor(paths []string) (*Redactor, error) {
	r := &Redactor{}
	for _, path := range paths {
		steps, err := parsePath(path)
		if err != nil {
			return nil, fmt.Errorf("path %q: %w", path, err)
		}
		r.paths = append(r.paths, steps)
	}
	return r, nil
}

// anywhere is the step that stands for any number of steps.
const anywhere = ".."

func parsePath(path string) (steps []string, err error) {
	rest, rooted := strings.CutPrefix(path, "$")
	if !rooted || rest == "" {
		return nil, errors.New("must begin with $ and name something below it, as in $.customer.email")
	}
	for rest != "" {
		switch {
		case strings.HasPrefix(rest, ".."):
			steps, rest = append(steps, anywhere), rest[1:]
			continue
		case rest[0] == '[':
			step, after, closed := strings.Cut(rest[1:], "]")
			if step = strings.Trim(step, `'"`); !closed || step == "" {
				return nil, errors.New("has a [ that is not closed, or is empty")
			}
			steps, rest = append(steps, step), after
		case rest[0] == '.':
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			if end == 0 {
				return nil, errors.New("has an empty step")
			}
			steps, rest = append(steps, rest[1:end+1]), rest[end+1:]
		default:
			return nil, errors.New("has a step without a dot before it")
		}
	}
	if steps[len(steps)-1] == anywhere {
		return nil, errors.New("has nothing behind its last dots")
	}
	return steps, nil
}

// hides tells whether what stands at a place is not to be seen.
func (r *Redactor) hides(place []string) bool {
	for _, path := range r.paths {
		if fits(path, place) {
			return true
		}
	}
	return false
}

func fits(path, place []string) bool {
	switch {
	case len(path) == 0:
		return len(place) == 0
	case path[0] == anywhere:
		return fits(path[1:], place) || len(place) > 0 && fits(path, place[1:])
	case len(place) == 0:
		return false
	}
	return (path[0] == "*" || path[0] == place[0]) && fits(path[1:], place[1:])
}

// Readable is a payload for people.
type Readable struct {
	Text string
	JSON bool
	Size int  // of the payload, in bytes
	Cut  bool // Text is only its beginning
}

// hidden stands in the place of a value that is not to be seen.
const hidden = `"‹redacted›"`

// Read makes a payload readable: JSON indented, with the order and the spelling of its
// numbers kept, everything else as text. At most limit bytes are written; 0 for all.
// What isn't JSON can't be searched for what is to be hidden, so it is hidden whole
// where there is anything to hide.
func (r *Redactor) Read(payload []byte, limit int) Readable {
	if limit <= 0 {
		limit = int(^uint(0) >> 1)
	}
	w := &indenter{redactor: r, limit: limit, decoder: json.NewDecoder(bytes.NewReader(payload))}
	w.decoder.UseNumber()
	err := w.value()
	if err == nil && !w.cut {
		if _, err = w.decoder.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else {
			err = errors.New("more than one JSON value")
		}
	}
	switch {
	case err == nil:
		return Readable{Text: strings.ToValidUTF8(w.out.String(), "\uFFFD"), JSON: true, Size: len(payload), Cut: w.cut}
	case len(r.paths) > 0:
		return Readable{Text: "not shown: it isn't JSON, so what is to be redacted in it can't be found", Size: len(payload)}
	}
	cut := len(payload) > limit
	return Readable{Text: strings.ToValidUTF8(string(payload[:min(len(payload), limit)]), "\uFFFD"), Size: len(payload), Cut: cut}
}

// ReadAnswer makes what a receiver answered readable. It may be cut, and need not be JSON:
// of what looks like JSON and can't be read, nothing is shown where there is anything to
// hide, since a receiver may send back what it was sent.
func (r *Redactor) ReadAnswer(answer string) string {
	read := r.Read([]byte(answer), 0)
	if read.JSON || len(r.paths) == 0 {
		return read.Text
	}
	if trimmed := strings.TrimSpace(answer); strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "[") {
		return read.Text
	}
	return answer
}

// indenter copies one JSON value.
type indenter struct {
	redactor *Redactor
	decoder  *json.Decoder
	out      strings.Builder
	place    []string
	limit    int
	cut      bool
}

// deepest is how far values may be nested to be shown.
const deepest = 1000

// value copies the next value, or what stands for it.
func (w *indenter) value() error {
	if len(w.place) > deepest {
		return errors.New("nested too deep")
	}
	if w.redactor.hides(w.place) {
		var skipped json.RawMessage
		w.out.WriteString(hidden)
		return w.decoder.Decode(&skipped)
	}
	token, err := w.decoder.Token()
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		return w.members(t)
	case json.Number:
		w.out.WriteString(t.String())
	default:
		return w.scalar(t)
	}
	return nil
}

func (w *indenter) scalar(v any) error {
	encoder := json.NewEncoder(&trimmed{&w.out})
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// members copies what stands between an opening and its closing.
func (w *indenter) members(opening json.Delim) error {
	w.out.WriteRune(rune(opening))
	count := 0
	for ; w.decoder.More() && !w.cut; count++ {
		if count > 0 {
			w.out.WriteByte(',')
		}
		if w.out.Len() > w.limit {
			w.line(len(w.place) + 1)
			w.out.WriteString("…")
			w.cut = true
			return nil
		}
		w.line(len(w.place) + 1)
		step := strconv.Itoa(count)
		if opening == '{' {
			name, err := w.decoder.Token()
			if err != nil {
				return err
			}
			step = name.(string)
			if err := w.scalar(step); err != nil {
				return err
			}
			w.out.WriteString(": ")
		}
		w.place = append(w.place, step)
		if err := w.value(); err != nil {
			return err
		}
		w.place = w.place[:len(w.place)-1]
	}
	if w.cut {
		return nil
	}
	if _, err := w.decoder.Token(); err != nil {
		return err
	}
	if count > 0 {
		w.line(len(w.place))
	}
	w.out.WriteRune(rune(opening) + 2) // in ASCII, ] and } stand two behind [ and {
	return nil
}

func (w *indenter) line(depth int) {
	w.out.WriteByte('\n')
	for range depth {
		w.out.WriteString("  ")
	}
}

// trimmed leaves out the line's end that an Encoder writes.
type trimmed struct{ out *strings.Builder }

func (t *trimmed) Write(p []byte) (int, error) {
	t.out.Write(bytes.TrimSuffix(p, []byte("\n")))
	return len(p), nil
}
