package signature

import (
	"fmt"
	"io"
	"strings"

	"github.com/tidwall/gjson"
)

// part is a literal, or a field of the message when field is set.
type part struct {
	literal string
	field   string
	name    string // of the header, or path into the JSON body
}

// parseTemplate splits "v0:{timestamp}:{body}" into its parts.
func parseTemplate(template string) ([]part, error) {
	var parts []part
	for rest := template; rest != ""; {
		before, after, found := strings.Cut(rest, "{")
		if before != "" {
			parts = append(parts, part{literal: before})
		}
		if !found {
			break
		}
		field, tail, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf("template %q has a { without its }", template)
		}
		switch field {
		case "id", "timestamp", "method", "url", "body":
			parts = append(parts, part{field: field})
		default:
			if kind, name, ok := strings.Cut(field, ":"); ok && name != "" && (kind == "header" || kind == "json") {
				parts = append(parts, part{field: kind, name: name})
				break
			}
			return nil, fmt.Errorf("template %q has the unknown field {%s}", template, field)
		}
		rest = tail
	}
	return parts, nil
}

// writeContent writes the signed content. Writing to a hash or a builder can't fail.
func writeContent(w io.Writer, parts []part, m Message, timestamp string) {
	for _, p := range parts {
		switch p.field {
		case "":
			io.WriteString(w, p.literal)
		case "id":
			io.WriteString(w, m.ID)
		case "timestamp":
			io.WriteString(w, timestamp)
		case "method":
			io.WriteString(w, m.Method)
		case "url":
			io.WriteString(w, m.URL)
		case "body":
			w.Write(m.Body)
		case "header":
			io.WriteString(w, m.Header.Get(p.name))
		case "json":
			io.WriteString(w, gjson.GetBytes(m.Body, p.name).String())
		}
	}
}
