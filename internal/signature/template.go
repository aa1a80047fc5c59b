package signature

import (
	"fmt"
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

// appendContent appends the signed content.
func appendContent(to []byte, parts []part, m Message, timestamp string) []byte {
	for _, p := range parts {
		switch p.field {
		case "":
			to = append(to, p.literal...)
		case "id":
			to = append(to, m.ID...)
		case "timestamp":
			to = append(to, timestamp...)
		case "method":
			to = append(to, m.Method...)
		case "url":
			to = append(to, m.URL...)
		case "body":
			to = append(to, m.Body...)
		case "header":
			to = append(to, m.Header.Get(p.name)...)
		case "json":
			to = append(to, gjson.GetBytes(m.Body, p.name).String()...)
		}
	}
	return to
}
